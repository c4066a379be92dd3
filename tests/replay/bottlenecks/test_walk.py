"""Stretches tile their window and say what the time went on, where the answer is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spanlite.errors import InputError
from spanlite_replay.bottlenecks.bounds import Bound, Reason
from spanlite_replay.bottlenecks.report import Analysis, analyse, summarise
from spanlite_replay.recording import Recording

US = 1_000


def shares(analysis: Analysis) -> dict[str, float]:
    return {share.bound: share.share for share in summarise(analysis).shares}


def reasons(analysis: Analysis) -> dict[Reason, int]:
    s = analysis.stretches
    return {Reason(r): int(s.ns[s.reason == r].sum()) for r in np.unique(s.reason)}


def assert_tiled(analysis: Analysis) -> None:
    s, windows = analysis.stretches, analysis.rec.windows
    for number in range(len(windows)):
        mine = s.window == number
        assert s.start_ns[mine][0] == windows.start_ns[number]
        assert s.end_ns[mine][-1] >= windows.end_ns[number]
        assert (s.start_ns[mine][1:] == s.end_ns[mine][:-1]).all()
        assert (s.ns[mine] > 0).all()


def test_long_kernels_are_the_path(machine: Any) -> None:
    machine.begin_step("step:0")
    for _ in range(10):
        machine.launch("elementwise_kernel", 100 * US)
    machine.sync()
    machine.end_step()
    analysis = analyse(machine.recording())
    assert_tiled(analysis)
    found = reasons(analysis)
    assert found == {
        Reason.LAUNCH: 6 * US,
        Reason.KERNEL: 1_000 * US,
        Reason.GAP: 9 * US // 2,
        Reason.SYNC_RETURN: 3 * US,
    }
    assert shares(analysis)["memory"] == pytest.approx(1_000 / 1_013.5)


def test_short_kernels_are_launch_bound(machine: Any) -> None:
    machine.begin_step("step:0")
    for _ in range(50):
        machine.launch("gemm", 1 * US)
    machine.sync()
    machine.end_step()
    found = reasons(analyse(machine.recording()))
    assert found[Reason.LAUNCH_CALL] == 49 * 4 * US
    assert found[Reason.LAUNCH] == 6 * US and found[Reason.KERNEL] == 1 * US
    assert summarise(analyse(machine.recording())).headline.startswith("launch-bound: 98 %")


def test_a_busy_host_is_host_bound(machine: Any) -> None:
    machine.begin_step("step:0")
    for _ in range(20):
        machine.host(50 * US)
        machine.launch("gemm", 5 * US)
    machine.sync()
    machine.end_step()
    found = reasons(analyse(machine.recording()))
    assert found[Reason.HOST] == 20 * 50 * US
    assert Reason.WAITS_UNKNOWN not in found


def test_a_wait_leads_back_to_the_device(machine: Any) -> None:
    machine.begin_step("step:0")
    for _ in range(5):
        machine.launch("gemm", 40 * US)
        machine.sync()
    machine.end_step()
    found = reasons(analyse(machine.recording()))
    assert found == {
        Reason.LAUNCH: 5 * 6 * US,
        Reason.KERNEL: 5 * 40 * US,
        Reason.SYNC_RETURN: 5 * 3 * US,
    }


def test_work_of_another_step_is_queueing(machine: Any) -> None:
    machine.begin_step("step:0")
    machine.launch("gemm", 500 * US)
    machine.end_step()
    machine.begin_step("step:1")
    machine.launch("gemm", 10 * US)
    machine.sync()
    machine.end_step()
    analysis = analyse(machine.recording())
    assert_tiled(analysis)
    second = analysis.stretches.window == 1
    queued = analysis.stretches.ns[second & (analysis.stretches.bound == Bound.QUEUE)].sum()
    assert queued == 500 * US


def test_a_dependency_across_streams_is_followed(machine: Any) -> None:
    machine.begin_step("step:0")
    done = machine.launch("first", 100 * US, stream=1)
    machine.launch("second", 50 * US, stream=2, after=done + US)
    machine.sync()
    machine.end_step()
    found = reasons(analyse(machine.recording()))
    assert found[Reason.KERNEL] == 150 * US and found[Reason.GAP] == US


def test_a_late_start_without_a_reason_is_unexplained(machine: Any) -> None:
    machine.begin_step("step:0")
    machine.launch("first", 20 * US, stream=1)
    machine.launch("second", 50 * US, stream=2, after=machine.now + 300 * US)
    machine.sync()
    machine.end_step()
    found = reasons(analyse(machine.recording()))
    assert found[Reason.WAITS_UNKNOWN] > 200 * US


def test_kernels_slowed_by_company_are_contention(machine: Any) -> None:
    machine.begin_step("step:0")
    for _ in range(4):
        machine.launch("gemm", 100 * US)
    machine.sync()
    machine.end_step()
    machine.begin_step("step:1")
    machine.launch("other", 400 * US, stream=2)
    machine.launch("gemm", 180 * US)
    machine.launch("gemm", 180 * US)
    machine.sync()
    machine.end_step()
    analysis = analyse(machine.recording())
    assert_tiled(analysis)
    excess = analysis.kernels.excess_ns(analysis.rec)
    assert sorted(excess[excess > 0].tolist()) == [80 * US, 80 * US]


def test_the_profilers_own_time_is_told_apart(machine: Any) -> None:
    machine.begin_step("step:0")
    machine.launch("gemm", 5 * US)
    begin = machine.now
    machine.host(1_000 * US)
    machine.launch("gemm", 5 * US)
    machine.sync()
    machine.end_step()
    overhead = {"span_id": 99, "trace_id": f"{99:032x}", "kind": "overhead", "process_id": None}
    overhead |= {"name": "Activity Buffer Request", "start_ns": begin, "duration_ns": 900 * US}
    machine.rows.append(overhead)
    found = reasons(analyse(machine.recording()))
    assert found[Reason.MEASURING] == 900 * US and found[Reason.HOST] == 100 * US


def test_shapes_tell_memory_from_compute(machine: Any) -> None:
    attributes = (
        '{"Input Dims":[[3072],[%d,1024],[1024,3072]],'
        '"Input type":["c10::BFloat16","c10::BFloat16","c10::BFloat16"]}'
    )
    for number, rows in enumerate((8, 8192)):
        machine.begin_step(f"step:{number}")
        step, begin = machine.step, machine.now
        operator = machine._add("operator", "aten::addmm", begin, begin + 50 * US, thread_id=7)
        machine.rows[-1] |= {"attributes": attributes % rows, "parent_span_id": step[1]}
        machine.launch("nvjet_tst", 200 * US, grid_x=rows)
        machine.rows[-2]["parent_span_id"] = operator
        machine.sync()
        machine.end_step()
    kernels = {k.blocks: k for k in summarise(analyse(machine.recording())).kernels}
    assert (kernels[8].bound, kernels[8].known_by) == ("memory", "shapes")
    assert (kernels[8192].bound, kernels[8192].known_by) == ("compute", "shapes")
    assert "8 blocks on 132 SMs" in kernels[8].evidence


def test_counters_come_before_names(machine: Any) -> None:
    machine.begin_step("step:0")
    counters = '{"dram_throughput_pct": 20, "sm_throughput_pct": 85}'
    machine.launch("elementwise_kernel", 100 * US, attributes=counters)
    machine.sync()
    machine.end_step()
    [kernel] = summarise(analyse(machine.recording())).kernels
    assert (kernel.bound, kernel.known_by) == ("compute", "counters")


@pytest.mark.parametrize(
    ("memory", "tensor", "bound"), [(80, 10, "memory"), (30, 70, "compute"), (20, 10, "compute")]
)
def test_the_agents_counters(machine: Any, memory: int, tensor: int, bound: str) -> None:
    machine.begin_step("step:0")
    counters = f'{{"gpu.dram_pct": {memory}, "gpu.tensor_pct": {tensor}, "gpu.of": "stage"}}'
    machine.launch("any_kernel", 100 * US, attributes=counters)
    machine.sync()
    machine.end_step()
    [kernel] = summarise(analyse(machine.recording())).kernels
    assert (kernel.bound, kernel.known_by) == (bound, "counters")
    assert "of its stage" in kernel.evidence
    assert ("neither is near it" in kernel.evidence) == (max(memory, tensor) < 50)


def test_without_steps_the_whole_process_is_one_window(machine: Any) -> None:
    for _ in range(5):
        machine.launch("gemm", 40 * US)
    machine.sync()
    analysis = analyse(machine.recording())
    assert_tiled(analysis)
    assert analysis.rec.windows.unit == "process"
    assert "no steps are recorded: name them and each one is analysed" in summarise(analysis).notes


def test_without_device_work_there_is_nothing_to_say(machine: Any) -> None:
    machine.begin_step("step:0")
    machine.host(5)
    machine.end_step()
    with pytest.raises(InputError, match="no kernels"):
        analyse(machine.recording())


_TIMES = st.integers(0, 400)
_SPAN = st.tuples(st.integers(0, 4), _TIMES, st.integers(0, 60), st.integers(0, 2), st.booleans())


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(_SPAN, min_size=1, max_size=25))
def test_any_recording_is_tiled(
    recording_of: Callable[[list[dict[str, Any]]], Recording], spans: list[tuple[Any, ...]]
) -> None:
    """Also one with clock anomalies, spans of 0 ns, calls that overlap, kernels without calls."""
    kinds = ("kernel", "runtime_call", "sync", "memcpy", "overhead")
    names = ("gemm", "cudaLaunchKernel", "stream sync", "copy", "buffer")
    rows = [
        {"trace_id": f"{1:032x}", "span_id": 1, "kind": "step", "name": "step:0"}
        | {"start_ns": 100, "duration_ns": 200, "thread_id": 7},
        {"trace_id": f"{1:032x}", "span_id": 2, "kind": "kernel", "name": "gemm", "device": 0}
        | {"context": 1, "stream": 1, "start_ns": 150, "duration_ns": 10, "parent_span_id": 1},
    ]
    for number, (kind, start, took, stream, linked) in enumerate(spans, 3):
        row: dict[str, Any] = {"trace_id": f"{1:032x}", "span_id": number}
        row |= {"kind": kinds[kind], "name": names[kind], "start_ns": start, "duration_ns": took}
        row["parent_span_id"] = number - 1 if linked else None
        if kind in (0, 3):
            row |= {"device": 0, "context": 1, "stream": stream}
        else:
            row["thread_id"] = 7
        rows.append(row)
    assert_tiled(analyse(recording_of(rows)))
