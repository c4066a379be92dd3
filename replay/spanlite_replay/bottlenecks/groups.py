"""What a group of windows did, on average: the figures that two groups are compared by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind

from spanlite_replay.bottlenecks.bounds import I64, Bound, Reason
from spanlite_replay.bottlenecks.kernels import ALONE, ALONE_TIMES, attributes_at
from spanlite_replay.bottlenecks.links import WAITS
from spanlite_replay.bottlenecks.recorded import BOOL, Recorded
from spanlite_replay.bottlenecks.report import Analysis
from spanlite_replay.fidelity.spans import group_rows, union_ns

#: Attributes that the daemon's samplers leave on steps.
CLOCK, THROTTLED = "gpu.sm_clock_mhz", "gpu.throttled"
#: Of a request: how long its context is.
TOKENS = ("gen_ai.usage.input_tokens", "context_tokens", "prompt_tokens", "input_tokens")


@dataclass(frozen=True)
class KernelGroup:
    """Kernels of one name in a group of windows."""

    name: str
    times: float  # a window
    mean_ns: float
    median_ns: float
    cv: float  # standard deviation by mean
    blocks: float  # of one launch
    registers: float
    accompanied: float  # share of its time beside other streams
    alone_tail_ns: float  # mean less median of the runs that were alone, 0 where few were
    alone_times: float  # a window
    attributes: dict[str, Any]  # of one of them


@dataclass(frozen=True)
class Served:
    """A request that windows of a group link to."""

    name: str
    windows: int  # that serve it
    tokens: float  # of its context, nan where that is not recorded


@dataclass(frozen=True)
class Group:
    """Means over windows unless said otherwise; times in ns."""

    windows: int
    length_ns: float
    spread_ns: float  # standard deviation of the lengths
    bound_ns: npt.NDArray[np.float64]  # by Bound
    reason_ns: npt.NDArray[np.float64]  # by Reason
    launches: float
    waits: float
    busy_ns: float  # union of device work
    work_ns: float  # sum of device work
    streams: int  # of all its windows
    copy_bytes: float
    copy_rate: float  # bytes a ns, while copying
    foreign_ns: float  # other processes' work on the same device meanwhile
    clock_mhz: float  # of the SMs, nan where that is not recorded
    throttled: str  # why the GPU held its clocks down, as it says itself
    requests: dict[int, Served]  # by span id
    kernels: dict[str, KernelGroup]

    @property
    def idle_ns(self) -> float:
        """Time in which no stream ran anything."""
        return self.length_ns - self.busy_ns

    @property
    def parallel(self) -> float:
        """How much ran at once while anything ran."""
        return self.work_ns / self.busy_ns if self.busy_ns else 1.0

    @property
    def blocks(self) -> float:
        """Blocks of all kernels of a window."""
        return sum(one.times * one.blocks for one in self.kernels.values())

    @property
    def kernel_times(self) -> float:
        """Kernels of a window."""
        return sum(one.times for one in self.kernels.values())


def group_of(analysis: Analysis, chosen: BOOL) -> Group:
    """Sum up the chosen windows, shape (windows,)."""
    rec, stretches = analysis.rec, analysis.stretches
    count = max(int(chosen.sum()), 1)
    rows = chosen[stretches.window]
    ns = stretches.ns[rows]
    lengths = np.bincount(stretches.window[rows], weights=ns, minlength=len(chosen))[chosen]
    mine = (rec.window >= 0) & chosen[np.maximum(rec.window, 0)]
    device = np.flatnonzero(mine & rec.is_device)
    copies = device[rec.kind[device] == SpanKind.MEMCPY]
    moved = rec.recording.integers("bytes", rec.work.row[copies], 0).sum()
    copying = (rec.end - rec.start)[copies].sum()
    calls = mine & rec.work.is_call
    named = np.array([bool(WAITS.search(name)) for name in rec.names])[rec.name]
    waits = calls & (named | (rec.kind == SpanKind.SYNC))
    return Group(
        windows=int(chosen.sum()),
        length_ns=float(lengths.mean()) if len(lengths) else 0.0,
        spread_ns=float(lengths.std()) if len(lengths) else 0.0,
        bound_ns=np.bincount(stretches.bound[rows], weights=ns, minlength=len(Bound)) / count,
        reason_ns=np.bincount(stretches.reason[rows], weights=ns, minlength=len(Reason)) / count,
        launches=len(np.unique(rec.work.launched_by[device])) / count,
        waits=float(waits.sum()) / count,
        busy_ns=_busy_ns(rec, device) / count,
        work_ns=float((rec.end - rec.start)[device].sum()) / count,
        streams=len(np.unique(rec.work.stream[device])),
        copy_bytes=float(moved) / count,
        copy_rate=float(moved / copying) if copying else 0.0,
        foreign_ns=_foreign_ns(rec, chosen) / count,
        **_said_of(rec, chosen),
        requests=_requests(rec, chosen),
        kernels=_kernels(analysis, device[rec.kind[device] == SpanKind.KERNEL], count),
    )


def _said_of(rec: Recorded, chosen: BOOL) -> dict[str, Any]:
    """What attributes of the windows' own spans say of the GPU."""
    span = rec.windows.span[chosen]
    said = attributes_at(rec, span[span >= 0])
    clocks = [float(one[CLOCK]) for one in said if isinstance(one.get(CLOCK), (int, float))]
    words = {word for one in said for word in str(one.get(THROTTLED) or "").split(",") if word}
    return {
        "clock_mhz": float(np.mean(clocks)) if clocks else math.nan,
        "throttled": ", ".join(sorted(words)),
    }


