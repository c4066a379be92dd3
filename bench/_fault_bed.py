"""The decode step that faults are seeded into: one model, its streams and kernels.

Each layer: a norm, three matrix products, two transpositions, attention over each request's context
and a mixing kernel on the main stream; three experts on side streams beside them; a copy from the
host on a stream of its own. Kernels last some 150 to 450 us and a step 4 to 5 ms, of which the
host needs less than a third, so that a healthy step is as long as the GPU's work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from spanlite import instrument

KERNELS = Path(__file__).with_name("_fault_kernels.cu")
LAYERS, SIDES, TRANSPOSITIONS = 3, 3, 2
SIZE, SIDE = 8192, 8192
REQUESTS, HEADS = 16, 64
POOL_TOKENS = 2 << 20  # 512 bytes each
EXPERT_ROUNDS, EXPERT_BLOCKS, MIX_ROUNDS = 150_000, 20, 600
MIB = 1 << 20
#: Source function and compiler options of each kernel.
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "transpose": ("custom_transpose", ("-DPAD=1",)),
    "transpose_conflicts": ("custom_transpose", ("-DPAD=0",)),
    "transpose_some_conflicts": ("custom_transpose", ("-DPAD=16",)),
    "mix": ("custom_mix", ()),
    "mix_spilled": ("custom_mix", ("--maxrregcount=40",)),
    "mix_some_spilled": ("custom_mix", ("--maxrregcount=64",)),
    "expert": ("expert_fma", ()),
    "attention": ("decode_attention", ()),
}


@dataclass(frozen=True)
class Options:
    """What a step does other than usual."""

    rounds: int = 1
    transpose: str = "transpose"
    mix: str = "mix"
    odd_products: int = 0  # how many of a layer's three come from rows that are not aligned
    inner: int = SIZE  # of the products
    pieces: int = 1
    sync: str = ""  # `op`: after each; `layer`: four reads of a value a layer
    copies: int = 1
    copy_mib: int = 4
    streams: str = ""  # `one`: experts on the main stream; `chained`: one after the other


@cache
def kernel_of(variant: str) -> Any:
    """Compiled by NVRTC. Needs cupy alone."""
    import cupy

    name, options = VARIANTS[variant]
    kernel = cupy.RawKernel(KERNELS.read_text(), name, options=options, backend="nvrtc")
    kernel.compile()
    return kernel


class Bed:
    """Made once for all recordings."""

    def __init__(self, batch: int, seed: int) -> None:
        import cupy
        import torch

        torch.set_grad_enabled(False)
        torch.manual_seed(seed)
        self.torch, self.cupy, self.batch = torch, cupy, batch
        half = {"device": "cuda", "dtype": torch.bfloat16}
        self.x = torch.randn(batch, SIZE, **half)
        self.w = [torch.randn(SIZE, SIZE, **half) for _ in range(3)]
        # One column more: the same product from rows that no 16-byte load can be aligned to.
        self.odd_x = torch.randn(batch, SIZE + 1, **half)[:, 1:]
        self.odd_w = torch.randn(SIZE, SIZE + 1, **half)[:, 1:]
        self.norm = torch.nn.LayerNorm(SIZE, **half)
        self.pinned = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=True)
        self.landing = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        self.tokens = torch.empty(4096, dtype=torch.int32, pin_memory=True)
        self.a = torch.rand(SIDE * SIDE, device="cuda")
        self.b = torch.empty_like(self.a)
        self.pool = torch.empty(POOL_TOKENS * 512, dtype=torch.uint8, device="cuda")
        self.sums = torch.zeros(REQUESTS * HEADS, dtype=torch.int32, device="cuda")
        self.context = torch.full((REQUESTS,), 3000, dtype=torch.int32, device="cuda")
        self.context_host = torch.full((REQUESTS,), 3000, dtype=torch.int32, pin_memory=True)
        streams = [torch.cuda.Stream() for _ in range(2 + SIDES)]
        self.main, self.copying, self.sides = streams[0], streams[1], streams[2:]
        self.outside = {
            one.cuda_stream: cupy.cuda.ExternalStream(one.cuda_stream) for one in streams
        }
        self.kernels = {variant: kernel_of(variant) for variant in VARIANTS}
        self.scratch = {
            one.cuda_stream: torch.empty(MIB, device="cuda") for one in streams
        }  # each stream writes elsewhere
        torch.cuda.synchronize()

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Launch on a stream, torch's and cupy's work alike."""
        with self.torch.cuda.stream(stream), self.outside[stream.cuda_stream]:
            yield

    def _run(self, kind: str, grid: Any, block: Any, pointers: Any, numbers: Any) -> None:
        cupy = self.cupy
        args = [cupy.uint64(one.data_ptr()) for one in pointers]
        args += [cupy.int32(one) for one in numbers]
        self.kernels[kind](grid, block, tuple(args))

    def step(self, o: Options) -> None:
        """Launch all of it and wait."""
        torch = self.torch
        with self.on(self.main):
            self.context.copy_(self.context_host, non_blocking=True)
            for _ in range(LAYERS):
                self._layer(o)
            self.main.wait_stream(self.copying)
            self.tokens.copy_(self.sums[:1].expand(4096), non_blocking=True)
        torch.cuda.synchronize()

    def _layer(self, o: Options) -> None:
        with instrument.stage("attention"):
            for piece in range(o.pieces):
                self.norm(self._rows(self.x, piece, o))
            self._after(o)
            self._product(0, o)
            self._experts(o)
            for _ in range(TRANSPOSITIONS):
                self._run(
                    o.transpose,
                    (SIDE // 32, SIDE // 32),
                    (32, 8),
                    (self.a, self.b),
                    (SIDE, o.rounds),
                )
            self._after(o)
            self._attend(o)
        with instrument.stage("copies"), self.on(self.copying):
            size = o.copy_mib * MIB
            for _ in range(o.copies):
                self.landing[:size].copy_(self.pinned[:size], non_blocking=True)
        with instrument.stage("mlp"):
            self._product(1, o)
            at = self.scratch[self.main.cuda_stream]
            self._run(o.mix, (1024,), (128,), (self.a, at), (SIDE * SIDE, MIX_ROUNDS))
            self._after(o)
            for side in self.sides:
                self.main.wait_stream(side)
            self._product(2, o)

    def _rows(self, x: Any, piece: int, o: Options) -> Any:
        return x[piece * self.batch // o.pieces : (piece + 1) * self.batch // o.pieces]

    def _product(self, number: int, o: Options) -> None:
        odd = number < o.odd_products
        x, w = (self.odd_x, self.odd_w.t()) if odd else (self.x, self.w[number])
        for piece in range(o.pieces):
            self.torch.mm(self._rows(x, piece, o)[:, : o.inner], w[: o.inner])
        self._after(o)
        self._read(o)

    def _attend(self, o: Options) -> None:
        pieces = min(o.pieces, REQUESTS)
        for piece in range(pieces):
            numbers = (POOL_TOKENS, piece * REQUESTS // pieces)
            pointers = (self.pool, self.sums, self.context)
            self._run("attention", (REQUESTS // pieces, HEADS), (128,), pointers, numbers)
        self._after(o)
        self._read(o)

    def _experts(self, o: Options) -> None:
        with instrument.stage("experts"):
            before = self.main
            for side in self.sides:
                stream = self.main if o.streams == "one" else side
                if stream is not self.main:
                    stream.wait_stream(before if o.streams == "chained" else self.main)
                before = stream
                with self.on(stream):
                    at = self.scratch[side.cuda_stream]
                    self._run("expert", (EXPERT_BLOCKS,), (128,), (at,), (EXPERT_ROUNDS,))
        self._after(o)

    def _after(self, o: Options) -> None:
        if o.sync == "op":
            self.torch.cuda.synchronize()

    def _read(self, o: Options) -> None:
        if o.sync == "layer":
            self.x[0, 0].item()
