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
from bench import lab_rounding
from bench.h200 import _accumulation_cases as sums
from bench.h200._rounding_cases import CASES, digest, inputs, source, wrong
from bench.h200.lab_rounding_table import Tally, judged_sums
from bench.lab_rounding import TABLE, replayed


@pytest.fixture
def table() -> Any:
    if not TABLE.exists():
        pytest.skip("bench/h200/tables/lab_rounding.json has not been measured yet")
    return json.loads(TABLE.read_text())


def test_table(table: Any) -> None:
    assert "H200" in table["about"]["name"] and table["about"]["date"]
    rows, orders = table["instructions"], table["accumulation"]
    assert set(rows) == {case.name for case in CASES}
    assert set(orders) == {case.name for case in sums.ACCUMULATIONS}
    assert not [n for n, row in (rows | orders).items() if row["mismatches"]]
    assert rows["cvt.f32.f16"]["cases"] == 65_536
    random = [row["cases"] for name, row in rows.items() if row["cases"] > 65_536]
    assert len(random) == 58 and min(random) == 10_000_000
    assert {row["sums"] for row in orders.values()} == {sums.SUMS}


def test_todays_emulator_gives_what_the_hardware_gave(table: Any) -> None:
    count, off = replayed(table)
    assert count > 1_000_000 and not off


def test_a_wrong_answer_is_seen(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_rounding, "CASES", CASES[:2])
    monkeypatch.setattr(lab_rounding, "ACCUMULATIONS", sums.ACCUMULATIONS[:1])
    for row in (
        table["instructions"][CASES[1].name],
        table["accumulation"][sums.ACCUMULATIONS[0].name],
    ):
        row["digest"] = "0" * 16
    assert replayed(table)[1] == [CASES[1].name, sums.ACCUMULATIONS[0].name]


def test_a_digest_knows_one_nan_and_each_bit() -> None:
    case = CASES[0]
    one, other = np.array([0x7E00, 3], np.uint32), np.array([0x7FFF, 3], np.uint32)
    assert case.output.name == "fp16" and digest(case, one) == digest(case, other)
    assert digest(case, one) != digest(case, one ^ np.array([0, 1], np.uint32))


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


def in_single_precision(case: sums.Accumulation, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The same sums by the processor's own FP32, which knows no fused multiply-add."""
    x, y = (p.view(np.float32) for p in (a, b))
    terms = x * y
    if case.order == "pairwise":
        while terms.shape[1] > 1:
            terms = terms[:, ::2] + terms[:, 1::2]
        return terms[:, 0].view(np.uint32)
    parts = sums.PARTS if case.order.startswith("split") else 32
    each = terms.reshape(len(terms), parts, -1)
    if case.order == "warp":
        each = terms.reshape(len(terms), -1, parts).swapaxes(1, 2)
    lanes = each[:, :, 0]
    for place in range(1, each.shape[2]):
        lanes = lanes + each[:, :, place]
    if case.order == "warp":
        while lanes.shape[1] > 1:
            half = lanes.shape[1] // 2
            lanes = lanes[:, :half] + lanes[:, half:]
        return lanes[:, 0].copy().view(np.uint32)
    total = lanes[:, 0]
    for place in range(1, parts):
        total = total + lanes[:, place]
    return total.view(np.uint32)


@pytest.mark.parametrize(
    "case",
    [c for c in sums.ACCUMULATIONS if c.inputs is sums.FP32 and c.order != "sequential"],
    ids=lambda case: case.order,
)
def test_orders_of_sums(case: sums.Accumulation) -> None:
    a, b = case.given(seed=5, count=50)
    right = in_single_precision(case, a, b)
    row = judged_sums(case, a, b, right)
    assert (row["sums"], row["terms"], row["mismatches"]) == (50, sums.LENGTH, 0)
    bad = right.copy()
    bad[7] ^= 1
    row = judged_sums(case, a, b, bad)
    assert row["mismatches"] == 1 and row["examples"][0]["row"] == 7


def test_fewer_sums_are_the_first_of_more() -> None:
    case = sums.ACCUMULATIONS[5]
    for few, more in zip(case.given(3, 20), case.given(3, 90), strict=True):
        assert (few == more[:20]).all()


def test_every_order_has_a_kernel() -> None:
    text = sums.source()
    assert len({case.kernel for case in sums.ACCUMULATIONS}) == len(sums.ACCUMULATIONS) == 16
    assert all(f"void {case.kernel}(" in text for case in sums.ACCUMULATIONS)
