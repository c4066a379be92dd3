"""What each stretch was about, by name; and the profiler's own share of it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from spanlite.kinds import SpanKind

from spanlite_replay.bottlenecks.bounds import BOUND_OF, I64, Bound, Reason, Stretches
from spanlite_replay.bottlenecks.kernels import joined
from spanlite_replay.bottlenecks.recorded import BOOL, DEEPEST, Recorded

#: CUPTI calls these overhead, but the application would pay for them without a profiler too.
_LOADING = re.compile(r"loading", re.IGNORECASE)
#: Kineto names no process for its own work; a file of it is of one process.
EVERYBODY = -1
_HOST_KINDS = (SpanKind.OPERATOR, SpanKind.NVTX_RANGE, SpanKind.HOST, SpanKind.STEP)


def innermost(rec: Recorded, stretches: Stretches) -> I64:
    """For stretches of a host between calls: the operator or range around its middle; else
    the stretch's own span. Positions, -1 for none. Shape (stretches,)."""
    about = stretches.span.copy()
    host = np.flatnonzero(stretches.reason == Reason.HOST)
    call = stretches.span[host]
    thread = rec.windows.thread[stretches.window[host]]
    thread = np.where(call >= 0, rec.work.thread[np.maximum(call, 0)], thread)
    middle = (stretches.start_ns[host] + stretches.end_ns[host]) // 2
    ranges = np.isin(rec.kind, _HOST_KINDS)
    for one in np.unique(thread):
        mine = np.flatnonzero(ranges & (rec.work.thread == one))  # positions are by start
        rows = np.flatnonzero(thread == one)
        at = np.searchsorted(rec.start[mine], middle[rows], side="right") - 1
        found = mine[np.maximum(at, 0)] if len(mine) else np.full(len(rows), -1)
        found = np.where(at >= 0, found, -1)
        for _ in range(DEEPEST):
            over = (found >= 0) & (rec.end[np.maximum(found, 0)] < middle[rows])
            if not over.any():
                break
            found[over] = rec.parent[found[over]]
        about[host[rows]] = found
    return about


def split_overhead(stretches: Stretches, rec: Recorded) -> Stretches:
    """Cut out of host, launch, sync and unexplained time what the profiler itself took."""
    overhead = np.flatnonzero(rec.kind == SpanKind.OVERHEAD)
    if not len(overhead):
        return stretches
    loading = np.array([bool(_LOADING.search(name)) for name in rec.names])[rec.name[overhead]]
    home = rec.process[overhead]
    home[rec.recording.is_null("process_id", rec.work.row[overhead])] = EVERYBODY
    for reason, chosen in ((Reason.MEASURING, ~loading), (Reason.LOADING, loading)):
        for one in np.unique(home[chosen]):
            rows = overhead[chosen & (home == one)]
            edges = _union_edges(rec.start[rows], rec.end[rows])
            process = rec.windows.process[stretches.window]
            stretches = _cut(stretches, edges, (process == one) | (one == EVERYBODY), reason)
    return stretches


def _union_edges(start: I64, end: I64) -> I64:
    """Begins and ends of the union of intervals, in turn."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.ones(len(start), np.bool_)
    first[1:] = start[1:] > end[:-1]
    last = np.append(first[1:], True)
    return np.asarray(np.stack((start[first], end[last]), 1).ravel(), np.int64)


def _cut(stretches: Stretches, edges: I64, eligible: BOOL, reason: Reason) -> Stretches:
    bounds = (Bound.HOST, Bound.LAUNCH, Bound.SYNC, Bound.UNEXPLAINED)
    wanted = eligible & np.isin(stretches.bound, bounds)
    first = np.searchsorted(edges, stretches.start_ns, side="right")
    last = np.searchsorted(edges, stretches.end_ns, side="left")
    pieces = np.where(wanted, np.maximum(last - first, 0) + 1, 1)
    row = np.repeat(np.arange(len(stretches)), pieces)
    inside = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    edge = first[row] + inside
    padded = np.append(edges, np.iinfo(np.int64).max)
    start = np.where(inside == 0, stretches.start_ns[row], padded[np.maximum(edge - 1, 0)])
    end = np.where(inside == pieces[row] - 1, stretches.end_ns[row], padded[edge])
    taken = wanted[row] & (edge % 2 == 1)
    # A launch that loads a module is not the profiler's, and one that is cut stays what it was.
    cut = Stretches(
        stretches.window[row],
        start,
        end,
        np.where(taken, int(reason), stretches.reason[row]),
        np.where(taken, int(BOUND_OF[reason]), stretches.bound[row]),
        stretches.span[row],
    )
    some = cut.ns > 0
    columns = {name: getattr(cut, name)[some] for name in cut.__dataclass_fields__}
    return joined([replace(cut, **columns)])
