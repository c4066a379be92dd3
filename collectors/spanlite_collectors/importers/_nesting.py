"""Which range holds which: parents from start and end times, vectorised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spanlite_collectors.importers._events import I64


def nest(track: npt.NDArray[np.int64], start: I64, end: I64) -> I64:
    """The parent of each row: the latest one before it on its track still open at its start.

    Rows are sorted by track, then start, the outer of two equal starts first. "Open"
    means that its end lies after the start in question, so a row whose end is its start
    has no children. Shape (n,) each; -1 where there is no parent.

    Every row first points at the row before it and then follows the pointers of dead
    rows all at once. Rows between a dead row and what that one points at are dead too
    (starts only grow), so nothing open is ever jumped over, and jumps double in length.
    """
    count = len(start)
    parent = np.arange(-1, count - 1, dtype=np.int64)
    if count == 0:
        return parent
    first = np.ones(count, dtype=bool)
    first[1:] = track[1:] != track[:-1]
    parent[first] = -1
    pending = _dead(parent, start, end, np.flatnonzero(~first))
    while len(pending):
        parent[pending] = parent[parent[pending]]
        pending = _dead(parent, start, end, pending)
    return parent


def _dead(parent: I64, start: I64, end: I64, rows: I64) -> I64:
    """Those of the rows that point at a row that has ended."""
    rows = rows[parent[rows] >= 0]
    dead: I64 = rows[end[parent[rows]] <= start[rows]]
    return dead


class Timeline:
    """Which of a few intervals holds a point in time.

    `innermost` answers with the latest-started open interval; `only` answers where
    exactly one is open. -1: none.
    """

    def __init__(self, start: I64, end: I64, value: I64) -> None:
        order = np.lexsort((-end, start))
        edges = np.unique(np.concatenate((start, end)))
        innermost = np.full(len(edges), -1, dtype=np.int64)
        only = np.full(len(edges), -1, dtype=np.int64)
        stack: list[int] = []
        queue = order.tolist()
        at = 0
        for i, edge in enumerate(edges.tolist()):
            stack = [row for row in stack if end[row] > edge]
            while at < len(queue) and start[queue[at]] <= edge:
                if end[queue[at]] > edge:
                    stack.append(queue[at])
                at += 1
            if stack:
                innermost[i] = value[stack[-1]]
                only[i] = value[stack[0]] if len(stack) == 1 else -1
        self._edges, self._innermost, self._only = edges, innermost, only

    def innermost(self, time: I64) -> I64:
        """The latest-started interval open at each time, shape (n,)."""
        return self._look(self._innermost, time)

    def only(self, time: I64) -> I64:
        """The interval open at each time if it is the only one, shape (n,)."""
        return self._look(self._only, time)

    def _look(self, values: I64, time: I64) -> I64:
        if not len(values):
            return np.full(len(time), -1, dtype=np.int64)
        at = np.searchsorted(self._edges, time, side="right") - 1
        return np.where(at >= 0, values[np.maximum(at, 0)], -1)
