"""The pacing loop on a clock that the test holds, and once on the real one."""

from __future__ import annotations

import gc
import os
import signal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite.errors import UsageError
from spanlite_replay.pacing import (
    MAX_SPIN_NS,
    MIN_SPIN_NS,
    NEVER,
    FakeClock,
    Paced,
    Pacing,
    RealClock,
    Stop,
    measure_spin,
    pace,
    quiet_core,
)

BASE = 1_700_000_000_000_000_000
TICK = 50


def deadlines(gaps: list[int]) -> np.ndarray:
    return BASE + np.cumsum(np.array(gaps, dtype=np.int64))


class Recorder:
    """A target whose every launch takes some time."""

    def __init__(self, clock: FakeClock, cost_ns: int = 0) -> None:
        self.clock, self.cost_ns = clock, cost_ns
        self.runs: list[tuple[int, int]] = []

    def __call__(self, first: int, last: int) -> None:
        self.runs.append((first, last))
        self.clock.advance(self.cost_ns)

    @property
    def events(self) -> list[int]:
        return [event for first, last in self.runs for event in range(first, last)]


def run(
    due: np.ndarray, clock: FakeClock, pacing: Pacing, cost_ns: int = 0, stop: Stop | None = None
) -> tuple[Paced, Recorder]:
    recorder = Recorder(clock, cost_ns)
    paced = pace(due, recorder, clock, pacing, clock.time_ns + 1_000_000, stop)
    return paced, recorder


gaps = st.lists(st.sampled_from([0, 1, 40, 999, 50_000, 3_000_000, 700_000_000]), max_size=80)


@given(gaps, st.integers(0, 2_000), st.integers(0, 200_000))
def test_burst_loses_nothing_and_is_never_early(
    steps: list[int], cost_ns: int, overshoot_ns: int
) -> None:
    due = deadlines(steps)
    clock = FakeClock(tick_ns=TICK, overshoot_ns=overshoot_ns)
    paced, recorder = run(due, clock, Pacing(spin_ns=200_000), cost_ns)
    assert recorder.events == list(range(len(due)))
    assert all(first < last for first, last in recorder.runs)
    assert (paced.observed_ns >= due).all()
    assert not paced.interrupted and paced.moved_ns == 0


@given(gaps, st.integers(0, 200_000))
def test_the_spin_tail_hides_a_late_wake_up(steps: list[int], overshoot_ns: int) -> None:
    due = deadlines(steps)
    clock = FakeClock(tick_ns=TICK, overshoot_ns=overshoot_ns)
    paced, _ = run(due, clock, Pacing(spin_ns=200_000))
    # Each event costs the loop two looks at the clock at most.
    assert (paced.observed_ns - due <= 2 * TICK * (len(due) + 1)).all()
    apart = np.diff(due, prepend=BASE) > 10 * TICK
    assert (paced.observed_ns - due)[apart].max(initial=0) <= 2 * TICK


def test_a_short_spin_does_not() -> None:
    due = deadlines([0, 10_000_000])
    clock = FakeClock(tick_ns=TICK, overshoot_ns=200_000)
    paced, _ = run(due, clock, Pacing(spin_ns=50_000))
    assert paced.observed_ns[1] - due[1] > 100_000


def test_errors_do_not_add_up() -> None:
    due = BASE + np.arange(10_000, dtype=np.int64) * 100_003
    paced, _ = run(due, FakeClock(overshoot_ns=30_000), Pacing(spin_ns=60_000), cost_ns=70_000)
    error = paced.observed_ns - due
    assert error[-1000:].max() <= error[:1000].max() + 2 * TICK


def test_events_due_together_go_out_together() -> None:
    due = np.sort(np.concatenate([np.full(5_000, BASE), np.full(5_000, BASE + 10_000_000)]))
    _, recorder = run(due, FakeClock(), Pacing(spin_ns=60_000))
    assert recorder.runs == [(0, 5_000), (5_000, 10_000)]


