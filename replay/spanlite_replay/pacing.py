"""Give each event to the target at its deadline: sleep most of the way, spin the rest.

Deadlines are absolute, so an error never adds up. Events that are due together go out
together, so the loop keeps up with any rate that the target takes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from spanlite.errors import UsageError

I64 = npt.NDArray[np.int64]
Late = Literal["burst", "reanchor", "drop"]

#: `observed` of an event that was never dispatched.
NEVER = np.iinfo(np.int64).min
#: Bounds of the spin tail. Below, the kernel's own wake-up is not covered; above, a sleep
#: overshoots because the machine is busy, and who spins then is preempted all the sooner.
MIN_SPIN_NS, MAX_SPIN_NS = 25_000, 400_000
#: The loop wakes at least this often, so that a stop is answered at once.
MAX_SLEEP_NS = 100_000_000
#: How far the loop looks for more due events one by one before it searches.
_NEAR = 32
_PR_SET_TIMERSLACK = 29
#: A look at the clock takes a tenth of this; what takes longer was taken away.
_STALL_NS = 1_500


class Clock(Protocol):
    """Time that only goes forward, and a way to wait. `RealClock` or `FakeClock`."""

    def now_ns(self) -> int:
        """Monotonic time."""
        ...

    def sleep_ns(self, duration_ns: int) -> None:
        """Wait at least about this long; may return late."""
        ...


class RealClock:
    """CLOCK_MONOTONIC."""

    now_ns = staticmethod(time.monotonic_ns)

    def sleep_ns(self, duration_ns: int) -> None:
        """Give the core away for this long."""
        time.sleep(duration_ns / 1e9)


class Stop:
    """A wish to end early. A flag and not an exception, so that it never falls between
    noting that an event is out and sending it."""

    requested = False

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Ctrl-C asks to stop; a second one raises KeyboardInterrupt."""
        if threading.current_thread() is not threading.main_thread():
            yield  # no signal arrives here
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self.requested:
                raise KeyboardInterrupt
            self.requested = True

        before = signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class FakeClock:
    """Time that passes only when it is asked for: `tick_ns` a look, and what is slept.

    `overshoot_ns` is how late each sleep returns.
    """

    def __init__(self, start_ns: int = 0, tick_ns: int = 50, overshoot_ns: int = 0) -> None:
        self.time_ns = start_ns
        self.tick_ns = tick_ns
        self.overshoot_ns = overshoot_ns
        self.slept_ns = 0

    def now_ns(self) -> int:
        """The time, which then moves on by one tick."""
        self.time_ns += self.tick_ns
        return self.time_ns

    def sleep_ns(self, duration_ns: int) -> None:
        """Move on, and a little more."""
        self.time_ns += duration_ns + self.overshoot_ns
        self.slept_ns += duration_ns

    def advance(self, duration_ns: int) -> None:
        """Let time pass, as a slow target does."""
        self.time_ns += duration_ns


@dataclass(frozen=True)
class Pacing:
    """How to keep the deadlines.

    `late` says what happens to events later than `max_catchup_ns`: `burst` sends all at
    once, `reanchor` moves the rest of the plan by the delay, `drop` leaves them out.
    `tolerance_ns`: what is later counts as missed in the report; it is dispatched all the same.
    `spin_ns` None: measured first (see `prepared`). `priority`: ask the scheduler to prefer the
    loop (it needs the right to; without it nothing changes). `cpu`: keep the loop's thread on
    this core.
    """

    late: Late = "burst"
    max_catchup_ns: int = 100_000_000
    spin_ns: int | None = None
    priority: bool = False
    tolerance_ns: int | None = None
    cpu: int | None = None


@dataclass
class Paced:
    """What the loop saw. `observed_ns` has shape (events,): when each was dispatched, on the
    deadlines' time line; NEVER where it was not."""

    observed_ns: I64
    moved_ns: int = 0  # by how much `reanchor` moved the end of the plan
    interrupted: bool = False
    spin_ns: int = 0


def measure_spin(clock: Clock, rounds: int = 40) -> int:
    """A spin tail that covers nearly every late wake-up of a quiet machine, in ns."""
    late = []
    for _ in range(rounds):
        before = clock.now_ns()
        clock.sleep_ns(200_000)
        late.append(clock.now_ns() - before - 200_000)
    late.sort()
    return max(MIN_SPIN_NS, min(MAX_SPIN_NS, 2 * late[int(rounds * 0.95)]))


def quiet_core(trial_ns: int = 40_000_000) -> int:
    """The core that took the least time away from a loop that span on each for `trial_ns`."""
    before = os.sched_getaffinity(0)
    lost = {}
    try:
        for core in sorted(before):
            os.sched_setaffinity(0, {core})
            lost[core] = _lost_ns(trial_ns)
    finally:
        os.sched_setaffinity(0, before)
    return min(lost, key=lambda core: lost[core])


def _lost_ns(trial_ns: int) -> int:
    """How much of this time went by in stretches that no step of the loop explains."""
    now_ns = time.monotonic_ns
    last = now_ns()
    end, lost = last + trial_ns, 0
    while last < end:
        now = now_ns()
        if now - last > _STALL_NS:
            lost += now - last
        last = now
    return lost