def _requests(rec: Recorded, chosen: BOOL) -> dict[int, Served]:
    """The requests that the windows serve, by their links or by what holds them."""
    place = np.full(len(rec.start), -1, np.int64)
    span = rec.windows.span[chosen]
    place[span[span >= 0]] = np.flatnonzero(span >= 0)
    source, goal = rec.work.link_from, rec.work.link_to
    linked = (place[source] >= 0) & (rec.kind[goal] == SpanKind.REQUEST)
    request, windows = np.unique(goal[linked], return_counts=True)
    ids = rec.recording.span_id[rec.work.row[request]].tolist()
    return {
        ids[i]: Served(rec.names[int(rec.name[request[i]])], int(windows[i]), _tokens(said))
        for i, said in enumerate(attributes_at(rec, request))
    }


def _tokens(said: dict[str, Any]) -> float:
    for key in TOKENS:
        try:
            return float(said[key])
        except (KeyError, TypeError, ValueError):
            continue
    return math.nan


def _busy_ns(rec: Recorded, device: I64) -> int:
    window, first = group_rows(rec.window[device])
    order = np.argsort(window, kind="stable")
    cuts = np.searchsorted(window[order], np.arange(len(first) + 1))
    return sum(
        union_ns(rec.start[rows], rec.end[rows])
        for low, high in pairwise(cuts.tolist())
        for rows in [device[order[low:high]]]
    )


def _foreign_ns(rec: Recorded, chosen: BOOL) -> float:
    """Device time of other processes on the windows' devices, within the windows."""
    device = np.flatnonzero(rec.is_device)
    if len(np.unique(rec.process[device])) < 2:
        return 0.0
    total = 0.0
    for window in np.flatnonzero(chosen).tolist():
        others = device[rec.process[device] != rec.windows.process[window]]
        begin, end = rec.windows.start_ns[window], rec.windows.end_ns[window]
        inside = np.minimum(rec.end[others], end) - np.maximum(rec.start[others], begin)
        total += float(np.maximum(inside, 0).sum())
    return total


def _tail_ns(took: npt.NDArray[np.float64]) -> float:
    return float(took.mean() - np.median(took)) if len(took) >= ALONE_TIMES else 0.0


def _kernels(analysis: Analysis, kernel: I64, windows: int) -> dict[str, KernelGroup]:
    rec, kernels = analysis.rec, analysis.kernels
    if not len(kernel):
        return {}
    group, first = group_rows(rec.name[kernel])
    took = (rec.end - rec.start)[kernel].astype(np.float64)
    blocks = np.array([one.blocks for one in kernels.signatures])[kernels.of[kernel]]
    registers = rec.recording.integers("registers_per_thread", rec.work.row[kernel], 0)
    count = np.bincount(group)
    order = np.lexsort((took, group))
    middle = np.cumsum(count) - count + (count - 1) // 2
    medians = took[order[middle]]
    mean, square, mean_blocks, mean_registers, company = (
        np.bincount(group, weights=values) / count
        for values in (took, took**2, blocks, registers, kernels.accompanied[kernel])
    )
    spread = np.sqrt(np.maximum(square - mean**2, 0))
    alone = kernels.accompanied[kernel] <= ALONE
    texts = attributes_at(rec, kernel[first])
    return {
        name: KernelGroup(
            name,
            float(count[i]) / windows,
            float(mean[i]),
            float(medians[i]),
            float(spread[i] / max(mean[i], 1)),
            float(mean_blocks[i]),
            float(mean_registers[i]),
            float(company[i]),
            _tail_ns(took[alone & (group == i)]),
            float((alone & (group == i)).sum()) / windows,
            texts[i],
        )
        for i in range(len(first))
        for name in [rec.names[int(rec.name[kernel[first[i]]])]]
    }
