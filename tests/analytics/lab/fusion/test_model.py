"""The model on made-up times, and the advice from the table that comes with the package."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spanlite_analytics.lab.fusion import Chain, Shape, Tile
from spanlite_analytics.lab.fusion.advise import advise, default_model
from spanlite_analytics.lab.fusion.model import START, Model, fit, physical
from spanlite_analytics.lab.fusion.table import (
    Table,
    Way,
    from_columns,
    from_json,
    measured,
    to_json,
)
from spanlite_analytics.lab.fusion.tiles import suits

sys.path.append(str(Path(__file__).parents[4]))  # bench/ is no installed package
from bench import lab_fusion
from bench.h200 import _fusion_compile
from bench.h200 import _fusion_shapes as plan

WAYS = (Way("unfused"), Way("all", Tile(64, 128, 64, 4, 4)), Way("all", Tile(128, 128, 64, 8, 4)))


def made(noise: float = 0.0, seed: int = 3) -> Table:
    """Times by the physical layer with other constants, and a wave on top that it cannot know."""
    draw = np.random.default_rng(seed)
    shape = np.array(
        [(t, h, o) for t in (64, 256, 1024, 4096) for h in (1024, 2048, 4096) for o in (2048, 8192)]
    )
    chain = np.zeros(len(shape), dtype=np.int64)
    times = []
    for number, way in enumerate(WAYS):
        constants = START + np.array([0.2, -0.1, 0.15, 0.2, 0.1, 0.1]) * (number - 1)
        base = physical(constants, way, chain, shape.astype(float))
        wave = 0.05 * np.sin(np.log2(shape) @ [0.7, 0.5, 0.3] + number)
        times.append(base * np.exp(wave + draw.normal(0, noise, len(shape))))
    about: dict[str, Any] = {"tiles": [asdict(w.tile) for w in WAYS if w.tile], "static": 0}
    about |= {"chains": ["rmsnorm,gemm,bias,silu"], "splits": ["torch", "unfused", "all"]}
    assert WAYS[1].tile
    compiled = {(WAYS[1].name, 0): (120, 98_304)}
    return Table(
        about,
        ("rmsnorm,gemm,bias,silu",),
        WAYS,
        WAYS[1].tile,
        chain,
        shape,
        np.array(times).T,
        compiled,
    )


def test_measured_shapes_are_met_and_held_out_ones_come_near() -> None:
    pytest.importorskip("scipy")
    table = made()
    constants = fit(table)
    times, spread = Model(constants, table).predict(table.chain, table.shape)
    assert np.abs(times / table.time_ns - 1).max() < 0.01
    keep = np.arange(len(table)) % 5 != 2
    part = table.rows(keep)
    held, wide = Model(fit(part), part).predict(table.chain[~keep], table.shape[~keep])
    assert np.abs(held / table.time_ns[~keep] - 1).max() < 0.15
    assert wide.mean() > 2 * spread.mean()


def test_far_away_the_physical_layer_remains() -> None:
    table = made()
    constants = np.tile(START, (len(WAYS), 1))
    far = np.array([[1 << 19, 64, 1 << 19]])
    chain = np.zeros(1, dtype=np.int64)
    times, spread = Model(constants, table).predict(chain, far)
    for number, way in enumerate(WAYS):
        base = physical(START, way, chain, far.astype(float))[0]
        assert abs(times[0, number] / base - 1) < 0.01
    assert (spread > 0.1).all()


def test_more_work_takes_longer() -> None:
    for way in WAYS:
        shape = np.array([[t, 4096, 8192] for t in (128, 512, 2048, 8192)], dtype=float)
        times = physical(START, way, np.zeros(4, dtype=np.int64), shape)
        assert (np.diff(times) > 0).all()


def test_json_keeps_the_table() -> None:
    table = made()
    again = from_json(json.loads(json.dumps(to_json(table))))
    assert again.ways == table.ways and again.static == table.static
    assert again.compiled == table.compiled
    assert np.abs(again.time_ns - table.time_ns).max() <= 5
    assert (again.shape == table.shape).all()


def test_columns_become_a_table() -> None:
    columns = {
        "chain": np.array([0, 0, 1]), "tokens": np.array([8, 8, 8]), "hidden": np.array([64] * 3),
        "out": np.array([32] * 3), "split": np.array([1, 2, 1]), "tile": np.array([-1, 0, -1]),
        "time_ns": np.array([10.0, 20.0, 30.0]), "registers": np.array([-1, 99, -1]),
        "shared_bytes": np.array([-1, 5, -1]),
    }  # fmt: skip
    about = {"tiles": [asdict(Tile(16, 32, 64, 4, 4))], "static": 0}
    about |= {"chains": ["a", "b"], "splits": ["torch", "unfused", "all"]}
    table = from_columns(columns, about)
    assert [way.name for way in table.ways] == ["unfused", "all 16x32x64 w4 s4 k1"]
    assert np.array_equal(table.time_ns, [[10, 20], [30, np.nan]], equal_nan=True)
    assert table.compiled == {("all 16x32x64 w4 s4 k1", 0): (99, 5)}
    assert table.find(1, Shape(8, 64, 32)) == 1
    assert table.find(1, Shape(9, 64, 32)) is None


def test_gaps_are_of_the_measured_times() -> None:
    table = made()
    table.time_ns[:, 2] = table.time_ns[:, 0] * 0.5
    table.time_ns[:, 1] = table.time_ns[:, 0]
    worst = np.zeros(len(table), dtype=np.int64)
    assert np.allclose(lab_fusion.gaps(table, worst), 100)
    assert np.allclose(lab_fusion.split_gaps(table, worst), 100)
    # The right split with the wrong tile: no gap of the split.
    wrong_tile = np.ones(len(table), dtype=np.int64)
    assert np.allclose(lab_fusion.gaps(table, wrong_tile), 100)
    assert np.allclose(lab_fusion.split_gaps(table, wrong_tile), 0)


def test_the_package_carries_the_table_of_the_h200() -> None:
    table, carried = lab_fusion.read(), measured()
    assert carried.about["date"] == table.about["date"]
    assert carried.ways == table.ways
    assert np.nanmax(np.abs(carried.time_ns - table.time_ns)) <= 5.01
    assert np.array(carried.about["constants"]).shape == (len(table.ways), 6)


def test_outputs_were_right() -> None:
    columns, about = lab_fusion.load(lab_fusion.TABLE)
    assert "H200" in about["name"] and about["driver_version"] and about["clocks.sm"]
    assert columns["error"].max() <= about["most_error"]
    # Fused outputs are as near to FP64 as torch's own: its operators round in between.
    torch = columns["error"][columns["split"] == 0]
    assert columns["error"].max() <= 1.5 * torch.max()


def test_the_plan_holds_what_the_issue_asks() -> None:
    shapes = np.array(plan.shapes())
    assert len(shapes) == len(np.unique(shapes, axis=0))
    assert (shapes[:, 1].min(), shapes[:, 1].max()) == (1, 4096)
    assert (shapes[:, 2].min(), shapes[:, 2].max()) == (768, 8192)
    assert set(shapes[:, 0].tolist()) == {0, 1}
    for chain, tokens, hidden, out in shapes[::7].tolist():
        found = plan.candidates(tokens, hidden, out)
        assert {c.split for c in found} >= {"torch", *plan.SPLITS}, (chain, tokens, hidden, out)


def test_the_tool_allows_the_tiles_that_were_measured() -> None:
    for _, tokens, hidden, out in plan.shapes()[::3]:
        allowed = {
            tile.name
            for tile in plan.TILES
            if suits(Tile(**asdict(tile)), tokens, hidden, out) or tile == plan.STATIC
        }
        assert allowed == {tile.name for tile in plan.tiles_for(tokens, hidden, out)}


def test_every_kernel_of_the_plan_is_compiled_beforehand() -> None:
    found = _fusion_compile.jobs(plan.shapes(), plan.TILES)
    assert len(found) == len(set(found))
    for tile in plan.TILES:
        kinds = {job[1:3] for job in found if job[0] == tile}
        # The epilogue alone, and each with a norm: of the chains that its shapes have.
        assert (0, True) in kinds and (1, True) in kinds


def test_a_measured_shape(spanlite: Any) -> None:
    table = measured()
    tokens, hidden, out = table.shape[len(table) // 2].tolist()
    chain = table.chains[table.chain[len(table) // 2]]
    where = ("--tokens", tokens, "--hidden", hidden, "--out", out, "--chain", chain)
    code, shown, err = spanlite("lab", "fusion", *where, "--json")
    assert (code, err) == (0, "")
    found = json.loads(shown)
    times = table.time_ns[len(table) // 2]
    best = np.nanmin([t for t, way in zip(times, table.ways, strict=True) if way.split != "torch"])
    assert found["chosen"]["measured_ns"] == best
    assert found["notes"] == []
    assert {"unfused", "epilogue", "prologue", "all"} <= {o["split"] for o in found["options"]}
    code, shown, _ = spanlite("lab", "fusion", *where)
    assert code == 0 and "(measured)" in shown


def test_other_shapes_and_chains() -> None:
    found = advise(Chain.parse("rmsnorm,gemm,bias,silu"), Shape(300, 4000, 4096))
    assert found.chosen.measured_ns is None
    assert "nearest measured shape" in found.notes[-1]
    far = advise(Chain.parse("rmsnorm,gemm,bias,silu"), Shape(300, 256, 1 << 18))
    assert "outside the measured range" in far.notes[-1]
    plain = advise(Chain.parse("gemm,bias,gelu"), Shape(128, 4096, 4096))
    assert {o.way.split for o in plain.options} == {"unfused", "epilogue", "torch"}
    assert "was not measured" in plain.notes[0]
    full = advise(Chain.parse("layernorm,gemm,bias,gelu"), Shape(128, 4096, 4096))
    by_split = {o.way.split: o.predicted_ns for o in full.options if o.way.split == "unfused"}
    less = {o.way.split: o.predicted_ns for o in plain.options if o.way.split == "unfused"}
    assert less["unfused"] < by_split["unfused"]


def test_bad_input(spanlite: Any) -> None:
    code, _, err = spanlite("lab", "fusion", "--tokens", "0", "--hidden", "64", "--out", "64")
    assert code == 2 and "--tokens must be" in err
    where = ("--tokens", "8", "--hidden", "64", "--out", "64", "--chain", "gemm,norm")
    code, _, err = spanlite("lab", "fusion", *where)
    assert code == 2 and "must be rmsnorm or layernorm" in err


def test_the_model_is_read_once() -> None:
    assert default_model() is default_model()
