"""The threads that launch: when each call starts, once it is known when its segment does.

A thread runs its calls one after the other. A **segment** is a stretch of them up to a call
that waits for the device; it starts when the call before it has returned. Given that time T,
call j of the segment starts at `max(T + after[j], floor[j])`, all of them at once in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spanlite_replay.recording import Recording
from spanlite_replay.sim.model import GpuModel, Host
from spanlite_replay.work import EdgeKind, Work

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Threads:
    """Times in ns from `Work`'s first start; arrays of shape (spans,), of calls only."""

    segment: I64  # -1: no call
    after: F64
    floor: F64
    took: F64  # as recorded
    cost: F64  # what the call itself takes
    delay: F64  # from what a waiting call waits for to its return
    begins: F64  # of each segment, where it follows none: shape (segments,), else nan
    follows: I64  # the waiting call before each segment, -1 for none
    waits: npt.NDArray[np.bool_]  # calls that wait, shape (spans,)


def threads_of(work: Work, rec: Recording, model: GpuModel, host: Host, base: int) -> Threads:
    """From the plan's calls, thread by thread."""
    calls, bounds = work.launch_order()
    count = len(work)
    start = rec.start_ns[work.row]
    end = start + np.maximum(rec.duration_ns[work.row], 0)
    syncs = work.edges.kind == EdgeKind.SYNC
    waits = np.zeros(count, dtype=np.bool_)
    waits[work.edges.after[syncs]] = True
    cost, delay = _costs(work, start, end, waits, model)
    new = np.zeros(len(calls), dtype=np.bool_)
    new[1:] = waits[calls[:-1]]
    firsts = bounds[:-1][np.diff(bounds) > 0]
    new[firsts] = True
    segment = np.full(count, -1, dtype=np.int64)
    segment[calls] = np.cumsum(new) - 1
    heads = np.flatnonzero(new)
    follows = np.full(len(heads), -1, dtype=np.int64)
    is_first = np.isin(heads, firsts)
    follows[~is_first] = calls[heads[~is_first] - 1]
    due = (work.start_ns - base).astype(np.float64)
    begins = np.where(is_first, due[calls[heads]], np.nan)
    after, floor = np.zeros(count), np.full(count, -np.inf)
    if host == "closed":
        origin = np.where(is_first, start[calls[heads]], end[follows])
        after[calls] = start[calls] - origin[segment[calls]]
    else:
        spent = np.cumsum(cost[calls]) - cost[calls]
        after[calls] = spent - spent[heads][segment[calls]]
        floor[calls] = _no_sooner(due[calls], spent, bounds)
    took = (end - start).astype(np.float64)
    return Threads(segment, after, floor, took, cost, delay, begins, follows, waits)


def _costs(
    work: Work, start: I64, end: I64, waits: npt.NDArray[np.bool_], model: GpuModel
) -> tuple[F64, F64]:
    """(what each call takes by itself, how long after its device work a waiting one returns)."""
    cost = (end - start).astype(np.float64)
    delay = np.zeros(len(work))
    syncs = work.edges.kind == EdgeKind.SYNC
    before, call = work.edges.before[syncs], work.edges.after[syncs]
    latest = np.full(len(work), np.iinfo(np.int64).min)
    np.maximum.at(latest, call, end[before])
    waited = waits & (latest > start)
    cost[waited] = np.minimum(cost[waited], model.sync_ns)
    delay[waited] = np.maximum(end[waited] - latest[waited], 0)
    return cost, delay


def _no_sooner(due: F64, spent: F64, bounds: I64) -> F64:
    """When each call starts if no call waits: at its deadline, or when the one before is done."""
    out = np.empty(len(due))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if first < last:
            lag = np.maximum.accumulate(due[first:last] - spent[first:last])
            out[first:last] = lag + spent[first:last]
    return out


def host_times(
    work: Work, threads: Threads, begins: F64, returned: F64, start: F64, end: F64
) -> None:
    """Write the times of host spans into `start` and `end`, which hold the planned ones.

    Calls by their segment's begin. What else a thread did (ranges, operators, steps) moves
    with the calls around it, so that it still encloses what it enclosed.
    """
    calls, bounds = work.launch_order()
    planned = start.copy(), end.copy()
    begin = begins[threads.segment[calls]]
    known = ~np.isnan(begin)
    mine = calls[known]
    start[mine] = np.maximum(begin[known] + threads.after[mine], threads.floor[mine])
    back = returned[mine]
    end[mine] = np.where(np.isnan(back), start[mine] + threads.cost[mine], back)
    others = np.flatnonzero((work.thread >= 0) & ~work.is_call)
    order = others[np.argsort(work.thread[others], kind="stable")]
    cuts = np.searchsorted(work.thread[order], np.arange(len(bounds)))
    for thread in range(len(bounds) - 1):
        there = order[cuts[thread] : cuts[thread + 1]]
        knots = calls[bounds[thread] : bounds[thread + 1]]
        if len(there) and len(knots):
            _move(there, knots, planned, start, end)


def _move(spans: I64, knots: I64, planned: tuple[F64, F64], start: F64, end: F64) -> None:
    """By as much as the calls around each moment moved."""
    at = np.stack((planned[0][knots], planned[1][knots]), axis=1).reshape(-1)
    by = np.stack((start[knots], end[knots]), axis=1).reshape(-1) - at
    at = np.maximum.accumulate(at)
    for times, was in ((start, planned[0]), (end, planned[1])):
        times[spans] = was[spans] + np.interp(was[spans], at, by)
