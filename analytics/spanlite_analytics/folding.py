"""Which spans of a huge trace to show: the ones that take the most time, and counts of the rest."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from spanlite_analytics.intervals import I64
from spanlite_analytics.tree import Tree

#: Children shown of one span before the rest are folded into a count.
MAX_CHILDREN = 12
#: The parent of the roots.
TOP = -1


@dataclass(frozen=True)
class Line:
    """One line of the picture: a span, or what is folded below `parent`."""

    row: int
    #: For each level above, whether more lines follow at that level; the last is its own.
    more: tuple[bool, ...]
    #: Rows folded into this line; None for the line of a span.
    folded: I64 | None = None
    #: Whether the span has children that are not shown.
    closed: bool = False


def choose(tree: Tree, duration_ns: I64, lines: int | None) -> dict[int, I64]:
    """Children to show of each opened span (key TOP: the roots), by start. None: all of all.

    Spans are opened from the longest down (by their own time or the device time below them,
    whichever is more) until there are `lines` lines.
    """
    weight = np.maximum(duration_ns, tree.device_ns)
    everything = lines is None or len(duration_ns) <= lines
    shown: dict[int, I64] = {}
    used = 0
    heap: list[tuple[int, int]] = [(0, TOP)]
    while heap and (everything or used < (lines or 0)):
        _, row = heapq.heappop(heap)
        children = tree.roots if row == TOP else tree.children(row)
        if not everything:
            children = _longest(children, weight, min(MAX_CHILDREN, (lines or 0) - used))
        shown[row] = children
        used += len(children)
        for child in children.tolist():
            if tree.count[child]:
                heapq.heappush(heap, (-int(weight[child]), child))
    return shown


def _longest(rows: I64, weight: I64, room: int) -> I64:
    if len(rows) <= room:
        return rows
    # Stable, so that of equals the earlier one stays.
    best = np.argsort(-weight[rows], kind="stable")[:room]
    return rows[np.sort(best)]


def lines_of(tree: Tree, shown: dict[int, I64]) -> Iterator[Line]:
    """The lines from top to bottom. No recursion: a trace may be as deep as it likes."""
    stack = list(reversed(_lines_below(tree, shown, TOP, ())))
    while stack:
        line = stack.pop()
        yield line
        if line.folded is None and line.row in shown:
            stack.extend(reversed(_lines_below(tree, shown, line.row, line.more)))


def _lines_below(
    tree: Tree, shown: dict[int, I64], parent: int, more: tuple[bool, ...]
) -> list[Line]:
    rows = shown[parent]
    everyone = tree.roots if parent == TOP else tree.children(parent)
    hidden = np.setdiff1d(everyone, rows)
    last = len(rows) - 1 + (1 if len(hidden) else 0)
    lines = [
        Line(row, (*more, number < last), closed=bool(tree.count[row]) and row not in shown)
        for number, row in enumerate(rows.tolist())
    ]
    if len(hidden):
        lines.append(Line(parent, (*more, False), hidden))
    return lines
