"""The programs that time kernels on the H200, run against a driver that answers by rule."""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3]))  # bench/ is no installed package
from bench.h200 import _device, _predict_kernels, _pressure_kernels
from bench.h200 import lab_predict_table as predict
from bench.h200 import lab_pressure_table as pressure


class Library:
    """libcuda in small: two blocks fit."""

    def __init__(self) -> None:
        self.memory: dict[int, bytes] = {}
        self.launches: list[tuple[int, int, int]] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name in ANSWERS:
                ANSWERS[name](self, *arguments)
            return 0

        return call

    def device(self, value: Any, number: int, _: Any) -> None:
        value._obj.value = {16: 132}.get(number, 1000)

    def function(self, value: Any, number: int, _: Any) -> None:
        value._obj.value = {4: 40}.get(number, 0)

    def occupancy(self, value: Any, *rest: Any) -> None:
        value._obj.value = 2

    def allocate(self, pointer: Any, _: Any) -> None:
        pointer._obj.value = 4096

    def elapsed(self, took: Any, *_: Any) -> None:
        took._obj.value = 0.1

    def launch(self, _: Any, grid: int, *rest: Any) -> None:
        self.launches.append((grid, rest[2], rest[5]))

    def read(self, target: Any, *_: Any) -> None:
        """The first warp of each block runs 200 clocks, the others 100; blocks go round the SMs."""
        grid, block, _shared = self.launches[-1]
        number = np.arange(grid * -(-block // 32))
        block_of, warp = np.divmod(number, -(-block // 32))
        got = np.zeros((len(number), 2), np.uint64)
        got[:, 0] = 5
        got[:, 1] = (block_of % 132 << 48) | np.where(warp == 0, 205, 105)
        ctypes.memmove(target, got.ctypes.data, got.nbytes)


ANSWERS: dict[str, Callable[..., None]] = {
    "cuDeviceGetAttribute": Library.device,
    "cuFuncGetAttribute": Library.function,
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": Library.occupancy,
    "cuMemAlloc_v2": Library.allocate,
    "cuEventElapsedTime": Library.elapsed,
    "cuLaunchKernel": Library.launch,
    "cuMemcpyDtoH_v2": Library.read,
}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Library:
    made = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: made)
    monkeypatch.setattr(_device, "TABLES", tmp_path)
    about = {"name": "a GPU", "driver_version": "1", "date": "today"}
    for module in (predict, pressure):
        monkeypatch.setattr(module, "surroundings", lambda: dict(about))
    return made


def run(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    folder = tmp_path / "cubins"
    folder.mkdir()
    for name, caps in (("pressure", _pressure_kernels.CAPS), ("predict", _predict_kernels.CAPS)):
        for cap in caps:
            (folder / f"{name}_{cap}.cubin").write_bytes(b"code" * (cap + 1))
    monkeypatch.setattr(sys, "argv", ["table", "--cubins", str(folder), *words])
    module.main()
    return _device.load(tmp_path / f"{module.__name__.split('.')[-1].removesuffix('_table')}.npz")


def test_pressure_program(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, about = run(pressure, tmp_path, monkeypatch, "--limit", "3")
    # One register count under each cap, so one row a kernel for each number of blocks that fits.
    assert columns["blocks"].tolist() == [1, 2] * 3
    assert columns["kernel"].tolist() == [0, 0, 1, 1, 2, 2]
    assert set(columns["span_cycles"].tolist()) == {200}
    assert set(columns["warp_cycles"].tolist()) == {125}
    assert columns["even"].all()
    assert set(columns["time_ns"].tolist()) == {round(1e5 / pressure.REPEATS)}
    assert about["kernels"][0].startswith("micro_")
    assert len(about["kernels"]) == len(set(about["kernels"])) == len(about["flops"])
    cubins = pressure.unpacked(columns["cubins"], about["cubins"])
    assert cubins == {cap: b"code" * (cap + 1) for cap in _pressure_kernels.CAPS}


def test_predict_program(library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns, about = run(predict, tmp_path, monkeypatch, "--rows", "66", "--ncu-budget", "0")
    assert 40 < len(columns["config"]) <= 66
    columns = {name: values.astype(np.int64) for name, values in columns.items()}
    assert (columns["warps"] == columns["block"] // 32 * columns["grid"]).all()
    inside = (columns["warps"] + columns["grid"]) * 100
    expected = inside / (np.minimum(columns["grid"], 132) * 200 * 64) * 1e6
    assert np.allclose(columns["occupancy_ppm"], expected, atol=1)
    assert len(about["families"]) == len(about["known"])
    assert sorted(set(columns["family"])) == list(range(len(about["families"])))


def test_configurations_are_launches() -> None:
    """Every thread of a loop with barriers makes every turn, and no grid is empty."""
    kinds = _predict_kernels.families()
    for config in _predict_kernels.configs(600, seed=3):
        grid = _predict_kernels.grid_of(config, 4, 132)
        bound = _predict_kernels.elements_of(config, grid)
        turn = grid * config.block * config.unroll
        assert grid > 0 and 0 < bound <= turn * _predict_kernels.MOST_TURNS
        assert not kinds[config.family].barrier or bound % turn == 0
        assert config.footprint & (config.footprint - 1) == 0


def test_ncu_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ncu --csv --page raw` prints them, in any order of rows."""
    names = [metric for metric, _ in predict.METRICS.values()]
    lines = ["==PROF== 1 pass", ",".join(f'"{n}"' for n in ("ID", *names)), '""' + ',""' * 4]
    lines += ['"1","50.5","1,000","3000","7"', '"0","25","500","1,500","3"']
    done = type("Done", (), {"returncode": 0, "stdout": "\n".join(lines), "stderr": ""})
    monkeypatch.setattr(predict.subprocess, "run", lambda *_, **__: done)
    args = type("Args", (), {"ncu": "ncu", "rows": 9, "seed": 1})
    got = predict.count_with_ncu(args, "", np.array([4, 7]), 9)
    assert got["ncu_warps_ppm"].tolist() == [250_000, 505_000]
    assert got["ncu_time_ns"].tolist() == [1500, 3000]
