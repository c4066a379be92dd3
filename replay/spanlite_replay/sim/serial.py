"""A process that launches from one thread to one stream: no events, running maxima instead.

Between two calls that wait, `start[i] = max(launch[i], end[i - 1] + gap[i])`, which is a running
maximum once the time spent before i is taken off. The result is that of the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spanlite_replay.sim.flat import Ran

if TYPE_CHECKING:
    from spanlite_replay.sim.run import Process

F64 = npt.NDArray[np.float64]
#: With fewer spans a segment, the event loop is as fast.
WORTH_IT = 12


def is_serial(one: Process) -> bool:
    """One stream, one launching thread that does all the waiting, no other edges."""
    p = one.parts
    spans, segments = p.segment[one.spans], p.threads.follows[one.segments]
    if len(np.unique(p.lane[one.spans])) != 1 or len(one.edges(sync=False)[0]):
        return False
    used = np.unique(spans[spans >= 0]) - one.segments.start
    if not len(used) or len(used) * WORTH_IT > len(spans):
        return False
    begins = np.flatnonzero(segments < 0)  # where each thread's segments begin
    thread = np.searchsorted(begins, used, side="right")
    waits = p.threads.segment[p.waiting[one.calls]] - one.segments.start
    waiting = np.searchsorted(begins, waits, side="right")
    launched = spans[spans >= 0]
    return len(np.unique(np.concatenate((thread, waiting)))) == 1 and bool(
        (np.diff(launched) >= 0).all()
    )


def run_serial(one: Process) -> Ran:
    """See the module."""
    p = one.parts
    count = one.spans.stop - one.spans.start
    solo, after, floor = p.solo[one.spans], p.after[one.spans], p.floor[one.spans]
    gap = p.gap[one.spans].copy()
    gap[0] = 0.0
    segment = p.segment[one.spans]
    begins = p.threads.begins[one.segments].copy()
    waiting = p.waiting[one.calls]
    returned = np.zeros(len(waiting))
    span, call = one.edges(sync=True)
    wait_segment = p.threads.segment[waiting]
    # A span whose launch is unknown goes with the one before it, the first ones before all others.
    owner = np.maximum.accumulate(np.where(segment >= 0, segment, one.segments.start))
    spent = np.cumsum(solo) - solo + np.cumsum(gap)
    # A wait may be told of a span that is placed only later: that one holds nothing up.
    start, end, lag = np.empty(count), np.full(count, -np.inf), -np.inf
    following = {int(c): i for i, c in enumerate(p.threads.follows[one.segments]) if c >= 0}
    latest = np.full(len(waiting), -np.inf)
    by_call = np.argsort(call, kind="stable")
    cuts = np.searchsorted(call[by_call], np.arange(len(waiting) + 1))
    calls_of = {int(number): i for i, number in enumerate(wait_segment)}
    bounds = np.searchsorted(owner, np.arange(one.segments.start, one.segments.stop + 1))
    for number in range(len(begins)):
        begin, first, last = begins[number], bounds[number], bounds[number + 1]
        if first < last:
            here = slice(first, last)
            known = segment[here] >= 0
            launch = np.where(known, np.maximum(begin + after[here], floor[here]), floor[here])
            behind = np.maximum.accumulate(np.maximum(launch - spent[here], lag))
            lag = float(behind[-1])
            start[here] = behind + spent[here]
            end[here] = start[here] + solo[here]
        waits = calls_of.get(number + one.segments.start)
        if waits is None:
            continue
        at = waiting[waits]
        told = span[by_call[cuts[waits] : cuts[waits + 1]]]
        latest[waits] = end[told].max() if len(told) else -np.inf
        starts = max(begin + p.threads.after[at], p.threads.floor[at])
        returned[waits] = max(starts + p.threads.cost[at], latest[waits] + p.threads.delay[at])
        if int(at) in following:
            begins[following[int(at)]] = returned[waits]
    return Ran(start, end, returned, begins, 0)
