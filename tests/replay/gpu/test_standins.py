"""Which kernel stands in for a recorded one, and how it is told its time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from spanlite_replay.recording import Recording
from spanlite_replay.targets.gpu.calibration import Table
from spanlite_replay.targets.gpu.driver import Device
from spanlite_replay.targets.gpu.source import register_class, source_of
from spanlite_replay.targets.gpu.standins import Shapes, shapes_of

H200 = Device("NVIDIA H200", (9, 0), 132, "CUDA 13.0")
Rows = Callable[[list[dict[str, Any]]], pa.Table]
BASE = {"kind": "kernel", "stream": 7, "start_ns": 0, "duration_ns": 1}
SMALL = {"grid_x": 4, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}


def shapes(make_rows: Rows, *rows: dict[str, Any]) -> Shapes:
    rec = Recording.from_table(make_rows([BASE | row for row in rows]))
    return shapes_of(rec, np.arange(len(rows)), H200, "wall")


def test_equal_launches_are_one_shape(make_rows: Rows) -> None:
    big = SMALL | {"grid_x": 1000, "registers_per_thread": 168, "dynamic_shared_bytes": 164_308}
    found = shapes(make_rows, SMALL, big, SMALL)
    assert found.of.tolist() == [0, 1, 0] and found.runs.all()
    one = found.launches[1]
    assert (one.grid, one.block, one.shared_bytes, one.registers) == (
        (1000, 1, 1), (128, 1, 1), 164_308, 168,
    )  # fmt: skip
    # One block of that much shared memory fits on an SM: 132 at once, 8 rounds.
    assert (found.blocks_per_wave[1], found.waves[1]) == (132, 8)
    assert found.waves[0] == 1


def test_shared_memory_of_both_kinds_is_one(make_rows: Rows) -> None:
    found = shapes(make_rows, SMALL | {"static_shared_bytes": 100, "dynamic_shared_bytes": 28})
    assert found.launches[0].shared_bytes == 128


def test_a_cluster_is_kept(make_rows: Rows) -> None:
    found = shapes(make_rows, SMALL | {"cluster_x": 2, "cluster_y": 1, "cluster_z": 1})
    assert found.launches[0].cluster == (2, 1, 1)


def test_without_a_grid_one_block_stands_in(make_rows: Rows) -> None:
    found = shapes(make_rows, {}, SMALL)
    assert found.without_grid == 1
    bare = found.launches[found.of[0]]
    assert (bare.grid, bare.block, bare.cluster) == ((1, 1, 1), (32, 1, 1), (0, 0, 0))


def test_what_no_sm_can_hold_does_not_run(make_rows: Rows) -> None:
    found = shapes(make_rows, SMALL, SMALL | {"dynamic_shared_bytes": 400_000})
    assert found.runs.tolist() == [True, False]


def test_bytes_of_a_kernel_are_moved(make_rows: Rows) -> None:
    found = shapes(make_rows, SMALL | {"bytes": 4096}, SMALL)
    assert sorted(found.moved_bytes[found.of].tolist()) == [0, 4096]
    assert found.stand_in(int(found.of[0]), 10, -1).moved_bytes == 4096


def test_registers_fall_into_the_classes_that_are_allocated() -> None:
    assert [register_class(n) for n in (0, 18, 24, 32, 33, 168, 205, 255)] == [
        24, 24, 24, 32, 40, 168, 208, 255,
    ]  # fmt: skip
    assert "#define LIVE 158\n" in source_of(168)


def test_what_to_tell_follows_from_what_was_measured() -> None:
    table = Table(np.array([[0, 1_000, 4_000, 9_000]]), np.array([[1_200, 1_900, 4_900, 9_900]]))
    assert table.length_for(0, 1_000) == 0 and table.floor_ns(0) == 1_200
    assert table.length_for(0, 1_900) == 1_000
    assert table.length_for(0, 3_400) == 2_500
    assert table.length_for(0, 109_900) == 109_000


def test_waves_stretch_what_is_told() -> None:
    # A cycle is half a nanosecond: beyond the table its rate goes on.
    table = Table(np.array([[0, 2_000, 6_000]]), np.array([[1_000, 2_000, 4_000]]))
    assert table.length_for(0, 6_000) == pytest.approx(10_000)
