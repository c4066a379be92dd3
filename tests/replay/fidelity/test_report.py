"""Known perturbations of a replay give the known figures."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spanlite.errors import InputError
from spanlite_replay.fidelity.report import Extras, compare
from spanlite_replay.fidelity.spans import Spans
from spanlite_replay.targets.base import PLAN_DIGEST_KEY

Observe = Callable[..., pa.Table]


def test_an_identical_replay_has_no_error_and_grade_a(recorded: pa.Table, observe: Observe) -> None:
    report = compare(recorded, observe(recorded))
    assert report.grade.letter == "A" and not report.grade.because
    assert report.figures() | {"durations.r": 1.0, "overlap_iou": 1.0} == {
        name: 1.0 if name in ("durations.r", "overlap_iou") else 0.0 for name in report.figures()
    }
    assert report.violations == report.lost == report.repeated == report.unknown == 0
    assert report.order["stream order"].edges == 98
    assert report.order["launches"].edges == 100
    assert report.coverage["all"].count == report.coverage["kernel"].time == 1.0
    assert report.conservation == "100 planned = 100 observed + 0 lost"


def test_a_constant_delay_is_dispatch_and_nothing_else(
    recorded: pa.Table, observe: Observe
) -> None:
    report = compare(recorded, observe(recorded, start=7_000))
    assert report.dispatch.of == "launch calls"
    assert report.dispatch.p50_us == report.dispatch.max_us == 7.0
    assert report.starts.offset_us == 7.0 and report.starts.max_us == 0.0
    assert report.makespan_ms.error == 0.0
    assert report.grade.letter == "A"


def test_longer_kernels(recorded: pa.Table, observe: Observe) -> None:
    spans = Spans.of(recorded)
    longer = np.where(spans.on_device, spans.duration_ns // 10, 0)
    report = compare(recorded, observe(recorded, longer=longer))
    assert report.durations.spans == 100
    assert report.durations.mape_pct == pytest.approx(10)
    assert report.durations.bias_pct == pytest.approx(10)
    assert report.durations.p95_pct == pytest.approx(10)
    assert report.durations.p95_us == pytest.approx(1.2)
    assert report.durations.r == pytest.approx(1)
    assert report.kernels[0].bias_pct == pytest.approx(10)
    # The limit is 1 us for kernels of 8 and 12 us.
    assert report.durations.p95_of_limit == pytest.approx(1.2)
    assert report.grade.letter == "B"
    assert any("duration error" in reason for reason in report.grade.because)


def test_a_slower_clock_shows_as_drift_and_makespan(recorded: pa.Table, observe: Observe) -> None:
    spans = Spans.of(recorded)
    late = (spans.start_ns - spans.start_ns.min()) // 50
    report = compare(recorded, observe(recorded, start=late))
    assert report.starts.drift_us_per_s == pytest.approx(20_000, rel=1e-3)
    assert report.makespan_ms.error == pytest.approx(2, abs=0.05)


def test_lost_repeated_and_unknown_spans_are_counted(
    recorded: pa.Table, observe: Observe, kernel_rows: np.ndarray
) -> None:
    keep = np.ones(len(recorded), bool)
    keep[kernel_rows[1:98:4]] = False
    seen = observe(recorded).filter(pa.array(keep))
    stranger = seen.slice(0, 1).set_column(2, "span_id", pa.array([999_999], pa.uint64()))
    report = compare(
        recorded, pa.concat_tables([seen, seen.slice(1, 3), stranger.cast(seen.schema)])
    )
    assert (report.lost, report.repeated, report.unknown) == (25, 3, 1)
    assert report.coverage["all"].count == 0.75
    assert report.conservation == "100 planned = 75 observed + 25 lost"
    assert report.grade.letter == "D"


def test_nothing_observed_is_grade_f(recorded: pa.Table, observe: Observe) -> None:
    report = compare(recorded, observe(recorded).slice(0, 0))
    assert report.grade.letter == "F" and report.lost == 100
    assert json.loads(report.to_json())["grade"]["because"] == ["nothing of the plan was observed"]


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sets(st.integers(0, 48), max_size=20))
def test_swapped_neighbours_are_counted_exactly(
    recorded: pa.Table, observe: Observe, kernel_rows: np.ndarray, swapped: set[int]
) -> None:
    # Kernel 4k and 4k + 2 follow each other on stream 7; no two swaps touch.
    chosen = [k for k in swapped if 4 * k + 2 < 100]
    start = np.zeros(len(recorded), np.int64)
    for k in chosen:
        start[kernel_rows[4 * k]] = 20_000
        start[kernel_rows[4 * k + 2]] = -20_000
    # Calls early enough that no launch edge is broken.
    start[Spans.of(recorded).thread >= 0] = -100_000
    report = compare(recorded, observe(recorded, start=start))
    assert report.order["stream order"].violations == len(chosen)
    assert report.order["launches"].violations == 0


def test_kernels_that_overlap_where_they_ran_one_by_one(
    recorded: pa.Table, observe: Observe, kernel_rows: np.ndarray
) -> None:
    start = np.zeros(len(recorded), np.int64)
    start[kernel_rows[[2, 22, 42]]] = -8_100  # 100 ns before the end of the one before
    start[kernel_rows[62]] = -8_050  # within the tolerance
    report = compare(recorded, observe(recorded, start=start))
    assert report.order["stream order"].violations == 3


def test_a_kernel_before_its_call_breaks_a_launch(
    recorded: pa.Table, observe: Observe, kernel_rows: np.ndarray
) -> None:
    start = np.zeros(len(recorded), np.int64)
    start[kernel_rows[[1, 50]] - 1] = 6_000  # the calls, after their kernels' starts
    assert compare(recorded, observe(recorded, start=start)).order["launches"].violations == 2


def test_edges_across_streams(
    recorded: pa.Table, observe: Observe, kernel_rows: np.ndarray
) -> None:
    before, after = kernel_rows[1:99:2], kernel_rows[2:100:2]
    edges = Extras(edges=(before, after))
    assert compare(recorded, observe(recorded), edges).order["dependencies"].violations == 0
    start = np.zeros(len(recorded), np.int64)
    start[before[:5]] = 5_000  # ends 3 us after the kernel that waits for it starts
    assert (
        compare(recorded, observe(recorded, start=start), edges).order["dependencies"].violations
        == 5
    )


def test_overlap_by_stream_pair(recorded: pa.Table, observe: Observe) -> None:
    same = compare(recorded, observe(recorded, start=123_456))
    assert [(p.first, p.second, p.iou) for p in same.stream_pairs] == [(7, 8, 1.0)]
    # Kernels of 12 us on stream 7 overlap those after them on stream 8 by 2 us: 1 us later
    # on stream 7 makes it 3.
    late = np.where(Spans.of(recorded).stream == 7, 1_000, 0)
    moved = compare(recorded, observe(recorded, start=late))
    assert moved.overlap_iou == pytest.approx(2 / 3)
    assert moved.stream_pairs[0].planned_ns == 50 * 2_000
    assert moved.stream_pairs[0].observed_ns == 50 * 3_000


def test_idle(recorded: pa.Table, observe: Observe) -> None:
    shorter = np.where(Spans.of(recorded).on_device, -4_000, 0)
    report = compare(recorded, observe(recorded, longer=shorter))
    # Of 20 us each: 12 and 8 us that share 2 us, then 8 and 4 us that share nothing.
    assert report.idle_pct.planned == pytest.approx(10, abs=0.5)
    assert report.idle_pct.observed == pytest.approx(40, abs=0.5)


def test_noise_floor_of_two_runs(recorded: pa.Table, observe: Observe) -> None:
    noisy = np.random.default_rng(3).integers(-500, 500, len(recorded))
    first, second = observe(recorded, start=50_000), observe(recorded, start=50_000 + noisy)
    report = compare(recorded, first, again=second)
    assert report.noise["starts.p99_us"] <= 1.0 and report.noise["starts.p99_us"] > 0.2
    assert report.starts.p99_us == 0.0
    assert report.noise["durations.p95_us"] == 0.0
    assert compare(recorded, first, again=first).noise["starts.p99_us"] == 0.0


def test_noise_floor_of_two_runs_of_the_device_alone(
    recorded: pa.Table, observe: Observe, kernel_rows: np.ndarray
) -> None:
    """A GPU replays no calls: edges name rows that neither run has."""
    part = observe(recorded).take(pa.array(kernel_rows))
    edges = (kernel_rows[:-1], kernel_rows[1:])
    report = compare(recorded, part, Extras(edges=edges), part)
    assert report.noise["makespan_pct"] == 0.0 and report.order["dependencies"].edges == 99


def test_facts_of_the_run(recorded: pa.Table, observe: Observe) -> None:
    seen = observe(recorded).replace_schema_metadata({PLAN_DIGEST_KEY: b"abc"})
    report = compare(recorded, seen, Extras(environment={"gpu": "H200"}))
    assert report.environment == {"plan_digest": "abc", "gpu": "H200"}


def test_a_table_that_is_not_an_observed_one_is_refused(recorded: pa.Table) -> None:
    with pytest.raises(InputError, match="no column trace_id_low"):
        compare(recorded, recorded)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60), st.integers(0, 3)), max_size=40))
def test_overlap_is_what_brute_force_finds(rows: list[tuple[int, int, int]]) -> None:
    from spanlite_replay.fidelity.overlap import overlaps

    start = np.array([row[0] for row in rows], np.int64)
    end = start + np.array([row[1] for row in rows], np.int64)
    track = np.array([row[2] for row in rows], np.int64)
    found = overlaps(track, np.zeros(len(rows), np.int64), start, end)
    expected = {
        (a, b): int(min(end[a], end[b]) - max(start[a], start[b]))
        for a in range(len(rows))
        for b in range(a + 1, len(rows))
        if track[a] != track[b] and min(end[a], end[b]) > max(start[a], start[b])
    }
    pairs = zip(found.low.tolist(), found.high.tolist(), found.ns.tolist(), strict=True)
    assert {(a, b): ns for a, b, ns in pairs} == expected
