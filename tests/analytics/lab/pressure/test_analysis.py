"""Kernels compiled here: their loops, live registers, spills and the advice."""

from pathlib import Path
from typing import Any

import pytest
from spanlite.errors import UsageError
from spanlite.occupancy import limits_of
from spanlite_analytics.lab import frame
from spanlite_analytics.lab.audit.inputs import Unit, units_of
from spanlite_analytics.lab.pressure import analysis
from spanlite_analytics.lab.pressure.loops import loops_of
from spanlite_analytics.lab.pressure.pipes import chip_of
from spanlite_analytics.lab.toolchain import Compiler, has_tools

if not has_tools("nvcc", "nvdisasm", "cuobjdump"):
    pytest.skip("the CUDA compiler is not installed (the extra `lab`)", allow_module_level=True)

SOURCE = """
extern "C" __global__ void heavy(float* x, const float* y, int n) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = y[i * 32 + threadIdx.x];
#pragma unroll 1
  for (int k = 0; k < n; k++) {
    float v = y[k];
#pragma unroll
    for (int i = 0; i < 64; i++) a[i] = a[i] * v + a[(i * 7 + 3) % 64];
  }
  float t = 0;
#pragma unroll
  for (int i = 0; i < 64; i++) t += a[i];
  x[threadIdx.x] = t;
}
extern "C" __global__ void straight(float* x) { x[threadIdx.x] *= 2.0f; }
extern "C" __global__ void nested(float* x, int n) {
  float a = x[threadIdx.x];
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    a += 1.0f;
#pragma unroll 1
    for (int j = 0; j < i; j++) a = a * a + 0.5f;
  }
  x[threadIdx.x] = a;
}
"""


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Unit:
    path = tmp_path_factory.mktemp("pressure") / "k.cu"
    path.write_text(SOURCE)
    return units_of(path, Compiler())[0]


@pytest.fixture(scope="module")
def setting() -> analysis.Setting:
    return analysis.Setting(limits_of("9.0"), chip_of("9.0"), 132, threads=128)


def kernel(unit: Unit, name: str) -> analysis.Kernel:
    (found,) = analysis.kernels_of(unit, name)
    return found


def test_loop_and_live_registers(unit: Unit) -> None:
    heavy = kernel(unit, "heavy")
    assert heavy.loop.flops == 2 * 64
    assert heavy.loop.mix()["FP32"] == 64
    file, first, last = heavy.loop.lines
    assert (Path(file).name, first, last) == ("k.cu", 7, 10)
    assert 64 < heavy.peak.live <= heavy.resources.registers
    assert heavy.peak.place.line == 5
    assert heavy.routine.spills() == (0, 0)


def test_nested_loops(unit: Unit) -> None:
    nested = kernel(unit, "nested")
    assert sorted((loop.depth, loop.innermost) for loop in loops_of(nested.routine)) >= [
        (1, False),
        (2, True),
    ]
    assert nested.loop.depth == 2
    start = next(loop.start for loop in loops_of(nested.routine) if loop.depth == 1)
    outer = analysis.at_loop(nested, start)
    assert len(outer.loop.code) > len(nested.loop.code)
    with pytest.raises(UsageError, match="no loop of nested starts at 0x7"):
        analysis.at_loop(nested, 7)


def test_a_function_without_a_loop(unit: Unit, setting: analysis.Setting) -> None:
    straight = kernel(unit, "straight")
    assert straight.loop.depth == 0
    assert straight.loop.code[-1].name == "EXIT"
    assert analysis.row_of(straight, setting) is not None


def test_fewer_registers_are_really_compiled(unit: Unit, setting: analysis.Setting) -> None:
    heavy = kernel(unit, "heavy")
    others = analysis.recompiled(unit, "heavy", (40, 56, 128), "sm_90a")
    rows = analysis.table(heavy, others, setting)
    by_cap = {row.cap: row for row in rows}
    assert rows == sorted(rows, key=lambda row: -row.registers)
    assert by_cap[40].registers <= 40 and by_cap[56].registers <= 56
    assert by_cap[40].warps > by_cap[56].warps > by_cap[0].warps
    # Spilled values come back from local memory, more of them the fewer registers there are.
    assert by_cap[40].spill_loads > by_cap[56].spill_loads > 0 == by_cap[0].spill_loads
    assert by_cap[40].spill_cost > by_cap[56].spill_cost > 0
    assert analysis.best_of(rows).cap in (0, 128)
    words = " ".join(analysis.advice(heavy, rows, setting))
    assert "keep" in words


def test_a_kernel_compiled_too_tight_is_told(unit: Unit, setting: analysis.Setting) -> None:
    tight, *_ = analysis.recompiled(unit, "heavy", (40,), "sm_90a")
    heavy = kernel(unit, "heavy")
    rows = analysis.table(tight, [heavy], setting)
    words = " ".join(analysis.advice(tight, rows, setting))
    assert "spilled registers, or an array" in words
    best = analysis.best_of(rows)
    assert f"__launch_bounds__(128, {best.blocks})" in words
    assert best.registers == heavy.resources.registers


def test_launch_bounds_do_not_hold_the_trial_back(tmp_path: Path) -> None:
    """ptxas heeds them, not -maxrregcount."""
    path = tmp_path / "k.cu"
    path.write_text(
        SOURCE.replace("__global__ void heavy", "__global__ void __launch_bounds__(128, 12) heavy")
    )
    (made,) = units_of(path, Compiler())
    bounded = kernel(made, "heavy")
    assert bounded.resources.registers <= 40 and bounded.resources.stack_bytes > 0
    (free,) = analysis.recompiled(made, "heavy", (128,), "sm_90a")
    assert free.resources.registers > 64 and free.resources.stack_bytes == 0


def test_command(tmp_path: Path, spanlite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "_EVERY_S", -1.0)  # a line of progress each time
    path = tmp_path / "k.cu"
    path.write_text(SOURCE)
    words = ("lab", "pressure", str(path), "--kernel", "heavy", "--block", "128", "--caps", "48,64")
    code, out, err = spanlite(*words)
    assert code == 0
    first, *steps = err.splitlines()
    assert first == "pressure: reading machine code: 0 of 1"
    assert [step.partition(" with ")[2] for step in steps] == [
        "64 registers at most: 0 of 2",
        "48 registers at most: 1 of 2",
    ]
    assert "main loop" in out and "64 FP32" in out and "warps/SM" in out
    code, out, err = spanlite("lab", "pressure", str(path), "--kernel", "none")
    assert code == 2 and "no machine code of a kernel named 'none'" in err
    for flag, value in (("--clock", "-3"), ("--conflicts", "nan"), ("--block", "2000")):
        code, out, err = spanlite("lab", "pressure", str(path), flag, value)
        assert code == 2 and flag in err
    code, out, err = spanlite("lab", "pressure", str(path), "--caps", "4")
    assert code == 2 and "from 16 to 255" in err
