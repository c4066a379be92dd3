"""Count the bank conflicts of some 300 shared-memory accesses with Nsight Compute, and keep them.

python3 -m bench.h200.lab_banks_table [--budget SECONDS] [--nvcc PATH] [--ncu PATH] [--compile-only]

Each access is one launch of one warp that does it 16 times and touches no global memory, so
that the counters hold nothing else. Runs of 8 and 40 launches say what a launch costs under
`ncu`; then as many as fit into the rest of the budget (default 60 s) are measured, and what
was measured is kept in any case. Writes bench/h200/tables/lab_banks.npz.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.h200._bank_patterns import OPERATIONS, SHARED_BYTES, Pattern, patterns
from bench.h200._device import Driver, compile_cubin, save, surroundings

REPEATS = 16
METRICS = {
    "conflicts_load": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "conflicts_store": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "wavefronts_load": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "wavefronts_store": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
}
TRIALS = (8, 40)
#: Launches in one run of ncu after that; what a run has measured is kept if the next one fails.
CHUNK = 130

_ASM = {
    "load 4 B": "ld.volatile.shared.u32 r0,[%0];",
    "load 8 B": "ld.volatile.shared.v2.u32 {r0,r1},[%0];",
    "load 16 B": "ld.volatile.shared.v4.u32 {r0,r1,r2,r3},[%0];",
    "store 4 B": "st.volatile.shared.u32 [%0],%1;",
    "store 8 B": "st.volatile.shared.v2.u32 [%0],{%1,%1};",
    "store 16 B": "st.volatile.shared.v4.u32 [%0],{%1,%1,%1,%1};",
    "ldmatrix.x1": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r0},[%0];",
    "ldmatrix.x2": "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {r0,r1},[%0];xor.b32 r0,r0,r1;",
    "ldmatrix.x4": "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r0,r1,r2,r3},[%0];"
    "xor.b32 r0,r0,r1;xor.b32 r2,r2,r3;xor.b32 r0,r0,r2;",
    "stmatrix.x4": "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0],{%1,%1,%1,%1};",
}
#: ldmatrix knows no volatile, so that equal ones would be made one, and unused ones none: each
#: address takes in what the last one read, times a zero that the compiler does not know.
_CHAIN = "and.b32 r0,r0,%2;add.u32 %0,%0,r0;"
_USE = "if(a==0xffffffffu)__nanosleep(1);"


def source() -> str:
    """One kernel for each operation. The addresses come with the launch, from constant memory."""
    parts = ["struct Pattern{unsigned address[32];unsigned active,zero;};\n"]
    for number, operation in enumerate(OPERATIONS):
        chained = operation.startswith("ldmatrix")
        asm = _ASM[operation] + (_CHAIN if chained else "")
        step = (
            f'asm volatile("{{.reg .b32 r0,r1,r2,r3;{asm}}}":"+r"(a):"r"(threadIdx.x),'
            '"r"(p.zero):"memory");'
        )
        parts.append(
            f'extern "C" __global__ void k{number}(const __grid_constant__ Pattern p){{'
            f"__shared__ __align__(1024) char s[{SHARED_BYTES}];"
            "unsigned a=(unsigned)__cvta_generic_to_shared(s)+p.address[threadIdx.x];"
            "if(p.active>>threadIdx.x&1){\n"
            f"#pragma unroll\nfor(int i=0;i<{REPEATS};i++){{{step}}}"
            f"{_USE if chained else ''}}}}}\n"
        )
    return "".join(parts)


class _Pattern(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint * 32), ("active", ctypes.c_uint), ("zero", ctypes.c_uint))


def launch_all(cubin: bytes, chosen: Sequence[Pattern]) -> None:
    """One launch of one warp each, in order. This part runs under `ncu`."""
    driver = Driver()
    module = driver.load_module(cubin)
    kernels = [driver.function(module, f"k{i}") for i in range(len(OPERATIONS))]
    for one in chosen:
        given = _Pattern((ctypes.c_uint * 32)(*one.addresses.tolist()), one.active, 0)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(given))
        kernel = kernels[OPERATIONS.index(one.operation)]
        driver("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
    driver("cuCtxSynchronize")


def measure(
    ncu: str, cubin: Path, seed: int, start: int, count: int, timeout_s: float
) -> dict[str, np.ndarray]:
    """Counters of patterns `start` to `start + count`."""
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--cache-control", "none"]
    command += ["--clock-control", "none", "--metrics", ",".join(METRICS.values())]
    child = [sys.executable, "-m", "bench.h200.lab_banks_table", "--seed", str(seed)]
    child += ["--child", str(cubin), str(start), str(count)]
    done = subprocess.run(
        command + child, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise RuntimeError(f"ncu failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return read_counters(done.stdout, count)


def read_counters(text: str, count: int) -> dict[str, np.ndarray]:
    """The counters in `ncu --csv --page raw`, one row a launch, in the order of launches."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        raise RuntimeError(f"ncu printed no table:\n{text[-2000:]}")
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[head:]))))[1:]
    if len(rows) != count:
        raise RuntimeError(f"ncu printed {len(rows)} launches of {count}")
    rows.sort(key=lambda row: int(row["ID"]))
    return {
        name: np.array([_count(row[metric]) for row in rows]) for name, metric in METRICS.items()
    }


