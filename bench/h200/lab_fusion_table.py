"""Measure norm + linear + bias + activation on the GPU, unfused and fused in several ways.

python3 -m bench.h200.lab_fusion_table [--budget SECONDS] [--shapes N] [--compile-only]

Needs torch and triton. Each shape is run by torch's own operators, by parts (our norm kernel,
cuBLAS, our activation kernel), and by Triton kernels that fuse the norm, the rest, or all, in
several tiles. Weights are rotated so that they come from memory, as a layer's do; activations are
as warm as the kernel before leaves them. Every output is compared with FP64 before it is timed.
Times are medians of interleaved rounds of CUDA graphs. Shapes are taken in an order that covers
the range early; --budget (default 75 s) ends the run. Writes bench/h200/tables/lab_fusion.npz.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.h200 import _fusion_shapes as plan
from bench.h200._device import save, surroundings
from bench.h200._fusion_shapes import Candidate, Tile

#: Weights in rotation: more than the L2 holds.
ROTATED_BYTES = 120_000_000
#: How long a graph runs at least, and how many rounds.
GRAPH_NS, ROUNDS = 200_000, 7
#: Times of a shape that vary more than this (median over its ways) are taken once more.
MOST_SPREAD = 0.08
CHECKED_ROWS = 48
KEPT_EVERY = 25
ACTIVATION_ROWS, ACTIVATION_WIDTH = 4, 512
#: Of the whole output against FP64. bf16 rounds to 2^-9; cuBLAS's own is 2e-3 to 4e-3.
MOST_ERROR = 1.2e-2
#: A product's kernel (tile, norm, bias, activation), or one beside it (which, kind, width).
Job = tuple[Tile, int, bool, int] | tuple[str, int, int]


#: With --smoke: these tiles on these shapes alone.
SMOKE_TILES = (*plan.TILES[:8], plan.STATIC, plan.TILES[-3], plan.TILES[-1])
SMOKE_SHAPES = (
    (0, 1, 4096, 11008),
    (0, 8, 1024, 4096),
    (0, 16, 5120, 13824),
    (0, 64, 2048, 8192),
    (1, 256, 4096, 14336),
    (0, 2048, 4096, 11008),
    (1, 4096, 2048, 8192),
)


def width_of(hidden: int) -> int:
    """Elements of a row with which the norm's kernel is compiled."""
    return 1 << (hidden - 1).bit_length()


def norm_warps(width: int) -> int:
    """Warps a row."""
    return 4 if width <= 2048 else 8


