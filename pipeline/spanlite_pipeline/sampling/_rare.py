"""The `rare` rule: keep the first few appearances of each kernel name in a minute.

An appearance is a kernel name in one trace of one batch, in the minute in which that kernel
started. Usual kernels use up their share at once; a kernel that runs seldom is always kept,
with its whole trace.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.codec import BatchView
from spanlite.kinds import SpanKind

from spanlite_pipeline.sampling.budget import Budget

MINUTE_NS = 60_000_000_000
Array = npt.NDArray[Any]


def mark(view: BatchView, budget: Budget, limits: list[tuple[int, np.uint64]]) -> Array | None:
    """Bits of the spans that are rare, shape (span_count,), or None where none is.

    `limits` are (appearances a minute, bit), the appearances those of one bucket.
    """
    rows = np.flatnonzero(view.column("kind") == SpanKind.KERNEL)
    if len(rows) == 0:
        return None
    minutes = view.column("start_ns")[rows] // MINUTE_NS
    out: Array | None = None
    for minute in _distinct_minutes(minutes):
        here = (
            rows
            if minutes[0] == minute == minutes[-1] and _one(minutes)
            else rows[minutes == minute]
        )
        found = _mark_minute(view, budget, limits, minute, here)
        if found is not None:
            out = np.zeros(view.count, dtype=np.uint64) if out is None else out
            out[found[0]] |= found[1]
    return out


def _one(minutes: Array) -> bool:
    return bool(minutes.min() == minutes.max())


def _distinct_minutes(minutes: Array) -> list[int]:
    return [int(minutes[0])] if _one(minutes) else [int(m) for m in np.unique(minutes)]


def _mark_minute(
    view: BatchView, budget: Budget, limits: list[tuple[int, np.uint64]], minute: int, rows: Array
) -> tuple[Array, Array] | None:
    names = view.column("name")[rows].astype(np.int64, copy=False)
    most = max(limit for limit, _ in limits)
    counts = np.bincount(names, minlength=len(view.strings))
    wanted = np.zeros(len(counts), dtype=np.int64)
    for index in np.flatnonzero(counts).tolist():
        seen = budget.seen(minute, view.strings[index].as_py())
        if seen < most:
            wanted[index] = most - seen
    if not wanted.any():
        return None
    chosen = rows[wanted[names] > 0]
    return _first_appearances(view, budget, limits, minute, chosen)


def _first_appearances(
    view: BatchView, budget: Budget, limits: list[tuple[int, np.uint64]], minute: int, rows: Array
) -> tuple[Array, Array]:
    """The first row of each (name, trace), ranked within its name, against each limit."""
    names = view.column("name")[rows].astype(np.int64)
    traces = view.trace_index[rows].astype(np.int64)
    _, first = np.unique(names * max(1, len(view.trace_low)) + traces, return_index=True)
    first.sort()
    rows, names = rows[first], names[first]
    order = np.argsort(names, kind="stable")
    _, starts, sizes = np.unique(names[order], return_index=True, return_counts=True)
    rank = np.empty(len(rows), dtype=np.int64)
    rank[order] = np.arange(len(rows)) - np.repeat(starts, sizes)
    seen = np.zeros(len(view.strings), dtype=np.int64)
    for index, size in zip(names[order][starts].tolist(), sizes.tolist(), strict=True):
        name = view.strings[index].as_py()
        seen[index] = budget.seen(minute, name)
        budget.count(minute, name, size)
    rank += seen[names]
    bits = np.zeros(len(rows), dtype=np.uint64)
    for limit, bit in limits:
        bits[rank < limit] |= bit
    return rows, bits
