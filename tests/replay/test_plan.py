"""Plans: the order of the transforms, whole traces, and the same plan every time."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite.errors import UsageError
from spanlite_replay import transforms as tf
from spanlite_replay.looping import repeat
from spanlite_replay.plan import Fate, Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording

HOUR = 1_796_108_400_000_000_000
MS = 1_000_000


def recording(rows: list[tuple[int, int, int, str]], order: list[int] | None = None) -> Recording:
    """From (trace, start in ms, duration in ms, kind); span ids count from 1."""
    table = pa.table(
        {
            "trace_id": pa.array([f"{row[0]:032x}" for row in rows]).dictionary_encode(),
            "span_id": pa.array(range(1, len(rows) + 1), pa.int64()),
            "start_ns": pa.array([HOUR + row[1] * MS for row in rows], pa.int64()),
            "duration_ns": pa.array([row[2] * MS for row in rows], pa.int64()),
            "kind": [row[3] for row in rows],
            "name": ["n"] * len(rows),
            "service": ["s"] * len(rows),
        }
    )
    return Recording.from_table(table if order is None else table.take(pa.array(order)))


def due_ms(plan: Plan) -> list[float]:
    return ((plan.due_ns - HOUR) / MS).tolist()


rows = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.integers(0, 20_000),
        st.integers(0, 500),
        st.sampled_from(["kernel", "step", "request"]),
    ),
    min_size=1,
    max_size=40,
)
plan_settings = st.builds(
    PlanSettings,
    unit=st.sampled_from(["span", "trace"]),
    sample=st.sampled_from([Fraction(1), Fraction(1, 2)]),
    seed=st.integers(0, 5),
    max_gap_ns=st.sampled_from([None, 0, 10 * MS, 3_000 * MS]),
    speed=st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 3), Fraction(7, 5)]),
    start_at_ns=st.sampled_from([None, 0, HOUR * 2]),
    qps=st.sampled_from([None, Fraction(1), Fraction(1, 2), Fraction(30)]),
    over=st.sampled_from(["delay", "drop", "thin"]),
    burst=st.sampled_from([None, 1, 3]),
)


def build(rec: Recording, asked: PlanSettings) -> Plan | None:
    try:
        return build_plan(rec, asked)
    except UsageError:
        return None  # the sample kept nothing


@given(rows, plan_settings)
def test_deadlines_are_sorted_and_traces_whole(
    spec: list[tuple[int, int, int, str]], asked: PlanSettings
) -> None:
    rec = recording(spec)
    plan = build(rec, asked)
    if plan is None:
        return
    assert (np.diff(plan.due_ns) >= 0).all()
    assert (plan.duration_ns >= 0).all()
    kept = plan.recording
    for trace in range(kept.traces):
        mine = plan.trace == trace
        # A trace shares one fate, and has all the spans that it had.
        assert len(set(plan.fate[mine].tolist())) == 1
        number = int(kept.trace_low[trace])
        assert plan.spans[mine].sum() == sum(row[0] == number for row in spec)
    assert plan.size.spans + plan.spans_sampled_out == len(spec)
    if asked.start_at_ns is not None:
        assert plan.due_ns[0] == asked.start_at_ns


@given(rows, plan_settings)
def test_the_rate_holds_for_what_is_left(
    spec: list[tuple[int, int, int, str]], asked: PlanSettings
) -> None:
    plan = build(recording(spec), asked)
    if plan is None or asked.qps is None:
        return
    left = plan.fate == Fate.PLANNED
    _, first = np.unique(plan.trace[left], return_index=True)
    arrivals = np.sort(plan.due_ns[left][first])
    window = tf.rate_window(asked.qps, asked.burst_size)
    assert not tf.exceeds(arrivals, min(asked.burst_size, len(arrivals)), int(window))
    assert left.any()
    lost = set(np.unique(plan.fate).tolist()) - {Fate.PLANNED}
    assert lost <= {{"drop": Fate.DROPPED, "thin": Fate.THINNED}.get(asked.over)}


@given(rows, plan_settings, st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_of_rows(
    spec: list[tuple[int, int, int, str]], asked: PlanSettings, random: Any
) -> None:
    order = list(range(len(spec)))
    random.shuffle(order)
    one, two = build(recording(spec), asked), build(recording(spec, order), asked)
    assert (one is None) == (two is None)
    if one is not None and two is not None:
        assert one.digest() == two.digest()


@given(rows, st.sampled_from([Fraction(2), Fraction(1, 3), Fraction(7, 5)]))
def test_children_stay_within_their_parents(
    spec: list[tuple[int, int, int, str]], speed: Fraction
) -> None:
    rec = recording(spec)
    plan = build_plan(rec, PlanSettings(speed=speed, max_gap_ns=5 * MS))
    start, end = plan.due_ns, plan.due_ns + plan.duration_ns
    old_start = plan.recorded_ns
    old_end = old_start + rec.duration_ns[plan.row]
    inside = (old_start[:, None] <= old_start) & (old_end[:, None] >= old_end)
    assert (start[:, None] <= start)[inside].all()
    assert (end[:, None] >= end)[inside].all()


@given(rows)
@settings(max_examples=30)
def test_traces_as_a_whole_keep_their_inside(spec: list[tuple[int, int, int, str]]) -> None:
    rec = recording(spec)
    plan = build_plan(rec, PlanSettings(unit="trace", speed=Fraction(2), start_at_ns=HOUR))
    event, row, start_ns, duration_ns = plan.span_rows(np.arange(len(plan)))
    assert sorted(row.tolist()) == list(range(len(spec)))
    assert (duration_ns == rec.duration_ns[row]).all()
    moved = start_ns - rec.start_ns[row]
    for number in range(len(plan)):
        assert len(set(moved[event == number].tolist())) == 1
        assert start_ns[event == number].min() == plan.due_ns[number]


def test_the_order_of_the_transforms() -> None:
    # Idle 900 ms are cut to 100 before the speed halves them: 10 + 100 -> 55, and not
    # 10 + 900 -> 455 -> 105. The rate counts after the speed: 20 a second is 50 ms apart.
    rec = recording([(1, 0, 10, "step"), (2, 910, 10, "step")])
    asked = PlanSettings(max_gap_ns=100 * MS, speed=Fraction(2))
    assert due_ms(build_plan(rec, asked)) == [0, 55]
    assert due_ms(build_plan(rec, replace(asked, qps=Fraction(20)))) == [0, 55]
    assert due_ms(build_plan(rec, replace(asked, qps=Fraction(10)))) == [0, 100]
    shifted = replace(asked, qps=Fraction(10), start_at_ns=HOUR + 1000 * MS)
    assert due_ms(build_plan(rec, shifted)) == [1000, 1100]


def test_the_sample_comes_before_the_gap_cap() -> None:
    rec = recording([(trace, trace * 100, 100, "step") for trace in range(1, 41)])
    plan = build_plan(rec, PlanSettings(sample=Fraction(1, 2), max_gap_ns=0))
    # What was left out leaves a gap, and the gap is gone.
    assert 0 < len(plan) < 40
    assert np.diff(plan.due_ns).tolist() == [100 * MS] * (len(plan) - 1)


def test_a_delayed_trace_moves_as_one() -> None:
    rec = recording(
        [(1, 0, 5, "step"), (2, 1, 5, "step"), (1, 2, 1, "kernel"), (2, 3, 1, "kernel")]
    )
    plan = build_plan(rec, PlanSettings(qps=Fraction(1)))
    assert due_ms(plan) == [0, 2, 1000, 1002]
    assert plan.trace.tolist() == [0, 0, 1, 1]


def test_requests_are_due_when_the_request_starts() -> None:
    rec = recording(
        [(1, 0, 1, "kernel"), (2, 5, 9, "host"), (2, 7, 5, "request"), (2, 8, 1, "kernel")]
    )
    plan = build_plan(rec, PlanSettings(unit="request"))
    assert due_ms(plan) == [7]
    assert plan.spans.tolist() == [3] and plan.spans_not_of_unit == 1
    _, row, start_ns, _ = plan.span_rows(np.array([0]))
    assert row.tolist() == [1, 2, 3]
    assert ((start_ns - HOUR) // MS).tolist() == [5, 7, 8]


def test_without_a_request_there_is_nothing_to_ask() -> None:
    with pytest.raises(UsageError, match="--unit span"):
        build_plan(recording([(1, 0, 1, "kernel")]), PlanSettings(unit="request"))


def test_an_empty_sample_says_so() -> None:
    with pytest.raises(UsageError, match="keeps none of 1 traces"):
        build_plan(recording([(1, 0, 1, "kernel")]), PlanSettings(sample=Fraction(1, 10**9)))


def test_other_seeds_sample_other_traces() -> None:
    rec = recording([(trace, trace, 1, "step") for trace in range(1, 65)])
    digests = {
        build_plan(rec, PlanSettings(sample=Fraction(1, 2), seed=seed)).digest()
        for seed in range(8)
    }
    assert len(digests) == 8


@given(rows, st.integers(2, 4))
@settings(max_examples=30)
def test_a_loop_plays_the_window_again_with_ids_of_its_own(
    spec: list[tuple[int, int, int, str]], rounds: int
) -> None:
    once = build_plan(recording(spec), PlanSettings())
    plan = build_plan(recording(spec), PlanSettings(loop=rounds))
    assert plan.recording.traces == rounds * once.recording.traces
    assert len(plan) == rounds * len(once) and plan.spans_sampled_out == 0
    keys = {
        (int(plan.trace[i]), int(plan.recording.span_id[plan.row[i]])) for i in range(len(plan))
    }
    assert len(keys) == len(plan)
    end = max(start + length for _, start, length, _ in spec)
    period = (end - min(start for _, start, _, _ in spec)) * MS
    first: dict[int, int] = {}
    for trace, start, _, _ in spec:
        first[trace] = min(start * MS, first.get(trace, start * MS))
    if len(first) > 1:  # arrivals keep their rate across the seam
        spread = max(first.values()) - min(first.values())
        period = max(period, spread + spread // (len(first) - 1))
    every = sorted(int(due) + number * period for due in once.due_ns for number in range(rounds))
    assert plan.due_ns.tolist() == every


def test_parents_and_links_stay_within_a_round() -> None:
    links = [[{"trace_id": f"{2:032x}", "span_id": 2}], None, []]
    table = recording([(1, 0, 5, "step"), (2, 0, 9, "request"), (1, 1, 1, "kernel")]).table
    table = table.append_column("parent_span_id", pa.array([None, None, 1], pa.int64()))
    kind = pa.list_(pa.struct([("trace_id", pa.string()), ("span_id", pa.int64())]))
    table = table.append_column("links", pa.array(links, kind))
    made = repeat(Recording.from_table(table), 3).table.to_pylist()
    for number in range(3):
        step, request, kernel = made[3 * number : 3 * number + 3]
        assert kernel["parent_span_id"] == step["span_id"] and step["parent_span_id"] is None
        assert step["links"] == [{"trace_id": request["trace_id"], "span_id": request["span_id"]}]
        assert request["links"] is None and kernel["links"] == []


@given(rows, st.sampled_from(["delay", "drop", "thin"]), st.sampled_from([1, 3]))
def test_each_service_has_its_own_rate(
    spec: list[tuple[int, int, int, str]], over: Any, burst: int
) -> None:
    rec = recording(spec)
    words = pa.array([f"s{row[0] % 2}" for row in spec])
    at = rec.table.schema.get_field_index("service")
    rec = Recording.from_table(rec.table.set_column(at, "service", words))
    limits = tuple(
        (word, Fraction(1, 1 + i)) for i, word in enumerate(sorted(set(words.to_pylist())))
    )
    plan = build_plan(rec, PlanSettings(service_qps=limits, over=over, burst=burst))
    free = build_plan(rec, PlanSettings())
    for word, qps in limits:
        mine = (plan.recording.trace_low[plan.trace] % 2 == int(word[1])) & (plan.fate == 0)
        _, first = np.unique(plan.trace[mine], return_index=True)
        arrivals = np.sort(plan.due_ns[mine][first])
        window = tf.rate_window(qps, burst)
        assert not tf.exceeds(arrivals, min(burst, len(arrivals)), int(window))
        assert len(arrivals)
    assert len(plan) == len(free)


def test_smoothing_moves_traces_as_a_whole() -> None:
    rec = recording([(1, 0, 5, "step"), (2, 1, 5, "step"), (2, 3, 1, "kernel"), (3, 2, 5, "step")])
    plan = build_plan(rec, PlanSettings(smooth_ns=30 * MS))
    assert due_ms(plan) == [0, 10, 12, 20]
