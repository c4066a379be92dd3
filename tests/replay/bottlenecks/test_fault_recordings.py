"""The program that records faults on a GPU, as far as it goes without one; and what it recorded."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))  # bench/ is no installed package
from bench import faults_record
from bench._fault_names import FAULTS
from bench._fault_trace import annotate, read_conflicts, trim, write
from bench._recordings import RECORDINGS
from bench.bottlenecks import FOLDER, diagnosis_of

ROOT = Path(__file__).parents[3]


def test_every_fault_has_a_recording_of_its_name() -> None:
    healthy = {name for name in faults_record.FAULTS if name.startswith("healthy")}
    assert set(faults_record.FAULTS) - healthy == set(FAULTS) and len(FAULTS) == 12
    assert len(healthy) == 3


def test_it_lists_them_without_a_gpu() -> None:
    command = [sys.executable, "-m", "bench.faults_record", "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(faults_record.FAULTS)


def test_kernels_are_what_the_program_asks_for() -> None:
    source = faults_record.KERNELS.read_text()
    for name in ("custom_transpose", "custom_mix", "spin_fma"):
        assert f"void {name}(" in source


def _event(category: str, name: str, ts: float, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": 5.0, "args": args}


TRACE = {
    "schemaVersion": 1,
    "deviceProperties": [{"name": "NVIDIA H200", "uuid": "secret"}],
    "baseTimeNanoseconds": 5,
    "hostName": "machine",
    "traceEvents": [
        _event("user_annotation", "step:3", 100.0),
        _event("user_annotation", "Optimizer.step", 101.0),
        _event("cpu_op", "aten::mm", 102.0),
        _event("cuda_runtime", "cudaLaunchKernel", 103.0, correlation=7, cbid=211),
        _event("cuda_runtime", "cudaEventQuery", 104.0),
        _event("kernel", "custom_mix", 90.0, correlation=6, grid=[1, 1, 1]),
        _event("kernel", "custom_mix", 110.0, correlation=7, grid=[1, 1, 1]),
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "ts": 1.0},
    ],
}


def test_a_trace_is_trimmed(tmp_path: Path) -> None:
    trace = trim(TRACE, "x.json")
    names = [event["name"] for event in trace["traceEvents"]]
    assert names == ["step:3", "cudaLaunchKernel", "custom_mix", "custom_mix", "process_name"]
    assert trace["traceEvents"][1]["args"] == {"correlation": 7}
    assert "machine" not in json.dumps(trace) and "secret" not in json.dumps(trace)
    size = write(trace, tmp_path / "x.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "x.json.gz").read_bytes())) == trace
    assert size == write(trace, tmp_path / "y.json.gz")


def test_a_trimmed_recording_says_the_same(tmp_path: Path) -> None:
    whole = RECORDINGS / "graph_s1.json.gz"
    trace = json.loads(gzip.decompress(whole.read_bytes()))
    write(trim(trace, "x.json"), tmp_path / "x.json.gz")
    before, after = diagnosis_of(whole).report, diagnosis_of(tmp_path / "x.json.gz").report
    assert (after.unit, after.windows, after.total_ns) == ("step", 6, before.total_ns)
    kinds = [{one.bound: one.ns for one in report.shares} for report in (before, after)]
    assert kinds[0]["compute"] == kinds[1]["compute"] and kinds[0]["copy"] == kinds[1]["copy"]
    assert (tmp_path / "x.json.gz").stat().st_size < whole.stat().st_size


def test_facts_go_to_the_faulty_half() -> None:
    trace = trim(TRACE, "x.json")
    assert annotate(trace, "custom_mix", 3, {"local_memory_per_thread": 64}) == 1
    marked = [e["args"].get("local_memory_per_thread") for e in trace["traceEvents"]]
    assert marked == [None, None, None, 64, None]
    assert annotate(trace, "custom_mix", 99, {"x": 1}) == 0


def test_conflicts_are_read_from_ncu() -> None:
    head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    rows = [
        ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", "16,252,928"),
        ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum", "0"),
        ("smsp__inst_executed_op_shared_ld.sum", "524,288"),
        ("smsp__inst_executed_op_shared_st.sum", "524,288"),
    ]
    text = "==PROF== Connected\n" + head
    for name, value in rows:
        text += f'\n"0","custom_transpose","{name}","","{value}"'
    assert read_conflicts(text) == 15.5
    assert read_conflicts("==ERROR== ERR_NVGPUCTRPERM") is None


#: What is named first, as measured; docs/bottlenecks.md says why not all.
FIRST = {
    "slow_kernel": "none",
    "clock_throttled": "launch_starvation",
    "stray_sync": "none",
    "serialised_streams": "launch_starvation",
    "copy_engine": "copy_engine",
    "launch_starvation": "launch_starvation",
    "fragmented_batch": "fragmented_batch",
    "bank_conflicts": "none",
    "register_spill": "register_spill",
    "gemm_regression": "gemm_regression",
    "noisy_neighbour": "none",
    "long_tail_request": "long_tail_request",
}


def _first(path: Path) -> str:
    causes = diagnosis_of(path).causes
    return causes[0].name if causes else "none"


def test_causes_named_first_are_those_measured() -> None:
    assert {name: _first(FOLDER / f"{name}.json.gz") for name in FAULTS} == FIRST


def test_healthy_recordings_have_no_cause() -> None:
    healthy = sorted(FOLDER.glob("healthy_*.json.gz"))
    alarms = [path.name for path in healthy if diagnosis_of(path).causes]
    assert len(healthy) == 3 and alarms == ["healthy_requests.json.gz"]  # one false alarm