def _count(text: str) -> int:
    """-1 where ncu has no value."""
    try:
        return round(float(text.replace(",", "")))
    except ValueError:
        return -1


def columns_of(chosen: Sequence[Pattern], counters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The table: patterns and counters."""
    return counters | {
        "operation": np.array([OPERATIONS.index(p.operation) for p in chosen]),
        "family": np.array([p.family for p in chosen]),
        "address": np.array([p.addresses for p in chosen]),
        "active": np.array([p.active for p in chosen], np.int64),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=60, help="seconds under ncu")
    parser.add_argument("--seed", type=int, default=90)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--compile-only", action="store_true", help="needs no GPU")
    parser.add_argument("--child", nargs=3, metavar=("CUBIN", "START", "COUNT"))
    args = parser.parse_args()
    made = patterns(args.seed)
    if args.child:
        path, start, count = args.child[0], int(args.child[1]), int(args.child[2])
        launch_all(Path(path).read_bytes(), made[start : start + count])
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_cubin(source(), folder, "banks", args.nvcc)
        if args.compile_only:
            print(f"compiled {len(OPERATIONS)} kernels for {len(made)} patterns")
            return
        run(args, folder / "banks.cubin", made)


def run(args: argparse.Namespace, cubin: Path, made: Sequence[Pattern]) -> None:
    """Two trials, then runs as long as they fit."""
    began, took, parts, done = time.monotonic(), [], [], 0

    def left() -> float:
        return args.budget - (time.monotonic() - began)

    def step(count: int) -> None:
        nonlocal done
        start = time.monotonic()
        parts.append(measure(args.ncu, cubin, args.seed, done, count, max(left(), 1)))
        took.append(time.monotonic() - start)
        done += count
        print(f"{count} launches in {took[-1]:.1f} s", flush=True)

    try:
        for count in TRIALS:
            step(count)
        each = max((took[1] - took[0]) / (TRIALS[1] - TRIALS[0]), 0.001)
        while done < len(made):
            fits = int((left() - took[0]) * 0.85 / each)
            if fits < TRIALS[0]:
                break
            step(min(fits, CHUNK, len(made) - done))
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"stopped after {done} patterns: {error}", file=sys.stderr)
    if not parts:
        raise SystemExit(1)
    counters = {name: np.concatenate([part[name] for part in parts]) for name in METRICS}
    about = surroundings() | {"repeats": REPEATS, "operations": OPERATIONS, "metrics": METRICS}
    path = save("lab_banks", columns_of(made[:done], counters), about)
    print(f"{done} of {len(made)} patterns in {path}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
