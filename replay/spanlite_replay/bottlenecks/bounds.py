"""The words of the report: what a stretch of the critical path is bound by, and why we say so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


class Bound(IntEnum):
    """What would have to be faster for the stretch to be shorter."""

    COMPUTE = 0
    MEMORY = 1
    COPY = 2
    LAUNCH = 3
    SYNC = 4
    QUEUE = 5
    CONTENTION = 6
    HOST = 7
    PROFILER = 8  # time of the measuring itself
    UNEXPLAINED = 9

    @property
    def word(self) -> str:
        """As printed."""
        return self.name.lower()


class Reason(IntEnum):
    """What the walk saw; the evidence in a few words is in REASONS."""

    KERNEL = 0
    COPY = 1
    GRAPH = 2
    BEHIND = 3
    GAP = 4
    LAUNCH = 5
    LAUNCH_CALL = 6
    CALL = 7
    HOST = 8
    SYNC_RETURN = 9
    SYNC_NOTHING = 10
    WAITS_UNKNOWN = 11
    NO_LAUNCH = 12
    SLOWED = 13
    MEASURING = 14
    LOADING = 15


REASONS: dict[Reason, str] = {
    Reason.KERNEL: "the kernel ran",
    Reason.COPY: "the copy ran",
    Reason.GRAPH: "a graph ran, recorded as one",
    Reason.BEHIND: "its stream ran work of another step",
    Reason.GAP: "from the end of what it waited for to its start",
    Reason.LAUNCH: "from the launch call to the start on an idle stream",
    Reason.LAUNCH_CALL: "the host was inside a call that launches, the device waiting",
    Reason.CALL: "the host was inside a call",
    Reason.HOST: "the host was between calls, the device waiting",
    Reason.SYNC_RETURN: "the device was done, the host had not come back from waiting",
    Reason.SYNC_NOTHING: "the host was inside a call that waits, for nothing that is known",
    Reason.WAITS_UNKNOWN: "launched, its stream free, and not started: what it waited for is not "
    "recorded",
    Reason.NO_LAUNCH: "its launch is not recorded",
    Reason.SLOWED: "longer than the same kernel alone, beside other work",
    Reason.MEASURING: "the profiler's own work",
    Reason.LOADING: "CUDA loaded a module",
}

BOUND_OF: dict[Reason, Bound] = {
    Reason.KERNEL: Bound.COMPUTE,  # or MEMORY, told kernel by kernel
    Reason.COPY: Bound.COPY,
    Reason.GRAPH: Bound.COMPUTE,
    Reason.BEHIND: Bound.QUEUE,
    Reason.GAP: Bound.LAUNCH,
    Reason.LAUNCH: Bound.LAUNCH,
    Reason.LAUNCH_CALL: Bound.LAUNCH,
    Reason.CALL: Bound.HOST,
    Reason.HOST: Bound.HOST,
    Reason.SYNC_RETURN: Bound.SYNC,
    Reason.SYNC_NOTHING: Bound.SYNC,
    Reason.WAITS_UNKNOWN: Bound.UNEXPLAINED,
    Reason.NO_LAUNCH: Bound.UNEXPLAINED,
    Reason.SLOWED: Bound.CONTENTION,
    Reason.MEASURING: Bound.PROFILER,
    Reason.LOADING: Bound.HOST,
}


@dataclass(frozen=True)
class Stretches:
    """Pieces of critical paths. Arrays have shape (stretches,); those of a window tile it.

    `span` is the position of the kernel, copy or call it is about, -1 for none.
    """

    window: I64
    start_ns: I64
    end_ns: I64
    reason: I64
    bound: I64
    span: I64

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def ns(self) -> I64:
        """Lengths."""
        return self.end_ns - self.start_ns

    @classmethod
    def of(cls, rows: list[tuple[int, int, int, int, int]]) -> Stretches:
        """From (window, start, end, reason, span) of each."""
        table = np.array(rows, np.int64).reshape(-1, 5)
        window, start, end, reason, span = (np.ascontiguousarray(part) for part in table.T)
        bound = np.array([BOUND_OF[one] for one in Reason], np.int64)
        return cls(window, start, end, reason, bound[reason], span)