def test_sleeps_rather_than_spins_through_long_gaps() -> None:
    clock = FakeClock()
    run(deadlines([0, 10_000_000_000]), clock, Pacing(spin_ns=60_000))
    assert clock.slept_ns > 9_990_000_000


def test_late_drop_leaves_out_only_what_is_too_late() -> None:
    due = deadlines([0, 10, 10, 500_000, 1_000_000, 5_000_000])
    pacing = Pacing("drop", max_catchup_ns=1_000_000, spin_ns=60_000)
    paced, recorder = run(due, FakeClock(), pacing, cost_ns=2_000_000)
    dropped = paced.observed_ns == NEVER
    assert dropped.any() and not dropped.all()
    assert recorder.events == np.flatnonzero(~dropped).tolist()
    assert (paced.observed_ns - due)[~dropped].max() <= 1_000_000 + 2 * TICK


@given(gaps, st.integers(0, 2_000_000), st.integers(0, 5_000_000), st.integers(1_000, 3_000_000))
def test_drop_sends_nothing_early_nor_later_than_the_limit(
    steps: list[int], cost_ns: int, overshoot_ns: int, limit_ns: int
) -> None:
    due = deadlines(steps)
    clock = FakeClock(tick_ns=TICK, overshoot_ns=overshoot_ns)
    pacing = Pacing("drop", max_catchup_ns=limit_ns, spin_ns=60_000)
    paced, recorder = run(due, clock, pacing, cost_ns)
    went = paced.observed_ns != NEVER
    error = (paced.observed_ns - due)[went]
    assert recorder.events == np.flatnonzero(went).tolist()
    assert (error >= 0).all() and (error <= limit_ns).all()
    if cost_ns + TICK * 4 < limit_ns and overshoot_ns < min(60_000, limit_ns):
        apart = np.diff(due, prepend=BASE - 1) > 2 * cost_ns + 10 * TICK
        assert went[apart].all()  # what need not be late is not dropped


@given(gaps, st.integers(0, 2_000_000), st.integers(0, 5_000_000), st.integers(1_000, 3_000_000))
def test_reanchor_loses_nothing_and_shortens_no_gap_by_more_than_the_limit(
    steps: list[int], cost_ns: int, overshoot_ns: int, limit_ns: int
) -> None:
    due = deadlines(steps)
    clock = FakeClock(tick_ns=TICK, overshoot_ns=overshoot_ns)
    begin = clock.time_ns + 1_000_000
    times: dict[int, int] = {}

    def launch(first: int, last: int) -> None:
        times.update(dict.fromkeys(range(first, last), clock.time_ns))
        clock.advance(cost_ns)

    pacing = Pacing("reanchor", max_catchup_ns=limit_ns, spin_ns=60_000)
    paced = pace(due, launch, clock, pacing, begin)
    assert sorted(times) == list(range(len(due)))
    error = paced.observed_ns - due
    assert (error >= 0).all() and (error <= limit_ns).all()
    if len(due):
        sent = np.array([times[event] for event in range(len(due))])
        assert (np.diff(sent) >= np.diff(due) - limit_ns - TICK).all()
        assert paced.moved_ns >= sent[-1] - begin - (due[-1] - due[0]) - limit_ns - TICK


def test_drop_waits_for_the_next_that_is_not_due_yet() -> None:
    due = deadlines([0, 1_000_000, 50_000_000])
    pacing = Pacing("drop", max_catchup_ns=100_000, spin_ns=60_000)
    paced, recorder = run(due, FakeClock(), pacing, cost_ns=10_000_000)
    assert recorder.events == [0, 2]
    assert 0 <= paced.observed_ns[2] - due[2] <= 2 * TICK


