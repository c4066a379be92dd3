"""The GPU side of a plan: launch order, stream order, edges, links."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording, factorise
from spanlite_replay.work import EdgeKind, Work

HOUR = 1_796_108_400_000_000_000
Rows = Callable[[list[dict[str, Any]]], pa.Table]

#: (thread, stream, launch cost, kernel time) of each launch, in order of the launches.
launches = st.lists(
    st.tuples(
        st.integers(1, 2), st.integers(7, 9), st.integers(1, 30), st.sampled_from([0, 5, 20, 200])
    ),
    min_size=1,
    max_size=25,
)


pytestmark = pytest.mark.usefixtures("plan_loops")


def timeline(script: list[tuple[int, int, int, int]]) -> list[dict[str, Any]]:
    """Calls one after the other, each thread's; kernels first in, first out on each stream."""
    rows: list[dict[str, Any]] = []
    now, free = HOUR, dict.fromkeys((7, 8, 9), HOUR)
    for thread, stream, cost, length in script:
        call = len(rows) + 1
        rows.append(
            {"kind": "runtime_call", "name": "cudaLaunchKernel", "thread_id": thread,
             "start_ns": now, "duration_ns": cost}
        )  # fmt: skip
        begin = max(now + cost, free[stream])
        rows.append(
            {"kind": "kernel", "stream": stream, "start_ns": begin, "duration_ns": length,
             "parent_span_id": call}
        )  # fmt: skip
        now, free[stream] = now + cost, begin + length
    return rows


def plan_of(table: pa.Table, deps: str = "stream", **asked: Any) -> Plan:
    return build_plan(Recording.from_table(table), PlanSettings(**asked)).with_work(deps)  # type: ignore[arg-type]


def work_of(table: pa.Table, deps: str = "stream", **asked: Any) -> Work:
    work = plan_of(table, deps, **asked).work
    assert work is not None
    return work


def edges(work: Work, kind: EdgeKind) -> set[tuple[int, int, bool]]:
    """(span id before, span id after, inferred)."""
    mine = work.edges.kind == kind
    return {
        (int(work.row[a]) + 1, int(work.row[b]) + 1, bool(c))
        for a, b, c in zip(
            work.edges.before[mine],
            work.edges.after[mine],
            work.edges.inferred[mine],
            strict=True,
        )
    }


@settings(max_examples=40)
@given(launches)
def test_every_kernel_has_its_call_and_both_orders_are_complete(
    make_rows: Rows, script: list[tuple[int, int, int, int]]
) -> None:
    work = work_of(make_rows(timeline(script)))
    for (positions, bounds), code, mask in (
        (work.stream_order(), work.stream, work.is_device),
        (work.launch_order(), work.thread, work.is_call),
    ):
        assert sorted(positions.tolist()) == np.flatnonzero(mask).tolist()
        for number, (first, last) in enumerate(pairwise(bounds)):
            mine = positions[first:last]
            assert (code[mine] == number).all() and (np.diff(mine) > 0).all()
    kernels = np.flatnonzero(work.is_device)
    assert (work.row[work.launched_by[kernels]] == work.row[kernels] - 1).all()
    assert (work.start_ns[1:] >= work.start_ns[:-1]).all()


