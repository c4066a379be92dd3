"""Measure a GPU's ceilings, and count the bytes and FLOPs of some kernels with Nsight Compute.

python3 -m bench.h200.lab_roofline_table [--ncu PATH] [--no-counters] [--small]

Needs torch and triton. Ceilings: copy, triad and read of arrays far larger than the L2, and
matrix products of each type. Then operators with known shapes are timed, and profiled under
`ncu` with cold caches; each operator's kernels follow a marker kernel. Writes
bench/h200/tables/lab_roofline.json. About 40 s.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.h200._device import TABLES, surroundings

TYPES = ("bf16_dst_fp32", "fp16", "fp64", "fp8_sparsity_off", "fp8_sparsity_on", "int8")
METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_bytes.sum",
    *(
        f"smsp__sass_thread_inst_executed_op_{kind}{op}_pred_on.sum"
        for kind in "fdh"
        for op in ("add", "mul", "fma")
    ),
    *(f"sm__ops_path_tensor_src_{name}.sum" for name in (*TYPES, "tf32_dst_fp32")),
)
TABLE = TABLES / "lab_roofline.json"
MARKER = "FillFunctor"
Operation = tuple[str, str, list[list[int]], Callable[[], Any]]


def operations(torch: Any, small: bool, only: str = "") -> Iterator[Operation]:
    """Those with `only` in their name."""
    for one in all_operations(torch, small):
        if only in one[0]:
            yield one


def all_operations(torch: Any, small: bool) -> Iterator[Operation]:
    """(operator, type, its input sizes, a call), made one at a time so that memory is freed."""
    f, cut = torch.nn.functional, 8 if small else 1
    half, single = torch.bfloat16, torch.float32

    def new(dtype: Any, *size: int) -> Any:
        wide = torch.randn(*size, device="cuda") if dtype != torch.int8 else None
        if wide is None:
            return torch.randint(-100, 100, size, device="cuda", dtype=dtype)
        return wide.to(dtype)

    n = (1 << 28) // cut
    a = new(single, n)
    yield "aten::sum", "float", [[n]], a.sum
    b, c = new(single, n), new(single, n)
    yield "aten::add", "float", [[n], [n]], lambda: torch.add(a, b)
    yield "aten::addcmul", "float", [[n], [n], [n]], lambda: torch.addcmul(a, b, c)
    h = c.to(half)
    yield "aten::copy_", "float <- c10::BFloat16", [[n], [n]], lambda: a.copy_(h)
    a = b = c = h = None
    rows = (1 << 17) // cut
    x = new(half, rows, 4096)
    w = new(half, 4096)
    size = [rows, 4096]
    yield "aten::gelu", "c10::BFloat16", [size], lambda: f.gelu(x)
    yield "aten::softmax", "c10::BFloat16", [size], lambda: f.softmax(x, -1)
    normed = [size, [], [4096], [4096]]
    yield "aten::layer_norm", "c10::BFloat16", normed, lambda: f.layer_norm(x, (4096,), w, w)
    yield "aten::rms_norm", "c10::BFloat16", [size, [], [4096]], lambda: f.rms_norm(x, (4096,), w)
    x = None
    for name, dtype, m, depth, out in (
        ("c10::BFloat16", half, 4096, 4096, 4096),
        ("c10::BFloat16", half, 64, 8192, 28672),
        ("c10::Half", torch.float16, 2048, 8192, 4096),
        ("float", single, 2048, 2048, 2048),
        ("double", torch.float64, 2048, 2048, 2048),
    ):
        p, q = new(dtype, m, depth), new(dtype, out, depth).t()
        sizes = [[m, depth], [depth, out]]
        yield "aten::mm", name, sizes, lambda p=p, q=q: torch.mm(p, q)  # type: ignore[misc]
    p, q = new(single, 4096, 4096), new(single, 4096, 4096).t()
    yield "aten::mm", "tf32", [[4096, 4096]] * 2, lambda: tf32(torch, p, q)
    p, q = (new(half, 4096, 4096).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    scaled = torch._scaled_mm
    yield (
        "aten::_scaled_mm", "c10::Float8_e4m3fn", [[4096, 4096]] * 2,
        lambda: scaled(p, q.t(), one, one, out_dtype=half),
    )  # fmt: skip
    p, q = new(torch.int8, 4096, 4096), new(torch.int8, 4096, 4096)
    yield "aten::_int_mm", "signed char", [[4096, 4096]] * 2, lambda: torch._int_mm(p, q.t())
    heads = [8, 32, 4096 // (2 if small else 1), 128]
    q, k, v = (new(half, *heads) for _ in range(3))
    attention = "aten::scaled_dot_product_attention"
    flash = f.scaled_dot_product_attention
    yield attention, "c10::BFloat16", [heads] * 3, lambda: flash(q, k, v)
    yield (
        attention + " causal", "c10::BFloat16", [heads] * 3,
        lambda: flash(q, k, v, is_causal=True),
    )  # fmt: skip
    yield from causal_attention(torch, small, new)
    p, q = new(half, 64, 2048, 128), new(half, 64, 128, 2048)
    p, q = p.contiguous(), q.contiguous()
    yield "aten::bmm", "c10::BFloat16", [[64, 2048, 128], [64, 128, 2048]], lambda: torch.bmm(p, q)


def causal_attention(torch: Any, small: bool, new: Callable[..., Any]) -> Iterator[Operation]:
    """Other lengths, and PyTorch's own FlashAttention beside cuDNN's: their tiles differ."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run(backend: Any, q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    half = torch.bfloat16
    for word, backend in (
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ("flash", SDPBackend.FLASH_ATTENTION),
    ):
        for length, width in ((512, 128), (2048, 64), (4096, 128)):
            heads = [2 if small else 8, 16, length, width]
            q, k, v = (new(half, *heads) for _ in range(3))
            yield (
                f"aten::scaled_dot_product_attention causal {word}", "c10::BFloat16", [heads] * 3,
                lambda q=q, k=k, v=v, b=backend: run(b, q, k, v),  # type: ignore[misc]
            )  # fmt: skip


