"""Where a kernel stands under the roof, and what keeps it there."""

from __future__ import annotations

from dataclasses import dataclass

from spanlite_analytics.lab.roofline.ceilings import Ceilings
from spanlite_analytics.lab.roofline.work import Work

#: Below this share of the nearest roof neither memory nor arithmetic is what it waits for.
LATENCY_SHARE = 0.4
MEMORY, COMPUTE, LATENCY = "memory", "compute", "latency"


@dataclass(frozen=True, slots=True)
class Point:
    """One kernel, or one operator with its kernels, as often as it ran.

    `how`: `shapes` or `counters`. `time_ns` is the median of one run.
    """

    name: str
    kernel: str
    work: Work
    time_ns: float
    runs: float
    how: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A point under a GPU's roof.

    `roof_ns`: the time it would take at the roof; `share` of the roof that it reaches.
    """

    point: Point
    verdict: str
    limit: str
    roof_ns: float
    share: float
    flops_per_s: float
    bytes_per_s: float
    note: str = ""

    @property
    def distance(self) -> float:
        """How many times the roof's time it takes."""
        return 1 / self.share if self.share else float("inf")


def place(point: Point, gpu: Ceilings) -> Place:
    """The verdict. Tensor cores, ordinary pipes and memory each work beside the others.

    A type that the GPU has no rate for (FP8 on an A100) is left out, and the note says so.
    """
    work, note = point.work, ""
    times = {MEMORY: work.bytes / gpu.bytes_per_s * 1e9}
    unknown = sorted(kind for kind in work.flops if kind not in gpu.flops_per_s)
    if unknown:
        note = f"{gpu.name} has no rate for {', '.join(unknown)}"
    for unit, vector in (("tensor cores", False), ("FP pipes", True)):
        times[unit] = sum(
            flops / gpu.flops_per_s[kind] * 1e9
            for kind, flops in work.flops.items()
            if kind in gpu.flops_per_s and kind.endswith("_vector") == vector
        )
    limit = max(times, key=lambda unit: times[unit])
    share = times[limit] / point.time_ns
    verdict = MEMORY if limit == MEMORY else COMPUTE
    if share < LATENCY_SHARE:
        verdict = LATENCY
    if share > 1.02:
        note = _above(limit, point, note)
    seconds = point.time_ns / 1e9
    return Place(
        point,
        verdict,
        limit,
        times[limit],
        share,
        work.total_flops / seconds,
        work.bytes / seconds,
        note,
    )


def _above(limit: str, point: Point, note: str) -> str:
    if limit == MEMORY:
        why = "above the memory's roof: part of its data came from, or stayed in, the L2"
    elif "fp32_vector" in point.work.flops:
        why = "above FP32's roof: TF32 on tensor cores (--tf32)?"
    else:
        why = "above the roof: the GPU is another, or the sizes are not those that ran"
    return f"{note}; {why}" if note else why
