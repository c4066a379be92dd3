"""What waits for what, where arrivals are held, where graphs are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite_replay.plan import Plan
from spanlite_replay.targets.gpu import schedule
from spanlite_replay.targets.gpu.schedule import Costs, Order, gates_of, order_of

HOUR = 1_796_108_400_000_000_000
US = 1_000
PlanOf = Callable[[pa.Table], Plan]
Rows = Callable[[list[dict[str, Any]]], pa.Table]


def kernel(start_us: float, length_us: float, stream: int = 7, **more: Any) -> dict[str, Any]:
    return {
        "kind": "kernel",
        "stream": stream,
        "start_ns": HOUR + int(start_us * US),
        "duration_ns": int(length_us * US),
        **more,
    }


def ordered(plan: Plan) -> Order:
    assert plan.work is not None
    return order_of(plan.work, np.flatnonzero(plan.work.is_device))


def test_a_stream_is_in_order_and_streams_are_not(make_rows: Rows, plan_of: PlanOf) -> None:
    rows = [kernel(0, 5), kernel(2, 5, stream=8), kernel(6, 1), kernel(9, 1, stream=8)]
    assert ordered(plan_of(make_rows(rows))).after == [(), (), (0,), (1,)]


def test_branches_of_one_stream_overlap(make_rows: Rows, plan_of: PlanOf) -> None:
    # The second and third overlap; both follow the first, and the fourth follows both.
    rows = [kernel(0, 4), kernel(5, 5), kernel(7, 5), kernel(13, 1)]
    assert ordered(plan_of(make_rows(rows))).after == [(), (0,), (0,), (1, 2)]


def test_what_overlaps_on_a_stream_starts_in_order(make_rows: Rows, plan_of: PlanOf) -> None:
    """Both have a gate, however short the wait before them."""
    rows = [kernel(0, 4), kernel(4.4, 5), kernel(5, 5), kernel(12, 1)]
    order = ordered(plan_of(make_rows(rows)))
    assert order.overlaps.tolist() == [-1, -1, 1, -1]
    assert (gates_of(order, Costs(500, 400, 9_000)) >= 0).tolist() == [True, True, True, False]


def test_in_a_crowd_only_long_waits_have_gates(make_rows: Rows, plan_of: PlanOf) -> None:
    def gates(streams: int) -> int:
        rows = [kernel(10 * i, 5, 7 + s) for i in range(6) for s in range(streams)]
        return int((gates_of(ordered(plan_of(make_rows(rows))), Costs()) >= 0).sum())

    assert gates(1) == 6
    assert 8 <= gates(8) < 6 * 8


def test_what_is_launched_after_a_wait_comes_after_it(make_rows: Rows, plan_of: PlanOf) -> None:
    call = {"kind": "runtime_call", "thread_id": 1}
    rows = [
        call | {"name": "cudaLaunchKernel", "start_ns": HOUR, "duration_ns": US},
        kernel(2, 10, parent_span_id=1),
        call | {"name": "cudaDeviceSynchronize", "start_ns": HOUR + 3 * US, "duration_ns": 11 * US},
        call | {"name": "cudaLaunchKernel", "start_ns": HOUR + 15 * US, "duration_ns": US},
        kernel(17, 1, stream=8, parent_span_id=4),
    ]
    assert ordered(plan_of(make_rows(rows))).after == [(), (0,)]


def test_arrivals_are_held_where_the_stream_was_idle(make_rows: Rows, plan_of: PlanOf) -> None:
    rows = [kernel(0, 5), kernel(5.4, 5), kernel(30, 5), kernel(35.5, 1)]
    gates = gates_of(ordered(plan_of(make_rows(rows))), Costs(500, 400, 2_400))
    assert gates.tolist() == [schedule.HEAD_NS - 400, -1, schedule.HEAD_NS + 30 * US - 400, -1]


def test_small_gaps_do_not_add_up(make_rows: Rows, plan_of: PlanOf) -> None:
    """2 us is too short for a gate; after a few of them the replay is early enough for one."""
    rows = [kernel(7 * i, 5) for i in range(12)]
    order, costs = ordered(plan_of(make_rows(rows))), Costs(500, 400, 2_400)
    gates = gates_of(order, costs)
    early, now = 0, 0
    for item in range(len(order)):
        planned = int(order.start_ns[item] - order.start_ns[0])
        now = planned if gates[item] >= 0 else now + costs.gap_ns
        early = max(early, planned - now)
        now += 5 * US
    assert early <= costs.through_ns
    assert 1 < int((gates >= 0).sum()) < 12


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 60), st.integers(7, 9)),
        min_size=1,
        max_size=30,
    )
)
def test_any_order_can_run(
    make_rows: Rows, plan_of: PlanOf, spans: list[tuple[int, int, int]]
) -> None:
    order = ordered(plan_of(make_rows([kernel(*one) for one in spans])))
    assert len(order) == len(spans)
    for item, before in enumerate(order.after):
        for one in before:
            assert one < item
            assert (
                order.start_ns[one] + order.length_ns[one]
                <= order.start_ns[item] + schedule.TOLERANCE_NS
            )
    gates = gates_of(order, Costs())
    assert (gates[np.array([not before for before in order.after])] >= 0).all()


def test_graphs_are_cut_where_the_device_is_idle(monkeypatch: Any) -> None:
    start = np.arange(40, dtype=np.int64) * 2 * US
    start[15:] += 100 * US
    start[18:] += 100 * US
    graph, forced = schedule._graphs(start, start + US, 10)
    assert forced == 0 and np.flatnonzero(np.diff(graph)).tolist() == [14]
    monkeypatch.setattr(schedule, "MOST_ITEMS", 12)
    graph, forced = schedule._graphs(start[:14], start[:14] + US, 10)
    assert forced == 1 and graph[-1] == 1


def test_a_cut_lies_between_the_fewest_and_the_most(monkeypatch: Any) -> None:
    monkeypatch.setattr(schedule, "MOST_ITEMS", 9)
    start = np.arange(100, dtype=np.int64) * US
    graph, forced = schedule._graphs(start, start + US // 2, 5)
    sizes = np.bincount(graph)
    assert forced == len(sizes) - 1 and sizes[:-1].min() >= 5 and sizes.max() <= 9 + 5


def test_copies_close_behind_others_have_no_gate(make_rows: Rows, plan_of: PlanOf) -> None:
    rows = [
        {"kind": "memcpy", "copy_kind": "dtoh", "stream": 7, "bytes": 8, "duration_ns": 2 * US,
         "start_ns": HOUR + start * US}
        for start in (0, 5, 10, 100)
    ]  # fmt: skip
    order = ordered(plan_of(make_rows(rows)))
    assert order.is_copy.all()
    assert (gates_of(order, Costs(), copy_patience_ns=0) >= 0).all()
    told = gates_of(order, Costs()) >= 0
    assert told.tolist() == [True, False, False, True]
