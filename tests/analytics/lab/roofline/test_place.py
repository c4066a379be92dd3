"""Ceilings, verdicts, counters."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from spanlite.errors import InputError, UsageError
from spanlite.occupancy import known_gpu
from spanlite_analytics.lab.counters import Counted
from spanlite_analytics.lab.roofline import (
    GPUS,
    Point,
    Work,
    ceilings,
    ceilings_of,
    measured_h200,
    place,
    work_counted,
)

H200 = next(gpu for gpu in GPUS if gpu.name == "H200")


def point(work: Work, time_ns: float) -> Point:
    return Point("k", "k", work, time_ns, 1, "shapes")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA B200", "B200"),
        ("Tesla T4", None),
    ],
)
def test_names(name: str, expected: str | None) -> None:
    found = ceilings_of(name)
    assert (found and found.name) == expected
    if found is not None:
        known = known_gpu(name)
        assert known is not None and known[1] == found.sms


#: FLOP a clock and SM of the tensor cores, dense; and the clock that the sheet goes by, in GHz.
@pytest.mark.parametrize(
    ("name", "bf16_a_clock", "ghz"),
    [
        ("H100 SXM", 4096, 1.83),
        ("H200", 4096, 1.83),
        ("H100 PCIe", 4096, 1.62),
        ("A100", 2048, 1.41),
    ],
)
def test_sheets_agree_with_the_chip(name: str, bf16_a_clock: int, ghz: float) -> None:
    gpu = next(gpu for gpu in GPUS if gpu.name == name)
    assert math.isclose(gpu.flops_per_s["bf16"], gpu.sms * bf16_a_clock * ghz * 1e9, rel_tol=0.002)
    assert math.isclose(gpu.flops_per_s["tf32"] * 2, gpu.flops_per_s["bf16"], rel_tol=0.002)
    for kind in {"fp8", "int8"} & gpu.flops_per_s.keys():
        assert math.isclose(gpu.flops_per_s[kind], gpu.flops_per_s["bf16"] * 2, rel_tol=0.002)


def test_verdicts() -> None:
    memory = place(point(Work({"bf16": 1e6}, 4e6, 0.8e6), 2000), H200)
    assert (memory.verdict, memory.limit) == ("memory", "memory")
    assert math.isclose(memory.share, 0.5) and math.isclose(memory.distance, 2)
    assert math.isclose(memory.roof_ns, 1000)
    compute = place(point(Work({"bf16": 989.4e9}, 1e6, 1e6), 2e6), H200)
    assert (compute.verdict, compute.limit) == ("compute", "tensor cores")
    assert math.isclose(compute.share, 0.5)
    vector = place(point(Work({"fp32_vector": 66.9e9, "bf16": 1e9}, 1e6, 1e6), 1e6), H200)
    assert (vector.verdict, vector.limit) == ("compute", "FP pipes")
    assert place(point(Work({}, 4.8e6, 0), 1e6), H200).verdict == "latency"
    cached = place(point(Work({}, 9.6e6, 0), 1000), H200)
    assert cached.share == 2 and "L2" in cached.note
    tf32 = place(point(Work({"fp32_vector": 200e9}, 1e6, 0), 1e6), H200)
    assert "TF32" in tf32.note
    a100 = ceilings.named("A100")
    assert "no rate for fp8" in place(point(Work({"fp8": 1e9}, 1e6, 0), 1e6), a100).note


def test_types_of_two_units_do_not_add_up() -> None:
    """They work side by side; two types of one unit take turns."""
    one = place(point(Work({"bf16": 989.4e6, "fp32_vector": 66.9e6}, 0, 8), 2000), H200)
    assert math.isclose(one.roof_ns, 1000)
    two = place(point(Work({"bf16": 989.4e6, "fp8": 1978.9e6}, 0, 8), 4000), H200)
    assert math.isclose(two.roof_ns, 2000)


def test_the_measured_h200_is_below_its_sheet() -> None:
    found = measured_h200()
    assert found.measured and "lab_roofline_table" in found.source
    assert 0.75 < found.bytes_per_s / H200.bytes_per_s < 1
    for kind, rate in found.flops_per_s.items():
        assert 0.4 < rate / H200.flops_per_s[kind] <= 1.05, kind
    with pytest.raises(UsageError, match="only an H200"):
        ceilings.named("H100", measured=True)
    with pytest.raises(UsageError, match="known: H100 SXM"):
        ceilings.named("abacus")


def counted(**values: float) -> Counted:
    return Counted(
        "k", 128, 4, "9.0", {name.replace("_sum", ".sum"): v for name, v in values.items()}
    )


def test_counters() -> None:
    values = {
        "dram__bytes_read_sum": 100.0,
        "dram__bytes_write_sum": 50.0,
        "sm__ops_path_tensor_src_bf16_dst_fp32_sum": 4096.0,
        "sm__ops_path_tensor_src_fp8_sparsity_off_sum": 8.0,
        "smsp__sass_thread_inst_executed_op_ffma_pred_on_sum": 10.0,
        "smsp__sass_thread_inst_executed_op_fadd_pred_on_sum": 3.0,
        "smsp__sass_thread_inst_executed_op_hfma_pred_on_sum": 2.0,
    }
    found = work_counted(counted(**values))
    flops = {"bf16": 4096, "fp8": 8, "fp32_vector": 23, "fp16_vector": 8}
    assert found == Work(flops, 100, 50)
    with pytest.raises(InputError, match="--set full"):
        work_counted(counted(dram__bytes_read_sum=1.0))


def test_rates_a_cycle_become_counts() -> None:
    name = "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum.per_cycle_elapsed"
    values = {"dram__bytes_read.sum": 1.0, "dram__bytes_write.sum": 1.0, name: 1.5}
    row = Counted("k", 1, 1, "9.0", values | {"smsp__cycles_elapsed.max": 1000.0})
    assert work_counted(row).flops == {"fp32_vector": 1500}
    assert work_counted(Counted("k", 1, 1, "9.0", values)).flops == {}


def test_one_operator(spanlite: Any) -> None:
    command = ("lab", "roofline", "--operator", "mm", "--sizes", "64x8192,8192x28672")
    code, out, err = spanlite(*command, "--us", "120", "--gpu", "H200", "--json")
    assert (code, err) == (0, "")
    (row,) = json.loads(out)["kernels"]
    assert row["flops"] == {"bf16": 2 * 64 * 8192 * 28672}
    assert row["bound"] == "memory" and 0.8 < row["roof_share"] < 0.85
    code, _, err = spanlite(*command)
    assert code == 2 and "--us" in err
    for time in ("inf", "1e-300"):
        code, _, err = spanlite(*command, "--us", time)
        assert code == 2 and "--us" in err
    code, _, err = spanlite("lab", "roofline", "--operator", "mm", "--sizes", "2x3", "--us", "1")
    assert code == 2 and "no rule" in err


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
def test_plots(suffix: str, tmp_path: Path, spanlite: Any) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"roof{suffix}"
    command = ("lab", "roofline", "--operator", "mm", "--sizes", "64x64,64x64", "--us", "5")
    code, _, err = spanlite(*command, "--plot", path)
    assert (code, err) == (0, "")
    data = path.read_bytes()
    assert len(data) > 5000
    if suffix == ".png":
        assert data.startswith(b"\x89PNG")
        return
    text = data.decode()
    assert 'id="kernel-0"' in text
    if suffix == ".html":
        # One file: nothing is fetched. XML namespaces are names, not addresses to load.
        assert "<title>mm (64,64)" in text or "<title>mm 64x64" in text
        assert "src=" not in text and "@import" not in text and "<link" not in text


def test_plots_that_cannot_be(tmp_path: Path, spanlite: Any) -> None:
    command = ("lab", "roofline", "--operator", "mm", "--sizes", "64x64,64x64", "--us", "5")
    code, _, err = spanlite(*command, "--plot", tmp_path / "roof.gif")
    assert code == 2 and "suffix" in err
    pytest.importorskip("matplotlib")
    code, _, err = spanlite(*command, "--plot", tmp_path / "no" / "roof.png")
    assert code == 2 and "cannot be written" in err


def test_ceilings_are_listed(spanlite: Any) -> None:
    code, out, _ = spanlite("lab", "roofline", "--ceilings", "--json")
    assert code == 0
    assert [gpu["name"] for gpu in json.loads(out)] == [*(gpu.name for gpu in GPUS), "H200"]
    code, out, _ = spanlite("lab", "roofline", "--ceilings")
    assert code == 0 and "datasheet" in out
