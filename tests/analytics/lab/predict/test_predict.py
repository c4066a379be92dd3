"""What is known before a fit, the fit itself on made-up launches, and the command."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spanlite_analytics.lab.occupancy import Launch
from spanlite_analytics.lab.predict.features import (
    H200,
    MEANING,
    Known,
    Query,
    know,
    published_occupancy,
)
from spanlite_analytics.lab.predict.model import fitted
from spanlite_analytics.lab.predict.work import Work
from spanlite_analytics.lab.toolchain import has_tools

#: Twenty clocks of issue and 500 of waiting for one load and one store of a float.
WORK = Work(10, 2, 20.0, 500.0, 900.0, 4, 4, 1, 1, 0, 0, 0, 0)


def query(grid: int = 132, block: int = 256, elements: int = 1 << 24, **more: Any) -> Query:
    launch = Launch(block, more.pop("registers", 32), 0, more.pop("shared", 0), grid_blocks=grid)
    return Query(launch, WORK, more.pop("unroll", 1), elements, more.pop("footprint", 2**30))


def known(*args: Any, **more: Any) -> Known:
    found = know(query(*args, **more), H200)
    assert found is not None
    return found


def test_occupancy_by_waves() -> None:
    assert known(132).wave_occupancy == 8 / 64  # one block an SM
    assert known(33).wave_occupancy == 8 / 64  # of the SMs that have one
    assert known(132 * 8).wave_occupancy == 1
    assert known(132 * 12).wave_occupancy == 12 / 2 / 8  # two waves, half of them full
    assert known(132 * 8).theoretical_occupancy == 1
    assert know(query(block=1024, registers=128), H200) is None
    assert know(query(grid=0), H200) is None


def test_published_formula_is_not_what_cuda_does() -> None:
    """docs/claims.md: three warps of 200 registers, of which two fit and not three."""
    launch = Launch(96, 200, grid_blocks=1)
    assert published_occupancy(launch, H200.sm) == 3 * 96 / 2048
    assert known(block=96, registers=200).theoretical_occupancy == 2 * 3 / 64


def test_times() -> None:
    one = known(132 * 8, footprint=1e9)
    moved = (1 << 24) * 8
    # Footprint far beyond the L2: all of it comes from memory.
    assert np.exp(one.features["log_dram"]) == pytest.approx(moved / 4.8e12, rel=0.01)
    assert one.roofline_s == pytest.approx(moved / 4.8e12 + 2e-6)
    near = known(132 * 8, footprint=1e6)
    assert near.features["log_dram"] == pytest.approx(np.log(1e-7))
    turns = (1 << 24) / (132 * 8 * 256)
    assert np.exp(near.features["log_latency"]) == pytest.approx(turns * 500 / 1.98e9, rel=0.02)
    issue = turns * 20 * 132 * 8 * 8 / (4 * 132) / 1.98e9
    assert np.exp(near.features["log_issue"]) == pytest.approx(issue, rel=0.02)
    assert list(MEANING) and set(MEANING) == set(near.features)


def test_the_fitted_model_knows_its_limits() -> None:
    model = fitted()
    inside = model.predict(known(132 * 8, footprint=2**27))
    assert inside.warnings == ()
    assert 0.5 < inside.occupancy.low < inside.occupancy.value <= inside.occupancy.high <= 1
    # 134 MB at 4.8 TB/s is 28 us.
    assert 28e-6 < inside.seconds.value < 100e-6
    assert inside.seconds.low < inside.seconds.value < inside.seconds.high
    far = model.predict(known(132 * 8 * 10_000, elements=1 << 38, footprint=2**37))
    assert any("the fit saw" in words for words in far.warnings)
    assert any("waves" in words for words in far.warnings)
    short = model.predict(known(132, elements=1 << 12, footprint=2**16))
    assert any("times below 8 us" in words for words in short.warnings)


def test_fit_finds_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is twice the bound but for one kind of launch, four times."""
    pytest.importorskip("sklearn")
    monkeypatch.setattr("spanlite_analytics.lab.predict.fit.STUMPS", 60)
    from spanlite_analytics.lab.predict.fit import Measured, fit
    from spanlite_analytics.lab.predict.model import Model

    draw = np.random.default_rng(1)
    rows = []
    for number in range(120):
        block = int(draw.choice([64, 128, 256, 512]))
        one = known(int(draw.integers(100, 3000)), block, int(draw.integers(1 << 22, 1 << 25)))
        factor = 4.0 if block == 512 else 2.0
        rows.append(
            Measured(f"family{number % 5}", one, one.bound_s * factor, 0.9 * one.wave_occupancy)
        )
    table, seconds, occupancy = fit(rows, folds=5)
    model = Model.read(table | {"about": {}})
    assert np.median(seconds.error) < 3 < np.median(seconds.unfitted)
    assert np.median(occupancy.error) < 0.5
    assert 0.8 <= seconds.covered <= 1
    for row in rows[:20]:
        got = model.predict(row.known)
        assert got.seconds.value == pytest.approx(row.seconds, rel=0.05)
        assert got.occupancy.value == pytest.approx(row.occupancy, rel=0.02)
        assert not [words for words in got.warnings if "the fit saw" in words]


SOURCE = """
extern "C" __global__ void axpy(float* __restrict__ y, const float* __restrict__ x, int n) {
  int d = gridDim.x * blockDim.x;
#pragma unroll 1
  for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < n; k += d) y[k] = 2.0f * x[k] + y[k];
}
extern "C" __global__ void other(float* y) { y[threadIdx.x] = 0; }
"""


@pytest.mark.skipif(
    not has_tools("nvcc", "nvdisasm", "cuobjdump"), reason="the extra `lab` is not installed"
)
def test_command(tmp_path: Path, spanlite: Any) -> None:
    path = tmp_path / "k.cu"
    path.write_text(SOURCE)
    words = ["--block", "256", "--grid", "1056", "--elements", "16777216", "--footprint", "1.3e8"]
    code, out, err = spanlite("lab", "predict", str(path), "--kernel", "axpy", *words)
    assert (code, err) == (0, "")
    assert "achieved occupancy" in out and "roofline" in out and "extrapolated" not in out
    code, out, err = spanlite("lab", "predict", str(path), *words)
    assert code == 2 and "it names other, axpy" in err
    words[7] = "nan"
    code, out, err = spanlite("lab", "predict", str(path), "--kernel", "axpy", *words)
    assert code == 2 and "--footprint must be 1 or more" in err
    words[1], words[7] = "1024", "1e8"
    tight = ("--kernel", "axpy", "--registers", "200")
    code, out, err = spanlite("lab", "predict", str(path), *tight, *words)
    assert code == 2 and "no block of 1024 threads" in err
