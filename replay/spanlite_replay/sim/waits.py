"""Waits that no event says: with stream order alone such spans would run too early.

A copy on a stream of its own brings or takes what kernels of other streams use. And where waits
for events were recorded without their events, kernels wait too. What starts long after its
launch, with its stream free, and right behind something that ended on another stream, waits for
that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind

from spanlite_replay.recording import Recording
from spanlite_replay.sim.model import Class, classes, table_devices
from spanlite_replay.work import EdgeKind, Edges, Work

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
#: Launches reach an idle device sooner than this, and what waited starts sooner after its wait.
NEAR_NS = 10_000


def with_untold_waits(work: Work, rec: Recording) -> Work:
    """The work with an inferred edge for each such span; the same where there is none."""
    device, bounds = work.stream_order()
    if work.deps == "observed" or not len(device):
        return work  # what had ended is an edge already
    start = rec.start_ns[work.row]
    end = start + np.maximum(rec.duration_ns[work.row], 0)
    kinds = classes(work, device)
    mine = (kinds == Class.COPY) & (work.kind[device] == SpanKind.MEMCPY)
    if work.waits_unknown:
        mine |= kinds == Class.KERNEL
    mine &= work.launched_by[device] >= 0
    spans = device[mine]
    issued = end[work.launched_by[spans]]
    free = np.maximum(waits_until(work, device, bounds, end)[mine], issued)
    late = spans[start[spans] - free > NEAR_NS]
    before = _last_ended(work, device, start, end, late)
    found = before >= 0
    if not found.any():
        return work
    edges = work.edges
    count = int(found.sum())
    columns = (
        np.concatenate((edges.before, before[found])),
        np.concatenate((edges.after, late[found])),
        np.concatenate((edges.kind, np.full(count, EdgeKind.OBSERVED, np.uint8))),
        np.concatenate((edges.inferred, np.ones(count, np.bool_))),
    )
    order = np.lexsort((columns[2], columns[0], columns[1]))
    return replace(work, edges=Edges(*(column[order] for column in columns)))


def _last_ended(work: Work, device: I64, start: I64, end: I64, late: I64) -> I64:
    """What had ended last on the same GPU before each start, at most NEAR_NS; -1 for nothing."""
    gpu = table_devices(work)
    found = np.full(len(late), -1, np.int64)
    for one in np.unique(gpu[work.stream[late]]):
        there = device[gpu[work.stream[device]] == one]
        there = there[np.argsort(end[there], kind="stable")]
        mine = np.flatnonzero(gpu[work.stream[late]] == one)
        at = np.searchsorted(end[there], start[late[mine]], side="right") - 1
        near = there[np.maximum(at, 0)]
        good = (at >= 0) & (start[late[mine]] - end[near] <= NEAR_NS)
        good &= work.stream[near] != work.stream[late[mine]]
        found[mine[good]] = near[good]
    return found


def waits_until(work: Work, device: I64, bounds: I64, end: I64) -> F64:
    """When all that each span of `device` (in stream order) waits for had ended; -inf: nothing."""
    before = np.full(len(work), -np.inf)
    previous = np.full(len(device), -np.inf)
    previous[1:] = end[device[:-1]]
    previous[bounds[:-1][np.diff(bounds) > 0]] = -np.inf
    before[device] = previous
    edges = work.edges.kind != EdgeKind.SYNC
    np.maximum.at(before, work.edges.after[edges], end[work.edges.before[edges]].astype(float))
    return before[device]
