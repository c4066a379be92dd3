"""Compiles the kernels of the fusion table in many processes at once."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor

from bench.h200 import _fusion_shapes as plan
from bench.h200._fusion_shapes import Tile

ACTIVATION_ROWS, ACTIVATION_WIDTH = 4, 512
#: A product's kernel (tile, norm, bias, activation), or one beside it (which, kind, width).
Job = tuple[Tile, int, bool, int] | tuple[str, int, int]


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
