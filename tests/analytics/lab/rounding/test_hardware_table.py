"""The program that asks the H200, as far as it goes without one, and its table."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[4]))  # bench/ is no installed package
from bench.h200._rounding_cases import CASES, inputs, source, wrong
from bench.h200.lab_rounding_table import CHUNK, Tally
from bench.lab_rounding import TABLE, still_wrong


def test_table() -> None:
    if not TABLE.exists():
        pytest.skip("bench/h200/tables/lab_rounding.json has not been measured yet")
    table = json.loads(TABLE.read_text())
    assert "H200" in table["about"]["name"] and table["about"]["date"]
    assert set(table["instructions"]) == {case.name for case in CASES}
    assert not still_wrong(table["instructions"])
    bad = {name: row["mismatches"] for name, row in table["instructions"].items()}
    assert {name: count for name, count in bad.items() if count} == {"cvt.rna.tf32.f32": 39}


def test_all_mismatches_of_that_run_are_of_one_kind() -> None:
    """Its inputs again: 39 are NaNs made into infinities, as many as differed."""
    if not TABLE.exists():
        pytest.skip("bench/h200/tables/lab_rounding.json has not been measured yet")
    number = [case.name for case in CASES].index("cvt.rna.tf32.f32")
    row = json.loads(TABLE.read_text())["instructions"]["cvt.rna.tf32.f32"]
    changed = 0
    for turn in range(row["cases"] // CHUNK):
        given = inputs(CASES[number], CHUNK, seed=turn * 1000 + number)[0] & np.uint32(0x7FFFFFFF)
        changed += int(((given > 0x7F800000) & (given < 0x7F802000)).sum())
    assert changed == row["mismatches"]


def test_an_example_that_differs_is_found() -> None:
    rows: dict[str, dict[str, Any]] = {case.name: {"examples": []} for case in CASES}
    right = {"a": "0x7f801fa9", "b": "0x0", "c": "0x0", "hardware": "0x7f800000"}
    rows["cvt.rna.tf32.f32"]["examples"] = [right, right | {"hardware": "0x7f802000"}]
    assert [e["hardware"] for e in still_wrong(rows)] == ["0x7f802000"]


def test_needs_numpy_alone() -> None:
    """The machine with the GPU has none of our other dependencies."""
    root = Path(__file__).parents[4]
    absent = "pyarrow", "duckdb", "pandas", "rich", "google"
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({absent!r}))\n"
        "import bench.h200.lab_rounding_table as table; print(len(table.CASES))"
    )
    paths = os.pathsep.join(str(root / p) for p in ("proto", "analytics", "."))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == len(CASES)


def test_cases_cover_what_is_claimed() -> None:
    names = {case.name for case in CASES}
    assert len(names) == len(CASES) > 50
    assert {"cvt.rz.bf16.f32", "cvt.rna.tf32.f32", "fma.rm.ftz.f32", "add.rn.f16"} <= names
    assert source().count("__global__") == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wrong_bit_is_seen(case: object) -> None:
    given = inputs(case, 6000, seed=3)  # type: ignore[arg-type]
    right = case.emulate(*given)  # type: ignore[attr-defined]
    assert not wrong(case, right, right).any()  # type: ignore[arg-type]
    tally = Tally()
    tally.add(case, given, right ^ np.uint32(1 << 13))  # type: ignore[arg-type]
    row = tally.rows[case.name]  # type: ignore[attr-defined]
    assert row["mismatches"] > len(right) / 2
    assert row["cases"] == len(right) and len(row["examples"]) == 5