def test_a_core_is_kept_and_given_back() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    seen: list[set[int]] = []
    pacing = Pacing(spin_ns=0, cpu=core)
    pace(deadlines([0]), lambda a, b: seen.append(os.sched_getaffinity(0)), FakeClock(), pacing, 0)
    assert seen == [{core}] and os.sched_getaffinity(0) == before
    with pytest.raises(UsageError, match="--cpu 4000"):
        pace(deadlines([0]), lambda a, b: None, FakeClock(), Pacing(spin_ns=0, cpu=4000), 0)
    assert os.sched_getaffinity(0) == before


def test_the_quietest_core_is_one_of_ours() -> None:
    before = os.sched_getaffinity(0)
    assert quiet_core(1_000_000) in before and os.sched_getaffinity(0) == before


def test_late_reanchor_moves_the_rest_and_keeps_its_gaps() -> None:
    due = deadlines([0] + [1_000_000] * 9)
    clock = FakeClock()
    recorder = Recorder(clock)

    def launch(first: int, last: int) -> None:
        recorder(first, last)
        if first == 3:
            clock.advance(50_000_000)

    pacing = Pacing("reanchor", max_catchup_ns=5_000_000, spin_ns=60_000)
    begin = clock.time_ns + 1_000_000
    paced = pace(due, launch, clock, pacing, begin)
    assert recorder.events == list(range(10))
    assert 48_000_000 < paced.moved_ns < 50_000_000
    assert np.abs(np.diff(paced.observed_ns)[4:] - 1_000_000).max() <= 4 * TICK


@given(st.integers(0, 30), st.sampled_from(["burst", "reanchor", "drop"]))
def test_a_stop_ends_between_two_events(after: int, late: str) -> None:
    due = deadlines([1_000_000] * 20)
    clock, stop = FakeClock(), Stop()
    recorder = Recorder(clock)

    def launch(first: int, last: int) -> None:
        recorder(first, last)
        stop.requested = last >= after

    paced = pace(due, launch, clock, Pacing(late, spin_ns=60_000), 1_000_000, stop)  # type: ignore[arg-type]
    assert recorder.events == np.flatnonzero(paced.observed_ns != NEVER).tolist()
    assert len(recorder.events) == min(max(after, 1), 20)
    assert paced.interrupted == (len(recorder.events) < 20)


def test_an_empty_plan() -> None:
    paced, recorder = run(np.empty(0, dtype=np.int64), FakeClock(), Pacing(spin_ns=0))
    assert len(paced.observed_ns) == 0 and recorder.runs == []


def test_what_launch_raises_comes_through_and_collection_is_back_on() -> None:
    def launch(first: int, last: int) -> None:
        raise ValueError("no")

    assert gc.isenabled()
    with pytest.raises(ValueError, match="no"):
        pace(deadlines([0]), launch, FakeClock(), Pacing(spin_ns=0), 0)
    assert gc.isenabled()


def test_first_interrupt_asks_and_second_insists() -> None:
    stop = Stop()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stop.on_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("overshoot_ns", [0, 300_000, 10_000_000])
def test_the_spin_covers_what_was_measured_within_bounds(overshoot_ns: int) -> None:
    spin_ns = measure_spin(FakeClock(overshoot_ns=overshoot_ns))
    assert MIN_SPIN_NS <= spin_ns <= MAX_SPIN_NS
    assert spin_ns >= min(overshoot_ns, MAX_SPIN_NS)


def test_on_the_real_clock_nothing_is_lost_or_early() -> None:
    due = BASE + np.arange(3_000, dtype=np.int64) * 50_000
    runs: list[tuple[int, int]] = []
    clock = RealClock()
    origin = clock.now_ns() + 5_000_000
    paced = pace(due, lambda a, b: runs.append((a, b)), clock, Pacing(), origin)
    assert [event for a, b in runs for event in range(a, b)] == list(range(3_000))
    assert (paced.observed_ns >= due).all()
    assert clock.now_ns() - origin >= int(due[-1] - due[0])
