"""Measure norm + linear + bias + activation on the GPU, unfused and fused in several ways.

python3 -m bench.h200.lab_fusion_table [--budget SECONDS] [--add] [--layer 4096x11008]

Needs torch and triton. Each shape is run by torch's own operators, by parts (our norm kernel,
cuBLAS, our activation kernel), and by Triton kernels that fuse the norm, the rest, or all, in
several tiles. Weights are rotated so that they come from memory, as a layer's do; activations are
as warm as the kernel before leaves them. Every output is compared with FP64 before it is timed.
Times are medians of interleaved rounds of CUDA graphs. Shapes are taken in an order that covers
the range early; --budget (default 75 s) ends the run. Writes bench/h200/tables/lab_fusion.npz.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.h200 import _fusion_shapes as plan
from bench.h200._device import TABLES, load, save, surroundings
from bench.h200._fusion_compile import Compiling, jobs
from bench.h200._fusion_run import Layer, Runner, make_layer
from bench.h200._fusion_shapes import Candidate, Tile

#: How long a graph runs at least, and how many rounds.
GRAPH_NS, ROUNDS = 200_000, 7
#: Times of a shape that vary more than this (median over its ways) are taken once more.
MOST_SPREAD = 0.08
CHECKED_ROWS = 48
KEPT_EVERY = 25
#: Of the whole output against FP64. bf16 rounds to 2^-9; cuBLAS's own is 2e-3 to 4e-3.
MOST_ERROR = 1.2e-2

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


SHAPE = ("chain", "tokens", "hidden", "out")
#: Seconds by what they were spent on.
SPENT: Counter[str] = Counter()


@contextmanager
def spending(what: str) -> Iterator[None]:
    """Adds to SPENT."""
    start = time.monotonic()
    yield
    SPENT[what] += time.monotonic() - start


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
        **dict(zip(SHAPE, shape, strict=True)),
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


@dataclass
class Before:
    """What the table has already, with --add: rows, and the runs that made them."""

    rows: list[dict[str, float]] = field(default_factory=list)
    runs: list[dict[str, str]] = field(default_factory=list)


def before() -> Before:
    """The table as it is."""
    columns, about = load(TABLES / "lab_fusion.npz")
    rows = [
        dict(zip(columns, values, strict=True))
        for values in zip(*(column.tolist() for column in columns.values()), strict=True)
    ]
    run = {key: about[key] for key in ("command", "date", "driver_version")}
    return Before(rows, [*about.get("earlier", []), run])


def layer_of(text: str) -> tuple[int, int]:
    """Of `4096x11008`."""
    hidden, out = (int(word) for word in text.split("x"))
    if hidden < 64 or out < 64 or hidden % 64 or hidden * out > 1 << 31:
        raise argparse.ArgumentTypeError(f"{text}: hidden must be a multiple of 64")
    return hidden, out


def left_of(args: argparse.Namespace, earlier: Before) -> list[tuple[int, int, int, int]]:
    """The shapes to measure: without those that are there."""
    there = {tuple(int(row[key]) for key in SHAPE) for row in earlier.rows}
    shapes = SMOKE_SHAPES if args.smoke else plan.shapes(args.layer)[args.skip :]
    return [shape for shape in shapes if shape not in there][: args.shapes]


def run(
    args: argparse.Namespace, shapes: Sequence[tuple[int, int, int, int]], earlier: Before
) -> list[dict[str, float]]:
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
    for shape in shapes:
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
            keep(rows, earlier)
    took = time.monotonic() - start
    spent = ", ".join(f"{what} {seconds:.1f}" for what, seconds in SPENT.most_common())
    print(f"{done} shapes, {len(rows)} candidates in {took:.1f} s: {spent}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=75)
    parser.add_argument("--shapes", type=int, default=10_000)
    parser.add_argument("--skip", type=int, default=0, help="shapes to leave out at the start")
    parser.add_argument(
        "--layer", type=layer_of, metavar="HIDDENxOUT", help="one of your own, with --add"
    )
    parser.add_argument("--add", action="store_true", help="to the shapes that the table has")
    parser.add_argument("--smoke", action="store_true", help="a few tiles on a few shapes")
    parser.add_argument("--compile-only", action="store_true", help="fill Triton's cache")
    parser.add_argument("--compiled", action="store_true", help="the cache is full already")
    args, began = parser.parse_args(), time.monotonic()
    earlier = before() if args.add else Before()
    shapes = left_of(args, earlier)
    compiling = None if args.compiled else Compiling()
    if compiling:
        begun = compiling.begin(jobs(shapes, tiles_of(args)))
        # The rest goes on while a short trial measures.
        rest = compiling.begin(jobs(plan.shapes(), plan.TILES)) if args.smoke else []
        compiling.wait(begun)
    rows = [] if args.compile_only else run(args, shapes, earlier)
    if compiling:
        if args.smoke:
            deadline = began + args.budget - time.monotonic()
            wait(rest, timeout=max(deadline, 0))
        compiling.stop()
    if not rows:
        return
    wrong = [r for r in rows if not r["error"] <= MOST_ERROR]
    print(f"{len(wrong)} outputs differ from FP64 by more than {MOST_ERROR:g}")
    path = keep(rows, earlier)
    print(f"{len(earlier.rows) + len(rows)} rows in {path}, {path.stat().st_size:,} bytes")


def keep(new: list[dict[str, float]], earlier: Before) -> Path:
    """Write the table as far as it goes."""
    rows = earlier.rows + new
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
        "earlier": earlier.runs,
    }
    return save("lab_fusion", columns, about)


if __name__ == "__main__":
    main()
