"""The whole target on a driver that keeps what it is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spanlite_replay.fidelity.report import compare
from spanlite_replay.plan import Plan
from spanlite_replay.runner import run_plan
from spanlite_replay.targets.base import REPLAY_ID_KEY
from spanlite_replay.targets.gpu.driver import Captured
from spanlite_replay.targets.gpu.ops import Operator
from spanlite_replay.targets.gpu.target import GpuTarget
from spanlite_replay.targets.gpu.tuning import Tuning

HERE = Path(__file__).parents[2] / "recordings"
ImportRows = Callable[[Path], pa.Table]
PlanOf = Callable[..., Plan]
Run = Callable[..., tuple[int, str, str]]
HOUR = 1_796_108_400_000_000_000


@pytest.mark.parametrize("name", ["eager_s4", "graph_s1", "graph_s8"])
def test_a_recording_is_replayed_in_time(
    name: str, import_rows: ImportRows, plan_of: PlanOf, driver: Any
) -> None:
    table = import_rows(HERE / f"{name}.json.gz")
    report = run_plan(plan_of(table), GpuTarget(driver, "r1"))
    assert report.closes and report.observed is not None and driver.closed
    fidelity = compare(table, report.observed)
    assert (fidelity.grade.letter, fidelity.lost, fidelity.violations) == ("A", 0, 0)
    assert report.observed.schema.metadata[REPLAY_ID_KEY] == b"r1"
    host = len(table) - fidelity.spans
    assert report.fates["unsupported"].spans == host
    assert report.fates["launched"].spans == fidelity.spans


def test_each_kernel_has_the_recorded_launch(
    import_rows: ImportRows, plan_of: PlanOf, driver: Any
) -> None:
    table = import_rows(HERE / "graph_s1.json.gz")
    target = GpuTarget(driver, "r")
    run_plan(plan_of(table), target)
    made = [
        node for graph in driver.graphs[-2:] for node in graph if node.what in ("kernel", "copy")
    ]
    rows = table.to_pylist()
    device = sorted(
        (row for row in rows if row["kind"] in ("kernel", "memcpy")),
        key=lambda row: row["start_ns"],
    )
    assert len(made) == len(device) == 258
    for node, row in zip(made, device, strict=True):
        if row["kind"] == "memcpy":
            assert (node.way, node.size_bytes) == (row["copy_kind"], row["bytes"])
            continue
        assert node.launch.grid == (row["grid_x"], row["grid_y"], row["grid_z"])
        assert node.launch.block == (row["block_x"], row["block_y"], row["block_z"])
        assert node.launch.shared_bytes == row["dynamic_shared_bytes"]
        assert 0 <= node.launch.registers - row["registers_per_thread"] < 8
    # Kernels that share a place for their start would end each other.
    stamps = [node.work.stamp for node in made if node.work is not None and node.work.stamp >= 0]
    assert len(stamps) == len(set(stamps)) > 100


@pytest.mark.parametrize(
    ("name", "held", "least", "most"),
    [("graph_s1", 0.0, 15, 20), ("graph_s8", 0.0, 55, 65), ("graph_s8", None, 90, 100)],
)
def test_a_gpu_that_is_full_is_told(
    name: str, held: Any, least: int, most: int, import_rows: ImportRows, plan_of: PlanOf,
    driver: Any,
) -> None:  # fmt: skip
    """Recorded lengths have waits for room in them: held as long, they would fill an H200."""
    target = GpuTarget(driver, "r", tuning=Tuning(held=held))
    report = run_plan(plan_of(import_rows(HERE / f"{name}.json.gz")), target)
    room = int(str(report.facts["room"]).split()[2])
    assert least <= room <= most


def test_a_slower_gpu_shows(import_rows: ImportRows, plan_of: PlanOf, driver: Any) -> None:
    table = import_rows(HERE / "graph_s1.json.gz")
    target = GpuTarget(driver, "r")
    plan = plan_of(table)
    events = np.flatnonzero(plan.fate == 0)
    supported = target.prepare(plan, events)
    driver.slower = 1.5  # after the calibration
    target.launch(events[supported])
    observed = target.drain().observed
    fidelity = compare(table, observed)
    assert fidelity.durations.bias_pct is not None and fidelity.durations.bias_pct > 25
    assert fidelity.violations == 0


def test_what_is_not_measured_is_lost(
    import_rows: ImportRows, plan_of: PlanOf, driver: Any
) -> None:
    table = import_rows(HERE / "graph_s1.json.gz")
    target, plan = GpuTarget(driver, "r"), plan_of(table)
    events = np.flatnonzero(plan.fate == 0)
    supported = target.prepare(plan, events)
    driver.lose = lambda node: node.what == "copy"
    target.launch(events[supported])
    outcome = target.drain()
    fidelity = compare(table, outcome.observed)
    assert fidelity.lost == 12 and fidelity.violations == 0
    assert "12 lost" in str(outcome.facts["measured_by"])


def test_graphs_go_out_as_their_events_are_due(
    make_rows: Any, plan_of: PlanOf, driver: Any
) -> None:
    grid = {"grid_x": 1, "grid_y": 1, "grid_z": 1, "block_x": 32, "block_y": 1, "block_z": 1}
    rows = [
        {"kind": "kernel", "stream": 7, "start_ns": HOUR + i * 10**6, "duration_ns": 2_000, **grid}
        for i in range(6)
    ]
    target = GpuTarget(driver, "r", tuning=Tuning(fewest_items=2))
    plan = plan_of(make_rows(rows))
    events = np.arange(6)
    assert target.prepare(plan, events).all()
    target.launch(events[:3])
    assert len(driver.launched) == 1 and not driver.went
    target.launch(events[3:5])
    assert len(driver.launched) == 2
    # The last two were never asked for: an interrupt came.
    observed = target.drain().observed
    assert len(observed) == 4


def test_the_queue_is_let_go_before_it_is_full(
    import_rows: ImportRows, plan_of: PlanOf, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spanlite_replay.targets.gpu import target as module

    monkeypatch.setattr(module, "QUEUED_NODES", 100)
    went: list[bool] = []
    launch = driver.launch
    monkeypatch.setattr(driver, "launch", lambda ready: (went.append(driver.went), launch(ready)))
    target = GpuTarget(driver, "r", tuning=Tuning(fewest_items=20))
    report = run_plan(plan_of(import_rows(HERE / "graph_s1.json.gz")), target)
    # The last launches are of the replay; before them each calibration launched its own graph.
    assert report.closes and went[-6:] == [False, False, True, True, True, True]


def test_branches_that_overlap_share_the_first_gate(
    import_rows: ImportRows, plan_of: PlanOf, driver: Any
) -> None:
    target = GpuTarget(driver, "r")
    run_plan(plan_of(import_rows(HERE / "graph_s4.json.gz")), target)
    order = target._order
    items = np.concatenate(target._built.items)
    nodes = [node for graph in driver.graphs[-order.graphs :] for node in graph]
    first = np.concatenate(([0], np.cumsum([len(graph) for graph in target._built.items])))
    later = np.flatnonzero(order.overlaps >= 0)
    assert len(later) > 3
    for item in later.tolist():
        at, other = (int(np.flatnonzero(items == one)[0]) for one in (item, order.overlaps[item]))
        graph = int(order.graph[item])
        gate, earlier = at - 1, other - 1
        assert nodes[gate].what == nodes[earlier].what == "gate"
        assert earlier - first[graph] in nodes[gate].after


def test_what_was_observed_can_be_kept(
    import_rows: ImportRows, plan_of: PlanOf, driver: Any, tmp_path: Path
) -> None:
    out = tmp_path / "seen.parquet"
    report = run_plan(
        plan_of(import_rows(HERE / "graph_s1.json.gz")), GpuTarget(driver, "r", out=out)
    )
    kept = pq.read_table(out)
    assert kept.equals(report.observed)
    assert kept.schema.metadata[b"spanlite.spin"] == b"wall"
    assert b"Some GPU" in kept.schema.metadata[b"spanlite.gpu"]


class SomeOperators:
    """Knows GEMMs and layer norms, one kernel each."""

    def __init__(self) -> None:
        self.asked: list[Operator] = []
        self.closed = False

    def capture(self, operator: Operator) -> list[Captured] | str:
        self.asked.append(operator)
        if operator.name not in ("aten::addmm", "aten::native_layer_norm"):
            return f"no {operator.name} here"
        return [Captured(len(self.asked), True, operator.name)]

    def close(self) -> None:
        self.closed = True


def test_ops_mode_runs_what_was_recorded_with_shapes(
    import_rows: ImportRows, plan_of: PlanOf, driver: Any
) -> None:
    operators = SomeOperators()
    target = GpuTarget(driver, "r", operators)
    report = run_plan(plan_of(import_rows(HERE / "eager_s1.json.gz")), target)
    nodes = [node for graph in driver.graphs for node in graph]
    captured = [node.captured.label for node in nodes if node.what == "captured"]
    coverage = target.coverage
    # 6 steps of 3 layers: 3 of 4 GEMMs (the fourth is two kernels here), 2 norms; 6 of the head.
    assert captured.count("aten::addmm") == 6 * (3 * 3 + 1)
    assert captured.count("aten::native_layer_norm") == 6 * 3 * 2
    assert (coverage.kernels, coverage.covered) == (246, len(captured))
    assert sum(coverage.why.values()) == coverage.kernels - coverage.covered
    assert coverage.why["aten::addmm is made of other kernels here"] == 36
    assert 0 < coverage.time_pct < 100 and "kernels (" in str(report.facts["coverage"])
    # The same operator on the same stream is captured once.
    assert len(operators.asked) < 15 and operators.closed
    assert all(one.told["Input Dims"] and one.told["Input type"] for one in operators.asked)


def test_a_name_alone_is_no_operator(import_rows: ImportRows, plan_of: PlanOf, driver: Any) -> None:
    """Kernels of a graph carry no operator: all of them are stand-ins."""
    operators = SomeOperators()
    target = GpuTarget(driver, "r", operators)
    run_plan(plan_of(import_rows(HERE / "graph_s1.json.gz")), target)
    assert operators.asked == [] and target.coverage.covered == 0
    assert target.coverage.why == {"no operator recorded": 246}


def test_operators_of_several_streams_are_kept_apart(
    import_rows: ImportRows, plan_of: PlanOf, driver: Any
) -> None:
    operators = SomeOperators()
    target = GpuTarget(driver, "r", operators)
    run_plan(plan_of(import_rows(HERE / "eager_s4.json.gz")), target)
    lanes = {one.lane for one in operators.asked if one.name == "aten::addmm"}
    assert len(lanes) == 4


def test_copies_and_memsets_are_real(make_rows: Any, plan_of: PlanOf, driver: Any) -> None:
    base = {"stream": 7, "duration_ns": 2_000, "bytes": 4096}
    rows = [
        base | {"kind": "memcpy", "copy_kind": way, "start_ns": HOUR + i * 50_000}
        for i, way in enumerate(["htod", "dtoh", "dtod", "htoh", "atoh", "ptop", None])
    ]
    rows.append(base | {"kind": "memset", "start_ns": HOUR + 900_000, "bytes": 64})
    run_plan(plan_of(make_rows(rows)), GpuTarget(driver, "r"))
    nodes = [node for node in driver.graphs[-1] if node.what in ("copy", "memset")]
    assert [node.way for node in nodes[:-1]] == [
        "htod", "dtoh", "dtod", "htoh", "dtoh", "dtod", "dtod",
    ]  # fmt: skip
    assert nodes[-1].what == "memset" and nodes[-1].size_bytes == 64


def test_flags_of_the_gpu_belong_to_it(tmp_path: Path, spanlite: Run) -> None:
    for flags in (["--mode", "ops"], ["--spin", "work"], ["--steer", "1us"]):
        code, _, err = spanlite("replay", tmp_path, "--target", "sim", *flags)
        assert code == 2 and f"{flags[0]} needs --target gpu" in err
    code, _, err = spanlite("replay", tmp_path, "--target", "gpu", "--no-wait")
    assert code == 2 and "--target gpu has a clock of its own" in err
    for flags, word in (
        (["--steer", "1"], "not a duration"),
        (["--steer", "2ms"], "100us at most"),
        (["--steer", "1us", "--spin", "work"], "by the wall clock"),
    ):
        code, _, err = spanlite("replay", tmp_path, "--target", "gpu", *flags)
        assert code == 2 and word in err


def test_without_a_gpu_it_says_what_is_missing(
    tmp_path: Path, spanlite: Run, write_archive: Any, make_spans: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from spanlite_replay.targets.gpu import cuda

    def none(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cuda.ctypes, "CDLL", none)
    batch = make_spans(start_ns=[HOUR], span_id=[1], trace_id_low=[1], kind=[1], duration_ns=[5])
    archive = write_archive(tmp_path / "archive", batch)
    code, out, err = spanlite("replay", archive, "--target", "gpu", "--json")
    assert code == 2 and out == ""
    assert "no driver (libcuda.so.1)" in err and "--target sim" in err


def test_the_report_says_how_it_came_about(
    import_rows: ImportRows, plan_of: PlanOf, driver: Any
) -> None:
    report = run_plan(plan_of(import_rows(HERE / "graph_s1.json.gz")), GpuTarget(driver, "r"))
    facts = json.loads(report.to_json())
    text = json.dumps(facts)
    for word in ("Some GPU", "CUPTI", "gates", "timing", "wall"):
        assert word in text


def told(driver: Any, graphs: int) -> list[Any]:
    """What the stand-ins of the last graphs, those of the replay, were told."""
    nodes = [node for graph in driver.graphs[-graphs:] for node in graph]
    return [node.work for node in nodes if node.what == "kernel"]


def test_blocks_hold_the_sms_as_long_as_they_would_have_alone(
    import_rows: ImportRows, plan_of: PlanOf, driver: Any
) -> None:
    plan = plan_of(import_rows(HERE / "graph_s4.json.gz"))
    held = {}
    for share in (0.0, 0.5, 1.0, None):
        run_plan(plan, GpuTarget(driver, "r", tuning=Tuning(held=share)))
        held[share] = np.array([[one.hold, one.length] for one in told(driver, 6)])
    assert len(held[0.0]) == 984
    for share in (0.0, 0.5, 1.0):
        hold, length = held[share].T
        assert (hold > 0).all() and (hold <= np.maximum(length, 1)).all()
    assert 0.5 < held[0.0][:, 0].sum() / held[0.5][:, 0].sum() < 0.95
    assert (held[1.0][:, 0] == np.maximum(held[1.0][:, 1], 1)).all()
    assert (held[None][:, 0] == 0).all()


def test_ends_are_steered_only_where_asked(
    import_rows: ImportRows, plan_of: PlanOf, driver: Any
) -> None:
    plan = plan_of(import_rows(HERE / "graph_s1.json.gz"))
    run_plan(plan, GpuTarget(driver, "r"))
    assert {one.steer_ns for one in told(driver, 2)} == {0}
    run_plan(plan, GpuTarget(driver, "r", tuning=Tuning(steer_ns=900)))
    assert {one.steer_ns for one in told(driver, 2)} == {900}
    work = plan.work
    assert work is not None
    device = work.is_device & (work.kind == 1)
    ends = (work.start_ns + work.duration_ns)[device]
    due = np.array([one.due_ns for one in told(driver, 2)])
    assert np.array_equal(due - due[0], ends - ends[0])