def test_spans_of_no_length_at_one_moment_do_not_wait_for_each_other(make_rows: Rows) -> None:
    rows = [(0, 10, 7), (10, 0, 8), (10, 0, 9), (10, 0, 8), (10, 5, 7)]
    table = make_rows(
        [
            {"kind": "kernel", "start_ns": start, "duration_ns": length, "stream": stream}
            for start, length, stream in rows
        ]
    )
    edges = work_of(table, "observed").edges
    assert (edges.before < edges.after).all()
    pairs = set(zip(edges.before.tolist(), edges.after.tolist(), strict=True))
    assert {(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (2, 4)} <= pairs


@settings(max_examples=40)
@given(launches)
def test_observed_keeps_whatever_came_before_and_says_so(
    make_rows: Rows, script: list[tuple[int, int, int, int]]
) -> None:
    table = make_rows(timeline(script))
    work, plain = work_of(table, "observed"), work_of(table)
    assert len(plain.edges) == 0
    assert work.edges.inferred.all() and (work.edges.kind == EdgeKind.OBSERVED).all()
    end = work.start_ns + work.duration_ns
    assert (end[work.edges.before] <= work.start_ns[work.edges.after]).all()
    # Reachability along edges and streams is exactly "had ended before it started".
    kernels = np.flatnonzero(work.is_device).tolist()
    reach: dict[int, set[int]] = {}
    last: dict[int, int] = {}
    for at in kernels:
        direct = set(work.edges.before[work.edges.after == at].tolist())
        direct |= {last[work.stream[at]]} if work.stream[at] in last else set()
        reach[at] = direct.union(*(reach[one] for one in direct)) if direct else set()
        last[int(work.stream[at])] = at
        ended = {
            one for one in kernels if one != at and end[one] <= work.start_ns[at] and (one < at)
        }
        same = {one for one in kernels if one < at and work.stream[one] == work.stream[at]}
        assert ended | same == reach[at] | same


@settings(max_examples=40)
@given(launches, st.randoms(use_true_random=False))
def test_it_does_not_depend_on_the_order_of_rows(
    make_rows: Rows, script: list[tuple[int, int, int, int]], random: Any
) -> None:
    table = make_rows(timeline(script))
    order = list(range(len(table)))
    random.shuffle(order)
    one, two = plan_of(table, "observed"), plan_of(table.take(order), "observed")
    assert one.digest() == two.digest() != plan_of(table).digest()


def test_calls_that_wait_for_the_device(make_rows: Rows) -> None:
    rows = timeline([(1, 7, 5, 100), (1, 8, 5, 50), (1, 7, 5, 20)])
    end = max(row["start_ns"] + row["duration_ns"] for row in rows)
    call = {"kind": "runtime_call", "thread_id": 1}
    rows += [
        # Stream 8 is done at 60: the first call waited for it, by its times; the second for all.
        call | {"name": "cudaStreamSynchronize", "start_ns": HOUR + 20, "duration_ns": 42},
        call | {"name": "cudaDeviceSynchronize_v3020", "start_ns": HOUR + 65,
                "duration_ns": end - HOUR - 60},
        # Launched afterwards, so not waited for.
        call | {"name": "cudaLaunchKernel", "start_ns": end + 20, "duration_ns": 5},
        {"kind": "kernel", "stream": 8, "start_ns": end + 25, "duration_ns": 1,
         "parent_span_id": len(rows) + 3},
    ]  # fmt: skip
    work = work_of(make_rows(rows))
    assert edges(work, EdgeKind.SYNC) == {(4, 7, True), (6, 8, False)}


def test_cupti_says_which_stream_was_waited_for(make_rows: Rows) -> None:
    rows = timeline([(1, 7, 5, 100), (2, 8, 5, 300)])
    rows.append({"kind": "sync", "name": "stream sync", "stream": 7, "start_ns": HOUR + 20,
                 "duration_ns": 90})  # fmt: skip
    work = work_of(make_rows(rows))
    # It names no thread: that of the launch is inferred.
    assert edges(work, EdgeKind.SYNC) == {(2, 5, True)}
    assert work.is_call[np.flatnonzero(work.row == 4)].all()
    rows[-1] |= {"device": None, "context": 1, "thread_id": 1}
    assert edges(work_of(make_rows(rows)), EdgeKind.SYNC) == {(2, 5, False)}


def test_a_copy_holds_its_call_where_the_times_say_so(make_rows: Rows) -> None:
    call = {"kind": "runtime_call", "name": "cudaMemcpyAsync", "thread_id": 1}
    copy = {"kind": "memcpy", "stream": 7}
    rows = [
        call | {"start_ns": HOUR, "duration_ns": 50},
        copy | {"start_ns": HOUR + 10, "duration_ns": 30, "parent_span_id": 1},
        call | {"start_ns": HOUR + 60, "duration_ns": 5},
        copy | {"start_ns": HOUR + 70, "duration_ns": 30, "parent_span_id": 3},
    ]
    assert edges(work_of(make_rows(rows)), EdgeKind.SYNC) == {(2, 1, True)}


def test_streams_that_wait_for_events(make_rows: Rows) -> None:
    rows = timeline([(1, 7, 5, 100), (1, 7, 5, 50), (1, 8, 5, 20), (1, 8, 5, 20)])
    for number, row in enumerate(rows):
        row["correlation_id"] = 10 * (number // 2 + 1)
    wait = {"kind": "runtime_call", "name": "cudaStreamWaitEvent", "thread_id": 1,
            "start_ns": HOUR + 12, "duration_ns": 1, "correlation_id": 25}  # fmt: skip
    told = '{"wait_on_stream":7,"wait_on_cuda_event_record_corr_id":15,"wait_on_cuda_event_id":1}'
    record = {"kind": "sync", "name": "Stream Wait Event", "stream": 8, "start_ns": HOUR + 12,
              "duration_ns": 1, "correlation_id": 25, "attributes": told}  # fmt: skip
    # Recorded on stream 7 between its two kernels; what is launched on 8 afterwards waits.
    work = work_of(make_rows([*rows, wait, record]))
    assert edges(work, EdgeKind.EVENT) == {(2, 6, False)}
    assert work.waits_unknown == 0
    work = work_of(make_rows([*rows, wait]))
    assert edges(work, EdgeKind.EVENT) == set() and work.waits_unknown == 1


def test_calls_inside_a_call_are_part_of_it(make_rows: Rows) -> None:
    rows = [
        {"kind": "runtime_call", "thread_id": 1, "start_ns": HOUR, "duration_ns": 50},
        {"kind": "driver_call", "thread_id": 1, "start_ns": HOUR + 5, "duration_ns": 30},
        {"kind": "kernel", "stream": 7, "start_ns": HOUR + 60, "duration_ns": 5,
         "parent_span_id": 2},
        {"kind": "runtime_call", "thread_id": 2, "start_ns": HOUR + 1, "duration_ns": 5},
    ]  # fmt: skip
    work = work_of(make_rows(rows))
    assert work.row[work.is_call].tolist() == [0, 3]
    assert work.row[work.launched_by[work.is_device]].tolist() == [0]


def test_links_of_steps_are_kept(make_rows: Rows) -> None:
    links = [{"trace_id": f"{2:032x}", "span_id": 2}, {"trace_id": f"{9:032x}", "span_id": 99}]
    rows = [
        {"kind": "step", "start_ns": HOUR + 5, "duration_ns": 5, "thread_id": 1, "links": links},
        {"kind": "request", "trace": 2, "start_ns": HOUR, "duration_ns": 50, "thread_id": 1},
    ]
    work = work_of(make_rows(rows))
    assert work.row[work.link_from].tolist() == [0] and work.row[work.link_to].tolist() == [1]
    assert work.links_outside == 1


def test_a_kernel_takes_its_time_whatever_the_speed(make_rows: Rows) -> None:
    work = work_of(make_rows(timeline([(1, 7, 5, 100), (1, 7, 5, 50)])), speed=Fraction(2))
    assert work.duration_ns[work.is_device].tolist() == [100, 50]
    assert (work.start_ns - HOUR).tolist() == [0, 2, 2, 52]


def test_what_is_dropped_is_no_work(make_rows: Rows) -> None:
    rows = timeline([(1, 7, 5, 10)] * 4)
    for number, row in enumerate(rows):
        row["trace"] = 1 + number // 2
    plan = plan_of(make_rows(rows), qps=Fraction(1), over="drop", burst=1)
    assert plan.work is not None and len(plan.work) == 2 < len(plan)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.none() | st.integers(-(2**62), 2**62)), max_size=20
    )
)
def test_factorise(rows: list[tuple[str, int | None]]) -> None:
    table = pa.table(
        {
            "x": pa.array([row[0] for row in rows], pa.string()).dictionary_encode(),
            "y": pa.array([row[1] for row in rows], pa.int64()),
        }
    )
    codes, keys = factorise(table, ("x", "y"))
    words = [tuple(row.values()) for row in keys.to_pylist()]
    assert [words[code] for code in codes.tolist()] == rows
    assert len(set(words)) == len(words) == len(set(rows))
    assert words == sorted(words, key=lambda row: (row[0], row[1] is None, row[1] or 0))


@pytest.mark.parametrize("deps", ["stream", "observed"])
def test_a_plan_without_gpu_work(make_rows: Rows, deps: str) -> None:
    work = work_of(make_rows([{"kind": "host", "start_ns": HOUR, "duration_ns": 1}]), deps)
    assert not work.is_device.any() and not work.is_call.any() and len(work.edges) == 0
