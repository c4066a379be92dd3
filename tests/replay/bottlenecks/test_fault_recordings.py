"""The program that records faults on a GPU, as far as it goes without one; and what it recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from spanlite_replay.bottlenecks.diagnose import diagnose

sys.path.append(str(Path(__file__).parents[3]))  # bench/ is no installed package
from bench import _fault_bed, faults_record
from bench._fault_names import FAULTS, RECORDINGS, STRENGTHS
from bench._fault_spans import Clocks, annotated, cut, facts_of, names_of, read_conflicts, write
from bench.bottlenecks import FOLDER, HALVES, WAYS, Faulty, ask, half_of, healthy

ROOT = Path(__file__).parents[3]
Rows = Any


def test_every_fault_is_recorded_twice_and_differently() -> None:
    assert len(FAULTS) == 12
    for fault in FAULTS:
        strong, weak = (RECORDINGS[f"{fault}.{strength}"] for strength in STRENGTHS)
        assert strong != weak
        assert {half_of(f"{fault}.{strength}") for strength in STRENGTHS} == set(HALVES)
    assert sum(name.startswith("healthy") for name in RECORDINGS) >= 3
    for seeded in RECORDINGS.values():
        _fault_bed.Options(**seeded.options)


def test_it_lists_them_without_a_gpu() -> None:
    command = [sys.executable, "-m", "bench.faults_record", "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(RECORDINGS)


def test_kernels_are_what_the_program_asks_for() -> None:
    source = _fault_bed.KERNELS.read_text()
    for name, _ in _fault_bed.VARIANTS.values():
        assert f"void {name}(" in source
    assert set(faults_record._HEALTHY.values()) <= set(_fault_bed.VARIANTS)


def test_clocks_are_those_of_the_time() -> None:
    at = np.array([100, 200, 300])
    clocks = Clocks(at, np.array([1980, 1500, 1600]), np.array([0, 4, 4]), np.zeros(3))
    found = {"gpu.sm_clock_mhz": 1550, "gpu.throttled": "sw_power_cap"}
    assert clocks.around(150, 310) == found
    assert clocks.around(110, 120) == {"gpu.sm_clock_mhz": 1980}  # the one before
    assert clocks.around(0, 50) == {"gpu.sm_clock_mhz": 1980}
    none = np.empty(0, np.int64)
    assert Clocks(none, none, none, none.astype(float)).around(0, 50) == {}


def test_spans_are_cut_and_annotated(machine: Any, tmp_path: Path) -> None:
    for number in range(4):
        machine.begin_step(f"step:{number}")
        machine.launch("custom_mix", 50_000, attributes='{"stage": "mlp"}')
        machine.sync()
        machine.end_step()
    table = machine.recording().table
    start = table.column("start_ns").to_numpy()
    change = int(np.sort(start)[len(start) // 2])
    assert cut(table, 2, 0, 2**62).num_rows == 0
    assert cut(table, 1, change, 2**62).num_rows == (start >= change).sum()

    def counted(name: str, after: bool) -> dict[str, Any]:
        return {"bank_conflicts_per_request": 15.5} if after else {}

    clocks = Clocks(np.array([0]), np.array([1980]), np.array([0]), np.zeros(1))
    found = annotated(table, clocks, counted, change)
    size = write(found, tmp_path / "x.parquet", {"change_ns": change})
    assert size == (tmp_path / "x.parquet").stat().st_size
    again = pq.read_table(tmp_path / "x.parquet")
    assert facts_of(tmp_path / "x.parquet") == {"change_ns": change}
    assert again.num_rows == table.num_rows
    rows = [row for row in again.to_pylist() if row["attributes"]]
    said = {(row["kind"], row["start_ns"] >= change): json.loads(row["attributes"]) for row in rows}
    assert said["kernel", False] == {"stage": "mlp"}
    assert said["kernel", True] == {"stage": "mlp", "bank_conflicts_per_request": 15.5}
    assert said["step", True] == {"gpu.sm_clock_mhz": 1980}


def test_conflicts_are_read_from_ncu() -> None:
    text = '==PROF== Connected\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    for number, name, conflicts in (("0", "custom_transpose", 0), ("1", "custom_mix", 16_252_928)):
        for metric, value in (
            ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", f"{conflicts:,}"),
            ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum", "0"),
            ("smsp__inst_executed_op_shared_ld.sum", "524,288"),
            ("smsp__inst_executed_op_shared_st.sum", "524,288"),
        ):
            text += f'\n"{number}","{name}","{metric}","","{value}"'
    counts = read_conflicts(text)
    assert counts == [("custom_transpose", 0.0), ("custom_mix", 15.5)]
    assert names_of([("fill", 1.0), *counts], ["a", "b"]) == {"a": 0.0, "b": 15.5}
    assert read_conflicts("==ERROR== ERR_NVGPUCTRPERM") == []


#: (recording, way) -> what is named first where it is not the fault; docs/bottlenecks.md says why.
MISSED = {
    ("bank_conflicts.strong", "bare"): "slow_kernel",
    ("bank_conflicts.weak", "bare"): "slow_kernel",
    ("noisy_neighbour.weak", "before"): "none",
    ("register_spill.weak", "before"): "launch_starvation",
    ("register_spill.weak", "within"): "launch_starvation",
}
NAMES = [f"{fault}.{strength}" for fault in FAULTS for strength in STRENGTHS]


@pytest.mark.parametrize("name", NAMES)
def test_the_cause_named_first_is_the_fault(name: str) -> None:
    one = Faulty.of(FOLDER / f"{name}.parquet")
    for way in WAYS:
        causes = ask(one, way, FOLDER).causes
        first = causes[0].name if causes else "none"
        assert first == MISSED.get((name, way), name.partition(".")[0]), way


def test_healthy_recordings_have_no_cause() -> None:
    found = dict(healthy(FOLDER))
    assert len(found) >= 30
    assert [name for name, diagnosis in found.items() if diagnosis.causes] == []


def test_a_healthy_step_is_explained() -> None:
    """As long as the GPU's work, and next to nothing of it unexplained."""
    for path in FOLDER.glob("healthy.*.parquet"):
        shares = {one.bound: one.share for one in diagnose(Faulty.of(path).whole).report.shares}
        assert shares["compute"] + shares["memory"] + shares.get("contention", 0) > 0.8
        assert shares.get("unexplained", 0) < 0.01


def test_recordings_are_small_and_name_their_gpu() -> None:
    paths = sorted(FOLDER.glob("*.parquet"))
    assert {path.stem for path in paths} >= set(NAMES)
    assert sum(path.stat().st_size for path in paths) < 3 << 20
    for path in paths:
        assert facts_of(path)["gpu.name"] == "NVIDIA H200"
