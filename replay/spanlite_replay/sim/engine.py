"""The event loop: spans of one process start and end, waiting calls return.

Kernels that run side by side all progress at one pace, `1 / slowdown`. So their ends are kept
in **virtual time**, which advances at that pace: a change of pace moves none of them.

engine.cpp holds the same loop once more; a change here is a change there.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush

import numpy as np

from spanlite_replay.sim.flat import Flat, Program, Ran

#: Room counts as full from here on; sums of shares are not exact.
FULL = 1.0 - 1e-9


def run(flat: Flat) -> Ran:
    """Run it to the end. What waits for itself (clock anomalies) is let go, and counted."""
    p = Program.of(flat)
    count = len(p.solo)
    start, end = [-1.0] * count, [0.0] * count
    segment, after, floor, gap = p.segment, p.after, p.floor, p.gap
    solo, engine, room, then, wakes = p.solo, p.engine, p.room, p.then, p.wakes
    pending, pace, begins = p.waiting_for, p.pace, p.begins
    parked: dict[int, list[int]] = {}  # spans whose segment has not begun
    calls = _Calls(p, parked)
    ready: list[tuple[float, int]] = []  # (when, span), or (when, span + count) as it ends
    running: list[tuple[float, int]] = []  # (virtual end, kernel)
    full: deque[int] = deque()
    free = [0.0, 0.0, 0.0, 0.0]  # when each copy engine is
    now = virtual = held = 0.0
    slow, kernels, given_up, alive = 1.0, 0, 0, count
    limit = len(pace) - 1

    def launch(spans: list[int], now: float) -> None:
        """Let them go that wait for nothing more."""
        for span in spans:
            number, when = segment[span], floor[span]
            if number >= 0:
                begin = begins[number]
                if begin is None:
                    parked.setdefault(number, []).append(span)
                    continue
                when = max(when, begin + after[span])
            heappush(ready, (max(when, now + gap[span]), span))

    launch(calls.begin_known(), now)
    launch([span for span in range(count) if not pending[span]], now)
    # The loop is written out, not split up: it runs twice for every span.
    while True:
        if running and (
            not ready or now + (running[0][0] - virtual) * slow <= ready[0][0]
        ):  # the next event is the end of a kernel
            target = running[0][0]
            now += (target - virtual) * slow
            virtual, span = heappop(running)
            kernels -= 1
            held = held - room[span] if kernels else 0.0
            slow = pace[kernels] if kernels < limit else pace[limit]
            if held > slow:
                slow = held
            if full and held < FULL:
                heappush(ready, (now, full.popleft()))
        elif ready:
            when, span = heappop(ready)
            if kernels:
                virtual += (when - now) / slow
            now = when
            if span < count:  # it starts
                kind = engine[span]
                if not kind:
                    if held >= FULL and kernels:
                        full.append(span)
                        continue
                    start[span] = now
                    if kernels or full or (ready and ready[0][0] < now + solo[span]):
                        kernels += 1
                        held += room[span]
                        slow = pace[kernels] if kernels < limit else pace[limit]
                        if held > slow:
                            slow = held
                        heappush(running, (virtual + solo[span], span))
                        if full and held < FULL:
                            heappush(ready, (now, full.popleft()))
                        continue
                    now += solo[span]  # alone to its end
                else:
                    if kind > 1:
                        if free[kind] > now:
                            heappush(ready, (free[kind], span))
                            continue
                        free[kind] = now + solo[span]
                    start[span] = now
                    heappush(ready, (now + solo[span], span + count))
                    continue
            else:
                span -= count
        elif alive:
            given_up += 1
            launch(calls.let_go(start, now), now)
            continue
        else:
            break
        end[span] = now
        alive -= 1
        for other in then[span]:
            left = pending[other] = pending[other] - 1
            if not left:
                number = segment[other]
                when = floor[other]
                if number >= 0:
                    begin = begins[number]
                    if begin is None:
                        parked.setdefault(number, []).append(other)
                        continue
                    begin += after[other]
                    if begin > when:
                        when = begin
                soonest = now + gap[other]
                heappush(ready, (when if when > soonest else soonest, other))
        if span in wakes:
            launch(calls.wake(wakes[span], now), now)
    known = np.array([math.nan if begin is None else begin for begin in begins], np.float64)
    return Ran(np.array(start), np.array(end), np.array(calls.returned), known, given_up)


class _Calls:
    """Waiting calls, and the segments that begin as they return."""

    def __init__(self, program: Program, parked: dict[int, list[int]]) -> None:
        self._p, self._parked = program, parked
        self.returned = [0.0] * len(program.call_cost)
        self._next = 0  # place in `by_plan`: what comes before has started

    def begin_known(self) -> list[int]:
        """Segments whose begin is known from the outset. Returns what is free to go."""
        freed: list[int] = []
        for number, begin in enumerate(list(self._p.begins)):
            if begin is not None:
                freed += self._begin(number, begin)
        return freed

    def wake(self, calls: list[int], now: float) -> list[int]:
        """One span that these calls wait for has ended. Returns the spans that are free to go."""
        p, freed = self._p, []
        for call in calls:
            p.call_waits[call] -= 1
            begin = p.begins[p.call_segment[call]]
            if not p.call_waits[call] and begin is not None:
                freed += self._return(call, begin, now)
        return freed

    def _begin(self, number: int, begin: float) -> list[int]:
        self._p.begins[number] = begin
        freed = self._parked.pop(number, [])
        call = self._p.last_call[number]
        if call >= 0 and not self._p.call_waits[call]:
            freed = freed + self._return(call, begin, -1.0)
        return freed

    def _return(self, call: int, begin: float, now: float) -> list[int]:
        """The call returns: it has begun, and what it waited for ended at `now`."""
        p = self._p
        starts = max(begin + p.call_after[call], p.call_floor[call])
        self.returned[call] = max(starts + p.call_cost[call], now + p.call_delay[call])
        number = p.call_next[call]
        return self._begin(number, self.returned[call]) if number >= 0 else []

    def let_go(self, start: list[float], now: float) -> list[int]:
        """Nothing can go on: the next span of the plan goes, whatever it waits for."""
        p = self._p
        while start[p.by_plan[self._next]] >= 0:
            self._next += 1
        span = p.by_plan[self._next]
        number = p.segment[span]
        if number >= 0 and p.begins[number] is None:
            freed = self._begin(number, now)
            return freed if not p.waiting_for[span] else [*freed, self._free(span)]
        return [self._free(span)]

    def _free(self, span: int) -> int:
        self._p.waiting_for[span] = 0
        return span
