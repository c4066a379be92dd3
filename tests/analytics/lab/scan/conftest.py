"""A scan whose GPU is a formula, so that the best configuration is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from spanlite_analytics.lab.scan.build import BuildError, Built, Theory
from spanlite_analytics.lab.scan.runner import Measured
from spanlite_analytics.lab.scan.spec import Config, Spec, load

TEXT = """
kernel:
  cuda: k.cu
  entry: k
  grid: [n // tile]
  block: [threads]
  arguments:
    - {buffer: f32, count: n}
    - {scalar: i32, value: n}
  flops: 2 * n
  bytes: 8 * n
sizes: {n: 4096}
parameters:
  tile: {from: 8, to: 512, times: 2}
  threads: [32, 64, 128, 256, 512]
  order: [row, column]
constraints:
  - tile * threads <= 65536
"""


def built(spec: Spec, config: Config) -> Built:
    """Without a compiler. Tiles of 8 cannot be built."""
    if config["tile"] == 8:
        raise BuildError("a tile of 8 is too small")
    theory = Theory(32, 0, 1024, 4, 16, 0.25, "registers")
    return Built(spec, config, (1, 1, 1), (32, 1, 1), 0, (), {}, 8192.0, 32768.0, b"", theory)


class FormulaGpu:
    """Fastest at tile 64, threads 128, order column: 1000 ns; noise of a tenth of a percent."""

    gpu = "formula"

    def __init__(self) -> None:
        self.measured: list[Config] = []

    def measure(self, built: Built, repeats: int) -> Measured:
        self.measured.append(built.config)
        tile, threads = (float(built.config[name]) for name in ("tile", "threads"))
        far = math.log2(tile / 64) ** 2 + math.log2(threads / 128) ** 2
        time = 1000 * (1 + 0.1 * far + 0.2 * (built.config["order"] == "row"))
        times = tuple(time * (1 + 0.001 * (i % 3 - 1)) for i in range(repeats))
        return Measured(times, 10, {"sm_mhz": 1980}, built.theory)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a scan's file, with parts replaced."""

    def write(*changes: tuple[str, str], more: str = "") -> Path:
        text = TEXT + more
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "k.cu").write_text('extern "C" __global__ void k(float* x, int n) {}\n')
        path = tmp_path / "scan.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def spec(write: Callable[..., Path]) -> Spec:
    return load(write())
