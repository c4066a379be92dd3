"""The critical path of a window, walked backwards from its end.

At each point one thing was being waited for: a kernel that ran, a launch on its way, the host
on its way to the next call, a device that the host waited for. The stretches that the walk
finds tile the window from its start to its end without gap or overlap.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from spanlite.kinds import SpanKind

from spanlite_replay.bottlenecks.bounds import Reason, Stretches
from spanlite_replay.bottlenecks.links import WAITS, Links, link
from spanlite_replay.bottlenecks.recorded import Recorded

#: The device goes on within this after what it waited for; healthy gaps are 0.3 to 2 us.
SLACK_NS = 2_500
#: What ended on another stream this shortly before is taken for what was waited for.
NEAR_NS = 10_000
#: Moves without any time passing that are believed.
STALLED = 16

_ON_DEVICE = {
    SpanKind.KERNEL: Reason.KERNEL,
    SpanKind.MEMCPY: Reason.COPY,
    SpanKind.MEMSET: Reason.COPY,
    SpanKind.GRAPH_LAUNCH: Reason.GRAPH,
}
Rows = list[tuple[int, int, int, int, int]]


def critical_paths(rec: Recorded, links: Links | None = None) -> Stretches:
    """Stretches of all windows, each window's in order of time."""
    return Walker(rec, links or link(rec)).all()


class Walker:
    """Walks one window at a time; holds what the recording is as plain lists."""

    def __init__(self, rec: Recorded, links: Links) -> None:
        self.rec, self.links = rec, links
        self.start, self.end = rec.start.tolist(), rec.end.tolist()
        self.kind, self.window = rec.kind.tolist(), rec.window.tolist()
        self.thread = rec.work.thread.tolist()
        self.launches = links.launches.tolist()
        self.waits = [bool(WAITS.search(name)) for name in rec.names]
        self.name: list[int] = rec.name.tolist()
        self.rows: Rows = []

    def all(self) -> Stretches:
        """Every window."""
        windows = self.rec.windows
        last = self._last_device()
        for number in range(len(windows)):
            begin = len(self.rows)
            self._walk(number, last[number])
            self.rows[begin:] = self.rows[begin:][::-1]
        return Stretches.of(self.rows)

    def _last_device(self) -> list[int]:
        """The device span of each window that ended last, -1 for none."""
        rec = self.rec
        device = np.flatnonzero(rec.is_device & (rec.window >= 0))
        device = device[np.argsort(rec.end[device], kind="stable")]
        last = np.full(len(rec.windows), -1, np.int64)
        last[rec.window[device]] = device
        return [int(span) for span in last]

    def _walk(self, number: int, last: int) -> None:
        windows = self.rec.windows
        self.number, self.floor = number, int(windows.start_ns[number])
        thread, until = int(windows.thread[number]), int(windows.end_ns[number])
        if last >= 0 and (self.end[last] >= until or thread < 0):
            self.now, on_device, at = self.end[last], True, last
        else:
            self.now, on_device, at = until, False, thread
        stalled = 0
        while self.now > self.floor:
            before = self.now
            found = self._device(at) if on_device else self._host(at)
            # Spans of 0 ns with odd clocks can wait for each other.
            stalled = 0 if self.now < before else stalled + 1
            if found is None or stalled > STALLED:
                self._to(self.floor, Reason.WAITS_UNKNOWN, at if on_device else -1)
                break
            on_device, at = found

    def _to(self, when: int, reason: Reason, span: int) -> None:
        """Go back to `when`, and say why the time from there to now was spent."""
        when = max(when, self.floor)
        if when < self.now:
            self.rows.append((self.number, when, self.now, int(reason), span))
            self.now = when

    # ---- on the device ---------------------------------------------------------------

    def _device(self, span: int) -> tuple[bool, int] | None:
        own = self.window[span] == self.number
        self._to(self.start[span], self._ran(span) if own else Reason.BEHIND, span)
        if self.now <= self.floor:
            return None
        ahead, call, other = (
            self.links.before[span],
            self.links.launch[span],
            self.links.other[span],
        )
        began = self.now
        free = min(self.end[ahead], began) if ahead >= 0 else -1
        issued = self.start[call] if call >= 0 else -1
        launched = min(issued + self._latency(call), began) if call >= 0 else -1
        if began - max(free, launched) > SLACK_NS and self._follows(span, other, free, launched):
            self._to(min(self.end[other], began), Reason.GAP, span)
            return True, other
        full = self.links.made_room[span]
        if began - max(free, launched) > SLACK_NS and full >= 0 and self.end[full] > free:
            self._to(min(self.end[full], began), Reason.GAP, span)
            return True, full
        if ahead < 0 and call < 0:
            self._to(self.floor, Reason.NO_LAUNCH, span)
            return None
        if launched >= free:
            return self._came_from(span, call, began)
        self._to(free + NEAR_NS, Reason.WAITS_UNKNOWN, span)
        self._to(free, Reason.GAP, span)
        return True, ahead

    def _ran(self, span: int) -> Reason:
        return _ON_DEVICE.get(SpanKind(self.kind[span]), Reason.KERNEL)

    def _follows(self, span: int, other: int, free: int, launched: int) -> bool:
        """Whether the end of `other`, on another stream, is what let the span start."""
        if other < 0 or self.end[other] <= max(free, launched):
            return False
        return self.links.other_known[span] or self.start[span] - self.end[other] <= NEAR_NS

    def _came_from(self, span: int, call: int, began: int) -> tuple[bool, int]:
        latency = self._latency(call)
        back = max(self.end[call], self.start[call] + latency)
        if began - back > 4 * latency:
            self._to(back + latency, Reason.WAITS_UNKNOWN, span)
        self._to(self.start[call], Reason.LAUNCH, span)
        return False, self.thread[call]

    def _latency(self, call: int) -> int:
        return self.links.latency_ns[self.name[call]]

    # ---- on the host -----------------------------------------------------------------

    def _host(self, thread: int) -> tuple[bool, int] | None:
        starts, positions = self.links.calls.get(thread, ([], []))
        place = bisect_left(starts, self.now) - 1
        if place < 0 or self.end[positions[place]] <= self.floor:
            self._to(self.floor, Reason.HOST, -1 if place < 0 else positions[place])
            return None
        call = positions[place]
        self._to(self.end[call], Reason.HOST, call)
        awaited = self.links.waited_for[call]
        if awaited >= 0 and self.start[call] < self.end[awaited] <= self.now:
            self._to(self.end[awaited], Reason.SYNC_RETURN, call)
            return True, awaited
        self._to(self.start[call], self._inside(call), call)
        return False, thread

    def _inside(self, call: int) -> Reason:
        if self.launches[call]:
            return Reason.LAUNCH_CALL
        waits = self.kind[call] == SpanKind.SYNC or self.waits[self.name[call]]
        return Reason.SYNC_NOTHING if waits else Reason.CALL
