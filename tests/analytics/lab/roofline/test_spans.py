"""Operators of an archive: by hand, and of torch.profiler's own traces."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from spanlite_analytics.lab.roofline.spans import call_of

DATA = Path(__file__).parents[5] / "shared" / "data"
HOUR = 1_796_108_400_000_000_000
TRACE = f"{7:032x}"


def row(span: int, parent: int | None, kind: str, name: str, **more: Any) -> dict[str, Any]:
    fields = {"trace_id": TRACE, "span_id": span, "parent_span_id": parent, "start_ns": HOUR + span}
    return fields | {"kind": kind, "name": name, "duration_ns": 1000} | more


def operator(span: int, name: str, sizes: list[Any], kind: str, parent: int | None = None) -> Any:
    types = [kind if size else "" for size in sizes]
    attributes = json.dumps({"Input Dims": sizes, "Input type": types})
    return row(span, parent, "operator", name, attributes=attributes)


def test_kernels_climb_to_their_operator(build: Any, spanlite: Any) -> None:
    """A split product's two kernels count together; the inner operator wins; no sizes: counted."""
    sizes = [[64, 512], [512, 256]]
    resource = json.dumps({"gpu.name": "NVIDIA H200"})
    build.spans(
        operator(1, "aten::linear", [[64, 512], [256, 512]], "c10::BFloat16"),
        operator(2, "aten::mm", sizes, "c10::BFloat16", 1),
        row(3, 2, "runtime_call", "cudaLaunchKernel"),
        row(4, 2, "runtime_call", "cudaLaunchKernel"),
        row(5, 3, "kernel", "gemm", duration_ns=7000, resource=resource, sampling_weight=3.0),
        row(6, 4, "kernel", "reduce", duration_ns=2000, resource=resource, sampling_weight=3.0),
        row(7, None, "kernel", "orphan", duration_ns=9000, resource=resource),
        row(8, None, "operator", "mine::op"),
        row(9, 8, "kernel", "custom", duration_ns=9000, resource=resource),
    )
    code, out, err = spanlite("lab", "roofline", "--archive", build.root, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    (one,) = found["kernels"]
    assert (one["operator"], one["kernel"], one["time_ns"], one["runs"]) == ("mm", "gemm", 9000, 3)
    assert one["flops"] == {"bf16": 2 * 64 * 512 * 256}
    assert found["gpu"] == "H200"
    assert (found["kernels_seen"], found["without_sizes"]) == (4, 2)
    assert math.isclose(found["without_sizes_share"], 18 / (18 + 27))
    names = {rest["kernel"] for rest in found["largest_without_sizes"]}
    assert names == {"orphan", "custom"}


def test_counters_place_kernels_without_sizes(build: Any, spanlite: Any, tmp_path: Path) -> None:
    build.spans(row(1, None, "kernel", "custom", duration_ns=2000))
    heads = '"ID","Kernel Name","Block Size","Grid Size","CC","dram__bytes_read.sum"'
    table = f'{heads},"dram__bytes_write.sum"\n"","","","","","byte","byte"\n'
    path = tmp_path / "x.csv"
    path.write_text(table + '"0","custom","(32, 1, 1)","(8, 1, 1)","9.0","4,000,000","800,000"\n')
    code, out, err = spanlite("lab", "roofline", path, "--archive", build.root, "--json")
    assert (code, err) == (0, "")
    (one,) = json.loads(out)["kernels"]
    assert (one["from"], one["bound"]) == ("counters", "memory")
    assert one["detail"] == "(FLOPs were not counted)"
    assert math.isclose(one["roof_share"], 0.5)
    assert json.loads(out)["without_sizes_share"] == 0


def test_nothing_to_place(build: Any, spanlite: Any) -> None:
    build.spans(row(1, None, "kernel", "custom"))
    code, out, _ = spanlite("lab", "roofline", "--archive", build.root)
    assert code == 1
    assert "1 of 1 kernels, 100% of the time, have neither sizes nor counters" in out


def test_two_kinds_of_gpu(build: Any, spanlite: Any) -> None:
    for number, name in enumerate(("NVIDIA H200", "NVIDIA A100-SXM4-80GB")):
        resource = json.dumps({"gpu.name": name})
        build.spans(row(number + 1, None, "kernel", name, resource=resource))
    code, _, err = spanlite("lab", "roofline", "--archive", build.root)
    assert code == 2 and "several GPU types" in err and "--kernel or --trace" in err


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"Input Dims": 3}'])
def test_attributes_that_are_none(text: str) -> None:
    call = call_of("aten::mm", text)
    assert call is None or call.sizes == []


def test_a_real_trace(tmp_path: Path, make_sink: Any, spanlite: Any) -> None:
    """Qwen1.5-0.5B, forward, on an H100: 16 x 559 tokens."""
    if not DATA.is_dir():
        pytest.skip("the real traces are not in ../shared/data")
    from spanlite_collectors.importers.kineto import import_kineto
    from spanlite_collectors.importers.options import ImportOptions

    sink = make_sink(tmp_path / "archive")
    import_kineto(DATA / "kineto" / "h100_qwen1.5_0.5b.json.gz", sink, ImportOptions())
    code, out, err = spanlite("lab", "roofline", "--archive", tmp_path / "archive", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["gpu"] == "H100 SXM"
    assert found["kernels_seen"] == 1465
    assert 0 < found["without_sizes"] < 450  # 436 kernels of this trace have no launch
    rows = {(k["operator"], k["detail"]): k for k in found["kernels"]}
    up = rows["mm", "(8944,1024) x (1024,2816) c10::BFloat16"]
    assert up["runs"] == 48  # gate and up of 24 layers
    assert (up["bound"], up["limit"]) == ("compute", "tensor cores")
    assert up["flops"] == {"bf16": 2 * 8944 * 1024 * 2816}
    assert all(0 < k["roof_share"] < 1.05 for k in found["kernels"])
