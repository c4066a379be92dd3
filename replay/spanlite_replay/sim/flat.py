"""What the event loop runs and what it returns, as arrays, and as lists for the loop in Python."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fan:
    """Lists of items for each of some places: those of place i are items[start[i]:start[i+1]]."""

    start: I64
    items: I64

    @classmethod
    def of(cls, source: I64, target: I64, count: int) -> Fan:
        """From pairs."""
        order = np.argsort(source, kind="stable")
        start = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=count))))
        return cls(start.astype(np.int64), target[order])

    def lists(self) -> list[list[int]]:
        """Of each place."""
        items, cuts = self.items.tolist(), self.start.tolist()
        return [items[low:high] for low, high in pairwise(cuts)]


@dataclass(frozen=True)
class Flat:
    """Arrays by span of the device (in stream order), and by waiting call. Times in ns."""

    segment: I64  # whose start decides its launch, -1: `floor` alone does
    after: F64
    floor: F64
    gap: F64
    solo: F64  # time taken alone
    engine: I64  # see model.engine
    room: F64
    waiting_for: I64  # how many spans must end first
    then: Fan  # spans that wait for each
    wakes: Fan  # waiting calls that wait for each
    # waiting calls
    call_segment: I64
    call_after: F64
    call_floor: F64
    call_cost: F64
    call_delay: F64
    call_waits: I64  # for how many spans
    call_next: I64  # the segment that it starts on return, -1 for none
    begins: F64  # of each segment: when it starts, nan where that is not known yet
    last_call: I64  # the waiting call that ends each segment, -1 for none
    by_plan: I64  # the spans by planned start
    pace: F64  # slowdown by kernels that run


@dataclass(frozen=True)
class Ran:
    """When each span started and ended, each waiting call returned, each segment began."""

    start: F64
    end: F64
    returned: F64
    begins: F64
    given_up: int  # waits that could never end


@dataclass
class Program:
    """The same as lists, which a loop in Python reads faster."""

    segment: list[int]
    after: list[float]
    floor: list[float]
    gap: list[float]
    solo: list[float]
    engine: list[int]
    room: list[float]
    waiting_for: list[int]
    then: list[list[int]]
    wakes: dict[int, list[int]]
    call_segment: list[int]
    call_after: list[float]
    call_floor: list[float]
    call_cost: list[float]
    call_delay: list[float]
    call_waits: list[int]
    call_next: list[int]
    begins: list[float | None]
    last_call: list[int]
    by_plan: list[int]
    pace: list[float]

    @classmethod
    def of(cls, flat: Flat) -> Program:
        """From arrays."""
        plain = {
            name: getattr(flat, name).tolist()
            for name in cls.__dataclass_fields__
            if name not in ("then", "wakes", "begins")
        }
        wakes = {place: calls for place, calls in enumerate(flat.wakes.lists()) if calls}
        begins = [None if np.isnan(begin) else begin for begin in flat.begins.tolist()]
        return cls(**plain, then=flat.then.lists(), wakes=wakes, begins=begins)
