"""The tables of timed kernels: whole, measured on an H200, and near what the models say."""

import sys
from pathlib import Path

import numpy as np
import pytest
from spanlite_analytics.lab.predict.model import fitted
from spanlite_analytics.lab.toolchain import has_tools

sys.path.append(str(Path(__file__).parents[3]))  # bench/ is no installed package
from bench import _predict_table, lab_pressure
from bench.h200._device import load

TOOLS = pytest.mark.skipif(not has_tools("nvdisasm"), reason="the extra `lab` is not installed")


def test_pressure_table() -> None:
    columns, about = load(lab_pressure.TABLE)
    corpus = {k for k, micro in zip(about["kernels"], about["micro"], strict=True) if not micro}
    seen = {about["kernels"][number] for number in columns["kernel"]}
    assert len(corpus) >= 20 and corpus <= seen
    # Several register caps that spill, and one to sixteen warps a scheduler.
    assert len(set(columns["cap"][columns["local_bytes"] > 0])) >= 5
    assert {1, 16} <= set(columns["blocks"].tolist())
    assert columns["even"].all()
    assert "H200" in about["name"] and about["driver_version"] and about["date"]


@TOOLS
def test_pressure_model() -> None:
    """A part of what `python -m bench.lab_pressure` counts."""
    columns, about = load(lab_pressure.TABLE)
    got = lab_pressure.compare(columns, about, micro=False, every=20)
    assert len(np.unique(got["name"])) > 15
    assert np.median(lab_pressure.error_of(got)) < 7


def test_predict_table() -> None:
    columns, about = load(_predict_table.TABLE)
    assert len(columns["config"]) > 2000
    assert len(set(columns["family"].tolist())) == len(about["families"]) > 20
    counted = columns["ncu_warps_ppm"] > 0
    apart = columns["occupancy_ppm"][counted] / columns["ncu_warps_ppm"][counted] - 1
    assert counted.sum() > 100 and np.median(np.abs(apart)) < 0.01
    assert "H200" in about["name"] and about["driver_version"] and about["date"]
    assert fitted().about["date"] == about["date"]


@TOOLS
def test_the_packaged_fit_is_of_the_table() -> None:
    columns, about = load(_predict_table.TABLE)
    some = {k: v if k == "cubins" else v[::40] for k, v in columns.items()}
    rows = _predict_table.measured(some, about)
    model = fitted()
    got = [model.predict(row.known) for row in rows]
    occupancy = np.array([g.occupancy.value / r.occupancy for g, r in zip(got, rows, strict=True)])
    assert np.median(np.abs(occupancy - 1)) < 0.08
    within = [
        g.occupancy.low <= r.occupancy <= g.occupancy.high for g, r in zip(got, rows, strict=True)
    ]
    assert np.mean(within) > 0.8
    beyond = [g for g in got if any("times below" not in words for words in g.warnings)]
    assert len(beyond) < len(got) / 20


def clocks(name: str, blocks: int, cap: int = 0) -> float:
    """Of one turn of the loop, with so many warps on each scheduler."""
    columns, about = load(lab_pressure.TABLE)
    kernel = about["kernels"].index(name)
    rows = (columns["kernel"] == kernel) & (columns["blocks"] == blocks) & (columns["cap"] == cap)
    (row,) = np.flatnonzero(rows)
    return float(columns["span_cycles"][row] / columns["turns"][row])


def test_spills_cost_more_than_warps_bring() -> None:
    """docs/claims.md: 96 live values in 108 registers and four warps, or in 48 and eight."""
    assert clocks("wide96", 4) < 500 < 20_000 < clocks("wide96", 8, cap=48)
    # Both of the eight warps' values would fit into the L1: 8 x 128 x 72 bytes.
    assert clocks("wide48", 8, cap=48) > 6 * clocks("wide48", 8)


def test_double_precision_waits_for_its_registers() -> None:
    """docs/claims.md: 64 multiply-adds in a turn, 16 warps on a scheduler."""
    assert 3.0 < clocks("micro_dfma_1", 16) / (16 * 64) < 3.1
    assert 2.0 < clocks("micro_dfma_8", 16) / (16 * 64) < 2.2
    assert 1.95 < clocks("micro_hfma2_1", 16) / (16 * 64) < 2.15


@TOOLS
def test_occupancy_that_is_achieved() -> None:
    """docs/claims.md: what fits is not what is there."""
    columns, about = load(_predict_table.TABLE)
    some = {k: v if k == "cubins" else v[::20] for k, v in columns.items()}
    rows = _predict_table.measured(some, about)
    apart = [abs(row.known.theoretical_occupancy / row.occupancy - 1) for row in rows]
    assert 0.15 < np.median(apart) < 0.25