def pass_of(tile: Tile) -> int:
    """Columns of the first pass over the rows: 64 elements a thread."""
    return max(min(tile.warps * 32 * 64 // tile.m, 512), 64)


def jobs(shapes: Sequence[tuple[int, int, int, int]], tiles: Sequence[Tile]) -> list[Job]:
    """Every kernel that some candidate of the shapes needs, the largest tiles first."""
    found: dict[Job, None] = {}
    for chain, tokens, hidden, out in shapes:
        norm = activation = chain + 1
        found["norm", norm, width_of(hidden)] = None
        found["activation", activation, ACTIVATION_WIDTH] = None
        for candidate in plan.candidates(tokens, hidden, out):
            if candidate.tile is None or candidate.tile not in tiles:
                continue
            first = norm if candidate.split in ("prologue", "all") else 0
            last = candidate.split in ("epilogue", "all")
            found[candidate.tile, first, last, activation if last else 0] = None
    return sorted(found, key=lambda job: -_size(job))


def _size(job: Job) -> int:
    return 0 if isinstance(job[0], str) else job[0].m * job[0].n


def compile_job(job: Job) -> str:
    """Compile one kernel into Triton's cache; what went wrong, or nothing."""
    import torch

    from bench.h200 import _fusion_kernels as kernels

    half, single, whole = torch.bfloat16, torch.float32, torch.int32
    try:
        if isinstance(job[0], str):
            which, kind, width = job
            if which == "norm":
                kernels.norm.warmup(
                    half, half, half, half, 4096, kind, width,
                    grid=(1,), num_warps=norm_warps(width),
                )  # fmt: skip
            else:
                for bias in (False, True):
                    kernels.bias_activation.warmup(
                        half, single, 64, 4096, bias, kind, ACTIVATION_ROWS, width,
                        grid=(1, 1), num_warps=4,
                    )  # fmt: skip
            return ""
        tile, norm, bias, activation = job
        kernels.linear.warmup(
            half, half, single, single, half, single, single, whole, 64, 4096, 4096,
            norm, bias, activation, tile.m, tile.n, tile.k, tile.split, pass_of(tile),
            grid=(1, 1), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    except Exception:
        return f"{job}: {traceback.format_exc(limit=2)}"
    return ""


class Compiling:
    """Many processes fill Triton's cache; this one then only loads."""

    def __init__(self, workers: int = 15) -> None:
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(workers, mp_context=context)
        self.start = time.monotonic()

    def begin(self, wanted: Sequence[Job]) -> list[Future[str]]:
        """Start on these, after those begun before."""
        return [self.pool.submit(compile_job, job) for job in wanted]

    def wait(self, begun: Sequence[Future[str]]) -> None:
        """Until these are done; prints what went wrong."""
        for one in begun:
            if one.result():
                print(one.result(), flush=True)
        took = time.monotonic() - self.start
        print(f"{len(begun)} kernels compiled after {took:.1f} s", flush=True)

    def stop(self) -> None:
        """Leave out what has not begun."""
        self.pool.shutdown(wait=True, cancel_futures=True)
        print(f"compiler stopped after {time.monotonic() - self.start:.1f} s", flush=True)


@dataclass
class Layer:
    """A chain's tensors: weights as they are and with the gain folded in, several copies."""

    chain: int
    hidden: int
    out: int
    gain: Any
    shift: Any
    weights: list[Any]
    folded: list[Any]
    bias: Any
    bias_half: Any
    folded_bias: Any
    column_sums: Any


def make_layer(torch: Any, chain: int, hidden: int, out: int) -> Layer:
    """Random weights of the usual size."""
    draw = torch.Generator("cuda").manual_seed(hidden * 31 + out + chain)

    def normal(*size: int) -> Any:
        return torch.randn(*size, device="cuda", generator=draw)

    half = torch.bfloat16
    gain, shift = (1 + 0.1 * normal(hidden)).to(half), (0.1 * normal(hidden)).to(half)
    weight = (normal(out, hidden) / hidden**0.5).to(half)
    bias = (0.1 * normal(out)).to(half)
    folded = (weight.float() * gain.float()).to(half)
    moved = bias.float()
    if chain == 1:
        moved = moved + weight.float() @ shift.float()
    copies = min(max(ROTATED_BYTES // (hidden * out * 2), 1), 40) + 1
    return Layer(
        chain, hidden, out, gain, shift,
        [weight.clone() for _ in range(copies)], [folded.clone() for _ in range(copies)],
        bias.float(), bias, moved, folded.float().sum(1),
    )  # fmt: skip


#: Seconds by what they were spent on.
SPENT: Counter[str] = Counter()


@contextmanager
def spending(what: str) -> Iterator[None]:
    """Adds to SPENT."""
    start = time.monotonic()
    yield
    SPENT[what] += time.monotonic() - start


class Runner:
    """Runs candidates on one layer and one batch of tokens."""

    def __init__(self, torch: Any, layer: Layer, tokens: int, scratch: dict[str, Any]) -> None:
        from bench.h200 import _fusion_kernels as kernels

        self.torch, self.kernels, self.layer, self.tokens = torch, kernels, layer, tokens
        self.scratch, self.norm, self.act = scratch, layer.chain + 1, layer.chain + 1
        draw = torch.Generator("cuda").manual_seed(tokens)
        size = (tokens, layer.hidden)
        self.x = (torch.randn(*size, device="cuda", generator=draw) + 0.1).to(torch.bfloat16)
        self.normed = torch.empty_like(self.x)
        self.y = torch.empty(tokens, layer.out, device="cuda", dtype=torch.bfloat16)
        self.compiled: dict[str, Any] = {}

    def run(self, candidate: Candidate, copy: int = 0) -> Any:
        """The chain once, with that copy of the weights. Returns the output."""
        split, layer = candidate.split, self.layer
        if split == "torch":
            return self._torch(copy)
        fused_norm = split in ("prologue", "all")
        x = self.x if fused_norm else self._norm()
        if candidate.tile is None:
            # cuBLAS adds the bias itself.
            self.torch.addmm(layer.bias_half, x, layer.weights[copy].t(), out=self.y)
            self._activate()
            return self.y
        last = split in ("epilogue", "all")
        weight = layer.folded[copy] if fused_norm else layer.weights[copy]
        bias = layer.folded_bias if fused_norm else layer.bias
        self._linear(candidate, x, weight, bias, self.norm if fused_norm else 0, last)
        if not last:
            self._activate(bias)
        return self.y

    def _torch(self, copy: int) -> Any:
        f, layer = self.torch.nn.functional, self.layer
        if layer.chain == 0:
            x = f.rms_norm(self.x, (layer.hidden,), layer.gain, 1e-5)
        else:
            x = f.layer_norm(self.x, (layer.hidden,), layer.gain, layer.shift, 1e-5)
        y = f.linear(x, layer.weights[copy], layer.bias_half)
        return f.silu(y, inplace=True) if layer.chain == 0 else f.gelu(y)

    def _norm(self) -> Any:
        layer, width = self.layer, width_of(self.layer.hidden)
        self.kernels.norm[(self.tokens,)](
            self.x, layer.gain, layer.shift, self.normed, layer.hidden, self.norm, width,
            num_warps=norm_warps(width),
        )  # fmt: skip
        return self.normed

    def _activate(self, bias: Any = None) -> None:
        grid = (-(-self.tokens // ACTIVATION_ROWS), -(-self.layer.out // ACTIVATION_WIDTH))
        self.kernels.bias_activation[grid](
            self.y, self.layer.bias if bias is None else bias, self.tokens, self.layer.out,
            bias is not None, self.act, ACTIVATION_ROWS, ACTIVATION_WIDTH, num_warps=4,
        )  # fmt: skip

    def _linear(
        self, candidate: Candidate, x: Any, weight: Any, bias: Any, norm: int, last: bool
    ) -> None:
        tile, layer, scratch = candidate.tile, self.layer, self.scratch
        assert tile is not None
        tiles = -(-self.tokens // tile.m) * -(-layer.out // tile.n)
        self.compiled[candidate.name] = self.kernels.linear[(tiles, tile.split)](
            x, weight, bias, layer.column_sums, self.y, scratch["parts"], scratch["rows"],
            scratch["counters"], self.tokens, layer.hidden, layer.out,
            norm, last, self.act if last else 0, tile.m, tile.n, tile.k, tile.split, pass_of(tile),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def reference(self, rows: Any) -> Any:
        """Those rows in FP64, from the weights as they are."""
        f, layer, wide = self.torch.nn.functional, self.layer, self.torch.float64
        x, gain = self.x[rows].to(wide), layer.gain.to(wide)
        if layer.chain == 0:
            x = x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt() * gain
        else:
            x = f.layer_norm(x, (layer.hidden,), gain, layer.shift.to(wide), 1e-5)
        y = x @ layer.weights[0].to(wide).t() + layer.bias.to(wide)
        return f.silu(y) if layer.chain == 0 else f.gelu(y)

    def error(self, candidate: Candidate, rows: Any, reference: Any) -> float:
        """Relative to the reference's norm; infinity where an element was left unwritten."""
        self.y.fill_(float("nan"))
        y = self.run(candidate)
        if not bool(self.torch.isfinite(y).all()):
            return float("inf")
        gap = y[rows].to(self.torch.float64) - reference
        return float(gap.norm() / reference.norm())


def capture(torch: Any, runner: Runner, candidate: Candidate, runs: int, stream: Any) -> Any:
    """A graph of so many runs, each with the next copy of the weights."""
    graph, copies = torch.cuda.CUDAGraph(), len(runner.layer.weights)
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            for place in range(runs):
                runner.run(candidate, place % copies)
        finally:
            graph.capture_end()
    return graph


def time_all(torch: Any, graphs: list[Any], runs: int, replays: int) -> np.ndarray:
    """(graphs, ROUNDS) ns a run: each round replays every graph, one after the other."""
    for graph in graphs:
        graph.replay()
    marks: list[list[tuple[Any, Any]]] = []
    for _ in range(ROUNDS):
        row = []
        for graph in graphs:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(replays):
                graph.replay()
            end.record()
            row.append((begin, end))
        marks.append(row)
    torch.cuda.synchronize()
    taken = [[b.elapsed_time(e) * 1e6 / replays / runs for b, e in row] for row in marks]
    return np.array(taken).T


def spread_of(taken: np.ndarray) -> float:
    """Largest over least time of a way, less one: the median over ways."""
    return float(np.median(taken.max(1) / taken.min(1) - 1))


def measure(
    torch: Any, runner: Runner, stream: Any, tiles: Sequence[Tile]
) -> list[tuple[Candidate, Any, float, Any]]:
    """(candidate, its times, error, kernel) of all candidates that work."""
    layer, tokens = runner.layer, runner.tokens
    rows = torch.randperm(tokens, device="cuda")[:CHECKED_ROWS]
    with spending("reference"):
        reference, kept = runner.reference(rows), []
        torch.cuda.synchronize()
    with spending("checks"):
        for candidate in plan.candidates(tokens, layer.hidden, layer.out):
            if candidate.tile is not None and candidate.tile not in tiles:
                continue
            try:
                kept.append((candidate, runner.error(candidate, rows, reference)))
            except Exception as error:
                print(f"{candidate.name} failed: {str(error)[:200]}", flush=True)
    flops, moved = 2 * tokens * layer.hidden * layer.out, layer.hidden * layer.out * 2
    guess = max(flops / 600e12, moved / 4e12) * 1e9 + 3_000
    runs = max(len(layer.weights), round(GRAPH_NS / guess))
    replays = 3 if runs * guess < 1_000_000 else 1
    torch.cuda.synchronize()
    with spending("capture"):
        graphs = [capture(torch, runner, candidate, runs, stream) for candidate, _ in kept]
    with spending("times"):
        taken = time_all(torch, graphs, runs, replays)
    if spread_of(taken) > MOST_SPREAD:
        with spending("times again"):
            again = time_all(torch, graphs, runs, replays)
        taken = min(taken, again, key=spread_of)
    return [
        (candidate, times, error, runner.compiled.get(candidate.name))
        for (candidate, error), times in zip(kept, taken, strict=True)
    ]


def row_of(
    shape: tuple[int, int, int, int], found: tuple[Candidate, Any, float, Any]
) -> dict[str, float]:
    """One line of the table."""
    candidate, times, error, kernel = found
    return {
        **dict(zip(("chain", "tokens", "hidden", "out"), shape, strict=True)),
        "split": ("torch", *plan.SPLITS).index(candidate.split),
        "tile": plan.TILES.index(candidate.tile) if candidate.tile else -1,
        "time_ns": float(np.median(times)),
        "least_ns": float(times.min()),
        "most_ns": float(times.max()),
        "error": error,
        "registers": kernel.n_regs if kernel else -1,
        "shared_bytes": kernel.metadata.shared if kernel else -1,
        "spills": kernel.n_spills if kernel else -1,
    }


def told(shape: tuple[int, int, int, int], rows: list[dict[str, float]]) -> str:
    """A line on a shape: its best, unfused, torch, static."""
    static = plan.TILES.index(plan.STATIC)
    words = ("torch", *plan.SPLITS)

    def least(keep: Callable[[dict[str, float]], bool]) -> float:
        return min((r["time_ns"] for r in rows if keep(r)), default=float("nan")) / 1000

    best = min(rows, key=lambda r: r["time_ns"])
    tile = plan.TILES[int(best["tile"])].name if best["tile"] >= 0 else "cuBLAS"
    parts = [f"{word} {least(lambda r, w=i: r['split'] == w):.2f}" for i, word in enumerate(words)]
    parts.append(f"static {least(lambda r: r['split'] == 4 and r['tile'] == static):.2f}")
    worst = max(r["error"] for r in rows)
    spread = np.median([r["most_ns"] / r["least_ns"] - 1 for r in rows])
    return (
        f"{shape} us: {', '.join(parts)}; best {words[int(best['split'])]} {tile}; "
        f"error {worst:.1e}, spread {spread:.1%}"
    )


def tiles_of(args: argparse.Namespace) -> Sequence[Tile]:
    """All, or those of a short trial."""
    return SMOKE_TILES if args.smoke else plan.TILES


def run(args: argparse.Namespace) -> list[dict[str, float]]:
    """Shape after shape, until the budget or the shapes end."""
    import torch

    start, rows = time.monotonic(), []
    SPENT.clear()
    half = torch.backends.cuda.matmul
    half.allow_bf16_reduced_precision_reduction = False
    scratch = {
        "parts": torch.empty(40_000_000, device="cuda"),
        "rows": torch.empty(4_000_000, device="cuda"),
        "counters": torch.zeros(65_536, device="cuda", dtype=torch.int32),
    }
    layers: dict[tuple[int, int, int], Layer] = {}
    stream, done = torch.cuda.Stream(), 0
    tiles = tiles_of(args)
    for shape in SMOKE_SHAPES if args.smoke else plan.shapes()[args.skip :][: args.shapes]:
        if time.monotonic() - start > args.budget:
            break
        chain, tokens, hidden, out = shape
        try:
            if (chain, hidden, out) not in layers:
                with spending("weights"):
                    layers[chain, hidden, out] = make_layer(torch, chain, hidden, out)
                    torch.cuda.synchronize()
            runner = Runner(torch, layers[chain, hidden, out], tokens, scratch)
            found = measure(torch, runner, stream, tiles)
        except Exception:
            print(shape, traceback.format_exc(limit=4), flush=True)
            continue
        new = [row_of(shape, one) for one in found]
        rows += new
        done += 1
        print(told(shape, new), flush=True)
        if done % KEPT_EVERY == 0:
            keep(rows)
    took = time.monotonic() - start
    spent = ", ".join(f"{what} {seconds:.1f}" for what, seconds in SPENT.most_common())
    print(f"{done} shapes, {len(rows)} candidates in {took:.1f} s: {spent}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=75)
    parser.add_argument("--shapes", type=int, default=10_000)
    parser.add_argument("--skip", type=int, default=0, help="shapes to leave out at the start")
    parser.add_argument("--smoke", action="store_true", help="a few tiles on a few shapes")
    parser.add_argument("--compile-only", action="store_true", help="fill Triton's cache")
    parser.add_argument("--compiled", action="store_true", help="the cache is full already")
    args, began = parser.parse_args(), time.monotonic()
    shapes = SMOKE_SHAPES if args.smoke else plan.shapes()
    compiling = None if args.compiled else Compiling()
    if compiling:
        begun = compiling.begin(jobs(shapes, tiles_of(args)))
        # The rest goes on while a short trial measures.
        rest = compiling.begin(jobs(plan.shapes(), plan.TILES)) if args.smoke else []
        compiling.wait(begun)
    rows = [] if args.compile_only else run(args)
    if compiling:
        if args.smoke:
            deadline = began + args.budget - time.monotonic()
            wait(rest, timeout=max(deadline, 0))
        compiling.stop()
    if not rows:
        return
    wrong = [r for r in rows if not r["error"] <= MOST_ERROR]
    print(f"{len(wrong)} outputs differ from FP64 by more than {MOST_ERROR:g}")
    path = keep(rows)
    print(f"{len(rows)} rows in {path}, {path.stat().st_size:,} bytes")


def keep(rows: list[dict[str, float]]) -> Path:
    """Write the table as far as it goes."""
    columns = {
        key: np.array([row[key] for row in rows], np.int64 if whole else np.float32)
        for key, whole in ((k, isinstance(v, int)) for k, v in rows[0].items())
    }
    about = surroundings() | {
        "chains": plan.CHAINS,
        "splits": ("torch", *plan.SPLITS),
        "tiles": [asdict(tile) for tile in plan.TILES],
        "static": plan.TILES.index(plan.STATIC),
        "most_error": MOST_ERROR,
        "rounds": ROUNDS,
    }
    return save("lab_fusion", columns, about)


if __name__ == "__main__":
    main()