def tf32(torch: Any, p: Any, q: Any) -> Any:
    """A product of floats by the tensor cores."""
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return torch.mm(p, q)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def event_ns(torch: Any, call: Callable[[], Any], rounds: int = 12) -> float:
    """Median of so many calls."""
    for _ in range(2):
        call()
    taken = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) * 1e6)
    return sorted(taken)[len(taken) // 2]


def bandwidths(torch: Any, small: bool) -> dict[str, float]:
    """Bytes a second of copy, triad and read, with FP32 arrays of 2 GiB."""
    n = (1 << 29) // (8 if small else 1)
    a, b, c = (torch.randn(n, device="cuda") for _ in range(3))

    def rate(count: int, call: Callable[[], Any]) -> float:
        return count * n * 4 / event_ns(torch, call) * 1e9

    found = {
        "copy": rate(2, lambda: a.copy_(b)),
        "triad": rate(3, lambda: torch.add(b, c, alpha=0.5, out=a)),
        "read": rate(1, lambda: torch.sum(a)),
        "write": rate(1, lambda: a.fill_(1.5)),
    }
    for name, value in found.items():
        print(f"{name}: {value / 1e12:.3f} TB/s", flush=True)
    return found


def products(torch: Any, small: bool) -> dict[str, float]:
    """FLOP/s of square matrix products of each type, the best of some sizes."""
    half, found = torch.bfloat16, {}

    def square(dtype: Any, n: int) -> tuple[Any, Any]:
        if dtype == torch.int8:
            p, q = (torch.randint(-99, 99, (n, n), device="cuda", dtype=dtype) for _ in range(2))
        else:
            p, q = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
        return p, q.t()

    one = torch.ones((), device="cuda")
    fp8, scaled = torch.float8_e4m3fn, torch._scaled_mm
    for name, dtype, sizes, call in (
        ("fp64", torch.float64, (4096,), torch.mm),
        ("fp32_vector", torch.float32, (8192,), torch.mm),
        ("tf32", torch.float32, (4096, 8192), lambda p, q: tf32(torch, p, q)),
        ("bf16", half, (4096, 8192, 16384), torch.mm),
        ("fp16", torch.float16, (8192,), torch.mm),
        ("fp8", fp8, (8192, 16384), lambda p, q: scaled(p, q, one, one, out_dtype=half)),
        ("int8", torch.int8, (8192,), torch._int_mm),
    ):
        try:
            for n in (2048,) if small else sizes:
                p, q = square(dtype, n)
                taken = event_ns(torch, lambda c=call, p=p, q=q: c(p, q), 8)  # type: ignore[misc]
                found[name] = max(found.get(name, 0.0), 2 * n**3 / taken * 1e9)
            print(f"{name}: {found[name] / 1e12:.1f} TFLOP/s", flush=True)
        except Exception:
            print(name, traceback.format_exc(limit=2), flush=True)
    return found


def timed(torch: Any, small: bool, only: str = "") -> list[dict[str, Any]]:
    """Each operator with its time."""
    found = []
    for name, dtype, sizes, call in operations(torch, small, only):
        row: dict[str, Any] = {"operator": name, "type": dtype, "sizes": sizes}
        try:
            row["time_ns"] = event_ns(torch, call, 8)
        except Exception:
            print(name, traceback.format_exc(limit=2), flush=True)
        found.append(row)
    return found


def inner(small: bool, only: str = "") -> None:
    """What `ncu` profiles: a marker, then the operator once; both were run before."""
    import torch

    mark = torch.zeros(64, device="cuda")
    for _, _, _, call in operations(torch, small, only):
        for profiled in (False, True):
            torch.cuda.synchronize()
            if profiled:
                torch.cuda.profiler.start()
            try:
                mark.fill_(1.0)
                call()
            except Exception:
                print(traceback.format_exc(limit=2), file=sys.stderr)
            torch.cuda.synchronize()
            if profiled:
                torch.cuda.profiler.stop()


def counted(ncu: str, small: bool, seconds: float, only: str = "") -> list[list[dict[str, Any]]]:
    """The kernels of each operator: name, and metrics in base units."""
    here = [sys.executable, "-m", "bench.h200.lab_roofline_table", "--inner", "--only", only]
    options = "--csv --page raw --print-units base --clock-control none --cache-control all"
    done = subprocess.run(
        [
            *(ncu, *options.split(), "--profile-from-start", "off", "--target-processes", "all"),
            *("--metrics", ",".join(METRICS), *here, *(["--small"] if small else [])),
        ],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    print(done.stderr[-1500:], flush=True)
    groups = group(done.stdout)
    if not groups:
        print(done.stdout[-3000:], flush=True)
    return groups


def group(text: str) -> list[list[dict[str, Any]]]:
    """Cut the profiler's table at the markers."""
    rows = list(csv.reader(io.StringIO("\n".join(x for x in text.splitlines() if x[:1] == '"'))))
    groups: list[list[dict[str, Any]]] = []
    for row in rows[2:]:
        fields = dict(zip(rows[0], row, strict=True))
        if MARKER in fields["Kernel Name"]:
            groups.append([])
        elif groups:
            values = {name: number(fields.get(name, "")) for name in METRICS}
            groups[-1].append({"kernel": fields["Kernel Name"], "metrics": values})
    return groups


def number(text: str) -> float | None:
    """None where the profiler has none, such as n/a."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def write(table: dict[str, Any]) -> Path:
    """The table as it is now."""
    TABLES.mkdir(exist_ok=True)
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
    return TABLE


def without(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that were not measured anew."""

    def key(row: dict[str, Any]) -> str:
        return json.dumps([row[name] for name in ("operator", "type", "sizes")])

    there = {key(row) for row in new}
    return [row for row in old if key(row) not in there]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--no-counters", action="store_true")
    parser.add_argument("--seconds", type=float, default=150, help="longest that ncu may take")
    parser.add_argument("--small", action="store_true", help="arrays of an eighth, to try it out")
    parser.add_argument("--only", default="", help="operators with this in their name")
    parser.add_argument("--add", action="store_true", help="to the table; no ceilings")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inner:
        inner(args.small, args.only)
        return
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    start = time.monotonic()
    if args.add:
        table = json.loads(TABLE.read_text())
        table.setdefault("added", []).append(surroundings())
    else:
        table = {"about": surroundings()}
        table["bytes_per_s"] = bandwidths(torch, args.small)
        table["flops_per_s"] = products(torch, args.small)
    rows = timed(torch, args.small, args.only)
    table["operators"] = without(table.get("operators", ()), rows) + rows
    write(table)
    torch.cuda.empty_cache()
    print(f"timed after {time.monotonic() - start:.1f} s", flush=True)
    if not args.no_counters:
        try:
            found = counted(args.ncu, args.small, args.seconds, args.only)
            for row, kernels in zip(rows, found, strict=True):
                row["kernels"] = kernels
        except Exception:
            print(traceback.format_exc(limit=3), flush=True)
    for row in rows:
        names = [k["kernel"][:50] for k in row.get("kernels", [])]
        print(row["operator"], row["type"], row["sizes"], row.get("time_ns"), names, flush=True)
    path = write(table)
    print(f"{len(rows)} operators in {path} after {time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
