"""The tree of a trace: who is whose child, how deep, and where time was really spent.

All arrays have one value a span, in the order given. Made for a million spans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spanlite_analytics.intervals import I64, ends_of, union_ns

NO_ROW = -1
Mask = npt.NDArray[np.bool_]


def parent_rows(span_ids: I64, parent_ids: I64, traces: I64 | None = None) -> I64:
    """Row of each span's parent; -1 where it has none (id 0) or it is not among the rows.

    `traces` (codes from 0) keeps spans of different traces apart. Of spans with the same
    id the first counts.
    """
    count = len(span_ids)
    if count == 0:
        return np.empty(0, np.int64)
    ids, codes = np.unique(span_ids, return_inverse=True)
    codes = codes.reshape(-1).astype(np.int64)
    at = np.minimum(np.searchsorted(ids, parent_ids), len(ids) - 1)
    known = (ids[at] == parent_ids) & (parent_ids != 0)
    if traces is not None:
        codes, at = traces * len(ids) + codes, traces * len(ids) + at
    keys, rows = np.unique(codes, return_index=True)
    where = np.minimum(np.searchsorted(keys, at), len(keys) - 1)
    found = np.where(known & (keys[where] == at), rows[where], NO_ROW)
    found[found == np.arange(count)] = NO_ROW  # its own parent
    return _without_cycles(found.astype(np.int64))


def _without_cycles(parents: I64) -> I64:
    """Cut each cycle at its first row, so that every span hangs below a root."""
    while True:
        stuck = np.flatnonzero(_top(parents) == NO_ROW)
        if len(stuck) == 0:
            return parents
        row, seen = int(stuck[0]), set[int]()
        while row not in seen:  # walk up into the cycle
            seen.add(row)
            row = int(parents[row])
        cycle, at = [row], int(parents[row])
        while at != row:
            cycle.append(at)
            at = int(parents[at])
        parents[min(cycle)] = NO_ROW


def _top(parents: I64) -> I64:
    """The root above each row; -1 for rows in or below a cycle. Doubles its reach each round."""
    at = np.where(parents == NO_ROW, np.arange(len(parents)), parents)
    for _ in range(max(len(parents), 2).bit_length()):
        further = at[at]
        if np.array_equal(further, at):
            break
        at = further
    return np.where(parents[at] == NO_ROW, at, NO_ROW)


def nearest_ancestor(parents: I64, wanted: npt.NDArray[np.bool_]) -> I64:
    """Row of the nearest ancestor that is wanted (a span is not its own); -1 where none."""
    at = parents.copy()
    while True:
        climbing = np.flatnonzero(at != NO_ROW)
        climbing = climbing[~wanted[at[climbing]]]
        if len(climbing) == 0:
            return at
        at[climbing] = parents[at[climbing]]


def copies_on_device(parents: I64, is_range: Mask, names: I64, threadless: Mask) -> Mask:
    """Ranges that a profiler made anew of the GPU's side of a range: no range of their own.

    torch.profiler records a range on its thread, and once more (`gpu_user_annotation`) from
    the first to the last kernel below it: without a thread, and here a child of the first.
    """
    rows = np.flatnonzero(is_range & threadless & (parents != NO_ROW))
    above = parents[rows]
    copies = np.zeros(len(parents), bool)
    copies[rows] = is_range[above] & ~threadless[above] & (names[rows] == names[above])
    return copies


def topmost_ancestor(parents: I64, wanted: npt.NDArray[np.bool_]) -> I64:
    """Row of the highest ancestor that is wanted; -1 where none."""
    best = np.full(len(parents), NO_ROW, np.int64)
    at = parents.copy()
    while True:
        climbing = np.flatnonzero(at != NO_ROW)
        if len(climbing) == 0:
            return best
        rows = at[climbing]
        good = wanted[rows]
        best[climbing[good]] = rows[good]
        at[climbing] = parents[rows]


@dataclass(frozen=True)
class Tree:
    """Parents, children and sums of one trace (or several, side by side)."""

    parents: I64
    depth: I64
    #: Rows sorted by (parent, start); the children of a row lie side by side in it.
    order: I64
    first: I64
    count: I64
    self_ns: I64
    #: Spans below each span, itself not counted.
    below: I64
    #: Device time of each span and all below it; overlapping kernels add up.
    device_ns: I64

    @property
    def roots(self) -> I64:
        """Rows without a parent here, by start."""
        return self.order[: int((self.parents == NO_ROW).sum())]

    def children(self, row: int) -> I64:
        """Rows of a span's children, by start."""
        start = int(self.first[row])
        return self.order[start : start + int(self.count[row])]


def _levels(parents: I64, order: I64, first: I64, count: I64) -> list[I64]:
    """Rows of each depth, from the roots down."""
    level = order[: int((parents == NO_ROW).sum())]
    levels = []
    while len(level):
        levels.append(level)
        counts = count[level]
        offsets = np.repeat(first[level] - np.cumsum(counts) + counts, counts)
        level = order[offsets + np.arange(int(counts.sum()))]
    return levels


def build_tree(
    span_ids: I64,
    parent_ids: I64,
    start_ns: I64,
    duration_ns: I64,
    on_device: Mask,
    copies: Callable[[I64], Mask] | None = None,
) -> Tree:
    """The tree of one trace. A missing parent makes a span a root; a cycle is cut.

    `copies`: from the parents to the spans of `copies_on_device`, whose time is not taken
    off that of the range they stand for.
    """
    parents = parent_rows(span_ids, parent_ids)
    order = np.lexsort((span_ids, start_ns, parents))
    bounds = np.searchsorted(parents[order], np.arange(len(parents)), side="left")
    after = np.searchsorted(parents[order], np.arange(len(parents)), side="right")
    first, count = bounds.astype(np.int64), (after - bounds).astype(np.int64)
    depth = np.zeros(len(parents), np.int64)
    below = np.zeros(len(parents), np.int64)
    device_ns = np.where(on_device, np.maximum(duration_ns, 0), 0).astype(np.int64)
    levels = _levels(parents, order, first, count)
    for number, rows in enumerate(levels):
        depth[rows] = number
    for rows in reversed(levels[1:]):
        np.add.at(below, parents[rows], below[rows] + 1)
        np.add.at(device_ns, parents[rows], device_ns[rows])
    own = parents if copies is None else np.where(copies(parents), NO_ROW, parents)
    self_ns = self_times(own, start_ns, duration_ns)
    return Tree(parents, depth, order, first, count, self_ns, below, device_ns)


def self_times(parents: I64, start_ns: I64, duration_ns: I64) -> I64:
    """Duration less the time in which at least one child ran, cut to the span itself."""
    rows = np.flatnonzero(parents != NO_ROW)
    above = parents[rows]
    starts = np.maximum(start_ns[rows], start_ns[above])
    all_ends = ends_of(start_ns, duration_ns)
    ends = np.minimum(all_ends[rows], all_ends[above])
    covered = union_ns(above, starts, ends, len(parents))
    return np.maximum(duration_ns, 0) - covered