def prepared(pacing: Pacing, clock: Clock) -> Pacing:
    """The same with the spin tail measured, so that `pace` begins at once."""
    if pacing.spin_ns is not None:
        return pacing
    with _steady(pacing):
        return replace(pacing, spin_ns=measure_spin(clock))


def pace(
    due_ns: I64,
    launch: Callable[[int, int], None],
    clock: Clock,
    pacing: Pacing,
    origin_ns: int,
    stop: Stop | None = None,
) -> Paced:
    """Call `launch(first, last)` for each run of events that has come due, in order.

    `due_ns` is sorted, shape (events,); the first event is due when the clock reads
    `origin_ns`. Where `stop` is requested, the loop ends before the next event, and the result
    says so. What `launch` raises passes through.
    """
    result = Paced(np.full(len(due_ns), NEVER, dtype=np.int64))
    if not len(due_ns):
        return result
    stop = Stop() if stop is None else stop
    with _steady(pacing):
        result.spin_ns = measure_spin(clock) if pacing.spin_ns is None else pacing.spin_ns
        loop = _Loop(due_ns, launch, clock, pacing, int(due_ns[0]) - origin_ns, result, stop)
        result.interrupted = not loop.run()
    return result


class _Loop:
    """One run of `pace`."""

    def __init__(
        self,
        due_ns: I64,
        launch: Callable[[int, int], None],
        clock: Clock,
        pacing: Pacing,
        shift_ns: int,
        result: Paced,
        stop: Stop,
    ) -> None:
        self.due_ns, self.launch, self.clock, self.pacing = due_ns, launch, clock, pacing
        self.result, self.stop = result, stop
        #: Plan time minus clock time.
        self.shift_ns = shift_ns

    def run(self) -> bool:
        """Until the last event is out; False where it was stopped before."""
        # A memoryview gives a Python int for half the price of a numpy scalar.
        due = np.ascontiguousarray(self.due_ns).data
        seen = self.result.observed_ns.data
        now_ns, launch, count, stop = self.clock.now_ns, self.launch, len(due), self.stop
        limit = None if self.pacing.late == "burst" else self.pacing.max_catchup_ns
        at, shift, spin = 0, self.shift_ns, self.result.spin_ns
        while at < count:
            deadline = due[at]
            now = now_ns() + shift
            if deadline - now > spin:
                now = self._sleep(deadline, now)
            if stop.requested:
                return False
            while now < deadline:
                now = now_ns() + shift
            if limit is not None and now - deadline > limit:
                if self.pacing.late == "drop":
                    at = int(np.searchsorted(self.due_ns, now - limit, side="left"))
                    continue  # the next may not be due yet
                now = self._reanchor(deadline, now)
                shift = self.shift_ns
            last = at + 1
            if last < count and due[last] <= now:
                last = self._due_until(due, last, now, count)
                self.result.observed_ns[at:last] = now
            else:
                seen[at] = now
            launch(at, last)
            at = last
        return True

    def _due_until(self, due: memoryview, last: int, now: int, count: int) -> int:
        """The first event from `last` on that is not due yet: a few by hand, then a search."""
        near = min(last + _NEAR, count)
        while last < near and due[last] <= now:
            last += 1
        if last == near < count and due[last] <= now:
            last = int(np.searchsorted(self.due_ns, now, side="right"))
        return last

    def _sleep(self, deadline: int, now: int) -> int:
        """Return the spin before the deadline, or when asked to stop, with the time."""
        now_ns, shift, spin = self.clock.now_ns, self.shift_ns, self.result.spin_ns
        while (ahead := deadline - now - spin) > 0 and not self.stop.requested:
            self.clock.sleep_ns(min(ahead, MAX_SLEEP_NS))
            now = now_ns() + shift
        return now

    def _reanchor(self, deadline: int, now: int) -> int:
        """Move the rest of the plan by the delay; returns the time as the plan now has it."""
        self.shift_ns -= now - deadline
        self.result.moved_ns += now - deadline
        return deadline


@contextmanager
def _steady(pacing: Pacing) -> Iterator[None]:
    """No garbage collection and no rounding of sleeps while the loop runs."""
    was_enabled = gc.isenabled()
    gc.disable()
    slack = _timer_slack(1)
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    raised = pacing.priority and _set_nice(-20)
    cores = os.sched_getaffinity(0)
    try:
        if pacing.cpu is not None:
            os.sched_setaffinity(0, {check_core(pacing.cpu)})
        yield
    finally:
        if pacing.cpu is not None:
            os.sched_setaffinity(0, cores)
        if raised:
            _set_nice(nice)
        if slack:
            _timer_slack(50_000)
        if was_enabled:
            gc.enable()


def check_core(core: int) -> int:
    """The same. Raises UsageError where this process may not use it."""
    mine = os.sched_getaffinity(0)
    if core not in mine:
        there = ", ".join(map(str, sorted(mine)))
        raise UsageError(f"--cpu {core}: this process may use the cores {there}")
    return core


def _set_nice(nice: int) -> bool:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except OSError:
        return False
    return True


def _timer_slack(slack_ns: int) -> bool:
    """Linux may wake a thread this much later than asked (50 us by default)."""
    try:
        libc = ctypes.CDLL(None)
        return bool(libc.prctl(_PR_SET_TIMERSLACK, slack_ns, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
