"""Whatever a target does, every planned event ends in exactly one place."""

from __future__ import annotations

import json
import os
import signal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite_replay.pacing import FakeClock, Paced, Pacing
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording
from spanlite_replay.runner import run_plan
from spanlite_replay.targets.base import Outcome
from spanlite_replay.timing import Timing, drift_us_per_s, rate

MS = 1_000_000
SPACING_MS = 10


def some_plan(count: int, asked: PlanSettings) -> Plan:
    table = pa.table(
        {
            "trace_id": pa.array([f"{i + 1:032x}" for i in range(count)]).dictionary_encode(),
            "span_id": pa.array(range(1, count + 1), pa.int64()),
            "start_ns": pa.array([i * SPACING_MS * MS for i in range(count)], pa.int64()),
            "duration_ns": pa.array([MS] * count, pa.int64()),
            "kind": ["step"] * count,
            "name": ["n"] * count,
            "service": ["s"] * count,
        }
    )
    return build_plan(Recording.from_table(table), asked)


class Picky:
    """Cannot run some events, fails others, and may be interrupted."""

    name = "picky"

    def __init__(self, unsupported: int, failing: int, interrupt_after: int | None, slow_ns: int):
        self.unsupported, self.failing = unsupported, failing
        self.interrupt_after, self.slow_ns = interrupt_after, slow_ns
        self.clock = FakeClock()
        self.events: list[int] = []
        self.drains = 0

    def prepare(self, plan: Plan, events: np.ndarray) -> np.ndarray:
        return events % 7 >= self.unsupported

    def launch(self, events: np.ndarray) -> None:
        self.events += events.tolist()
        self.clock.advance(self.slow_ns)
        if self.interrupt_after is not None and len(self.events) >= self.interrupt_after:
            self.interrupt_after = None
            os.kill(os.getpid(), signal.SIGINT)

    def drain(self) -> Outcome:
        self.drains += 1
        return Outcome(failed=np.array(self.events[: self.failing], dtype=np.int64))


@given(
    st.integers(1, 60),
    st.integers(0, 7),
    st.integers(0, 5),
    st.none() | st.integers(1, 40),
    st.sampled_from(["delay", "drop", "thin"]),
    st.sampled_from([None, Fraction(50), Fraction(1000)]),
    st.sampled_from([None, "burst", "drop", "reanchor"]),
    st.sampled_from([0, 35 * MS]),
)
def test_conservation(
    count: int,
    unsupported: int,
    failing: int,
    interrupt_after: int | None,
    over: str,
    qps: Fraction | None,
    late: str | None,
    slow_ns: int,
) -> None:
    plan = some_plan(count, PlanSettings(qps=qps, over=over, burst=2))  # type: ignore[arg-type]
    target = Picky(unsupported, failing, interrupt_after, slow_ns)
    pacing = None if late is None else Pacing(late, 20 * MS, spin_ns=60_000)  # type: ignore[arg-type]
    report = run_plan(plan, target, pacing, target.clock)
    assert report.closes
    fates = {word: count.events for word, count in report.fates.items()}
    assert fates["launched"] + fates["failed"] == len(target.events)
    assert len(set(target.events)) == len(target.events)
    assert sum(report.dropped_why.values()) == fates["dropped"]
    assert target.drains == 1
    reached = interrupt_after is not None and len(target.events) >= interrupt_after
    assert report.interrupted <= reached
    assert " + ".join(f"{n:,} {word}" for word, n in fates.items()) in report.conservation()
    assert json.loads(report.to_json())["closes"] is True


def test_a_count_that_is_off_shows() -> None:
    report = run_plan(some_plan(3, PlanSettings()), Picky(0, 0, None, 0), None)
    report.fates["launched"] = report.planned.__class__(2, 2)
    assert not report.closes and "≠" in report.conservation()


def test_the_first_deadline_keeps_its_distance_when_the_first_event_is_left_out() -> None:
    target = Picky(1, 0, None, 0)  # event 0 is not supported
    begin = target.clock.time_ns
    run_plan(some_plan(2, PlanSettings()), target, Pacing(spin_ns=60_000), target.clock)
    assert target.events == [1]
    assert target.clock.time_ns - begin >= SPACING_MS * MS


def test_timing_of_a_known_run() -> None:
    due = np.arange(1_001, dtype=np.int64) * MS
    seen = due + 2_000
    seen[500] += 50_000
    timing = Timing.of(due, Paced(seen))
    assert timing is not None
    assert timing.error_p50_us == timing.error_p99_us == 2.0
    assert timing.error_max_us == 52.0
    assert timing.asked_per_s == timing.achieved_per_s == 1000.0
    assert timing.drift_us_per_s == 0.0


def test_drift_is_a_slope_that_stalls_do_not_bend() -> None:
    due = np.arange(100_000, dtype=np.int64) * 100_000  # ten seconds
    error = due // 200_000  # 5 us a second
    assert drift_us_per_s(due, error) == pytest.approx(5.0, rel=1e-3)
    error[20_000:30_000] += 40 * MS
    assert drift_us_per_s(due, error) == pytest.approx(5.0, rel=0.05)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_events_have_no_rate(count: int) -> None:
    assert rate(np.zeros(count, dtype=np.int64)) == 0.0
    assert drift_us_per_s(np.zeros(count, dtype=np.int64), np.zeros(count)) == 0.0
