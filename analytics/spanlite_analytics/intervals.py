"""Unions of time intervals, in whole groups at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

I64 = npt.NDArray[np.int64]

_LARGEST = np.iinfo(np.int64).max


def ends_of(start_ns: I64, duration_ns: I64) -> I64:
    """Ends, at most the last time that 64 bits hold; a negative duration counts as 0."""
    wall = np.maximum(duration_ns, 0)
    # The room above a negative start would not fit 64 bits; such a start needs no check.
    room = _LARGEST - np.maximum(start_ns, 0)
    return np.where(wall > room, _LARGEST, start_ns + np.minimum(wall, room))


def _new_time(groups: I64, starts: I64, ends: I64) -> tuple[I64, I64]:
    """(order, ns that each interval adds to those before it in its group), sorted by start."""
    order = np.lexsort((starts, groups))
    group, start, end = groups[order], starts[order], ends[order]
    # Integers throughout (pandas' own shift would make floats of them): ns since 1970 do
    # not fit a float.
    reached = pd.Series(end).groupby(group).cummax().to_numpy()
    before = np.empty_like(start)
    before[1:] = reached[:-1]
    first = np.ones(len(group), bool)
    first[1:] = group[1:] != group[:-1]
    before[first] = start[first]
    return order, np.maximum(end - np.maximum(start, before), 0)


def union_ns(groups: I64, starts: I64, ends: I64, group_count: int) -> I64:
    """Length of the union of [start, end) of each group, shape (group_count,).

    `groups`: 0 to group_count - 1. An interval that ends before it starts adds nothing.
    """
    total = np.zeros(group_count, np.int64)
    if len(groups):
        order, added = _new_time(groups, starts, ends)
        np.add.at(total, groups[order], added)
    return total
