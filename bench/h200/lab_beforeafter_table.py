"""Time a slow kernel and its repairs, and profile each with Nsight Compute: docs/lab.md's figures.

python3 -m bench.h200.lab_beforeafter_table [--size N] [--repeats N] [--no-ncu] [--compile-only]

The kernels are bench/h200/kernels/scores_*.cu, in the order in which docs/lab.md repairs them. Each
result is compared with cuBLAS's in double precision. Needs CuPy, nvcc and ncu; where the
agent's library is built (`make agent`), the counters are sampled beside the kernels, too. Writes
bench/h200/tables/lab_beforeafter.json and lab_beforeafter_ncu.csv.gz, which
`spanlite lab explain none scores_slow --ncu` reads.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.h200._device import TABLES, compile_cubin, surroundings

ROOT = Path(__file__).parents[2]
KERNELS = Path(__file__).parent / "kernels"
#: Name, block and tile of each step.
STEPS = {
    "scores_slow": ((32, 32), 32),
    "scores_registers": ((32, 32), 32),
    "scores_coalesced": ((32, 32), 32),
    "scores_padded": ((32, 32), 32),
    "scores_padded_16": ((32, 32), 32),
    "scores_tiled": ((32, 8), 64),
}
DEPTH, GROUP = 128, 8
#: What explain and this table look at; ncu's full set has ten times as many columns.
_KEPT = (
    "ID", "Kernel Name", "Block Size", "Grid Size", "CC", "launch__", "gpu__", "l1tex__throughput",
    "l1tex__data_bank", "l1tex__data_pipe", "lts__throughput", "sm__throughput", "sm__warps_active",
    "sm__pipe_tensor", "smsp__average_warps_issue_stalled", "smsp__inst_executed", "smsp__sass",
    "dram__bytes",
)  # fmt: skip
_DURATION = "gpu__time_duration.sum"
SHOWN = {
    "bank_conflicts_loads": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "bank_conflicts_stores": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "bytes_a_sector_of_loads": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",
    "local_loads": "smsp__sass_inst_executed_op_local_ld.sum",
    "local_stores": "smsp__sass_inst_executed_op_local_st.sum",
    "instructions": "smsp__inst_executed.sum",
    "l1_pct": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
}


def build(name: str, folder: Path, nvcc: str) -> Path:
    """The cubin of a step, its kernel named after it."""
    text = (KERNELS / f"{name}.cu").read_text()
    compile_cubin(f"#define scores {name}\n{text}", folder, name, nvcc, "-lineinfo")
    return folder / f"{name}.cubin"


class Problem:
    """Buffers, and the result that every kernel must give."""

    def __init__(self, size: int) -> None:
        import cupy

        self.cupy, self.size = cupy, size
        random = cupy.random.RandomState(7)
        self.queries, self.keys = (
            random.standard_normal((DEPTH, size), dtype=cupy.float32) for _ in range(2)
        )
        self.scales = random.uniform(0.5, 2, DEPTH // GROUP).astype(cupy.float32)
        self.out = cupy.empty((size, size), cupy.float32)

    def expected(self) -> Any:
        """In double precision."""
        wide = self.cupy.float64
        scaled = self.queries.astype(wide) * self.cupy.repeat(self.scales, GROUP)[:, None]
        return scaled.T @ self.keys.astype(wide)

    def launcher(self, name: str, cubin: Path) -> Any:
        """A function that launches a step."""
        kernel = self.cupy.RawModule(path=str(cubin)).get_function(name)
        block, tile = STEPS[name]
        grid = (self.size // tile, self.size // tile)
        size, group = np.int32(self.size), np.int32(GROUP)
        given = (self.out, self.queries, self.keys, self.scales, size, group)
        return lambda: kernel(grid, block, given)


def time_one(
    problem: Problem, name: str, cubin: Path, expected: Any, repeats: int
) -> dict[str, Any]:
    """Microseconds of a launch, by repetition, and how far the result is off."""
    cupy, launch = problem.cupy, problem.launcher(name, cubin)
    problem.out.fill(cupy.nan)
    launch()
    difference = cupy.linalg.norm(problem.out - expected) / cupy.linalg.norm(expected)
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    times = []
    for _ in range(repeats + 2):
        start.record()
        for _ in range(5):
            launch()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) * 1e3 / 5)
    times = times[2:]
    flops = 2 * problem.size**2 * DEPTH
    middle = median(times)
    row = {
        "median_us": round(middle, 2),
        "min_us": round(min(times), 2),
        "max_us": round(max(times), 2),
    }
    return row | {"tflops": round(flops / middle / 1e6, 3), "relative_error": float(difference)}


class Sampling:
    """The GPU's counters at 1 kHz, as the host daemon samples them beside production."""

    def __init__(self) -> None:
        sys.path[:0] = [str(ROOT / "proto"), str(ROOT / "collectors")]
        from spanlite_collectors.agent.pm import METRICS, CuptiPmDevice, PmHistory

        self.names = list(METRICS)
        self.device, self.history = CuptiPmDevice(0), PmHistory()

    def of(self, launch: Any, wait: Any) -> dict[str, float]:
        """Means while a kernel runs again and again for 0.4 s."""
        self.history.add(self.device.read())
        began = time.time_ns()
        while time.time_ns() - began < 400_000_000:
            for _ in range(5):
                launch()
            wait()
        ended = time.time_ns()
        time.sleep(0.05)
        self.history.add(self.device.read())
        edges = np.array([began + 50_000_000]), np.array([ended - 10_000_000])
        means = self.history.means(*edges)[0]
        return {name: round(float(v), 2) for name, v in zip(self.names, means, strict=True)}


def profile(ncu: str, folder: Path, size: int) -> str:
    """The table that `ncu --set full --csv --page raw` prints of one launch of each step."""
    command = [ncu, "--set", "full", "--csv", "--page", "raw", "--clock-control", "none"]
    command += ["-k", "regex:^scores_", sys.executable, "-m", "bench.h200.lab_beforeafter_table"]
    command += ["--child", str(folder), "--size", str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    start = done.stdout.find('"ID"')
    if start < 0:
        raise RuntimeError(f"ncu printed no table:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout[start:]


def narrowed(text: str) -> str:
    """The same table with the columns that are looked at."""
    rows = list(csv.reader(io.StringIO(text)))
    kept = [i for i, name in enumerate(rows[0]) if name.startswith(_KEPT)]
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
        [row[i] for i in kept] for row in rows if len(row) == len(rows[0])
    )
    return out.getvalue()


def counters_of(text: str) -> dict[str, dict[str, float]]:
    """What the page shows, by kernel."""
    units, *rows = csv.DictReader(io.StringIO(text))
    to_us = {"ns": 1e-3, "us": 1.0, "ms": 1e3}[units[_DURATION]]
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        values = {key: row.get(metric, "").replace(",", "") for key, metric in SHOWN.items()}
        found[row["Kernel Name"]] = {k: float(v) for k, v in values.items() if v} | {
            "profiled_us": float(row[_DURATION].replace(",", "")) * to_us
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--no-ncu", action="store_true")
    parser.add_argument("--no-sampling", action="store_true")
    parser.add_argument("--compile-only", action="store_true", help="needs no GPU")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        problem = Problem(args.size)
        for name in STEPS:
            problem.launcher(name, args.child / f"{name}.cubin")()
        problem.cupy.cuda.runtime.deviceSynchronize()
        return
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
        folder = Path(name)
        list(pool.map(lambda step: build(step, folder, args.nvcc), STEPS))
        if args.compile_only:
            print(f"compiled {len(STEPS)} kernels")
            return
        run(args, folder)


def run(args: argparse.Namespace, folder: Path) -> None:
    """Times, then counters; what has been measured is kept whatever fails after it."""
    problem = Problem(args.size)
    expected = problem.expected()
    rows: dict[str, dict[str, Any]] = {}
    for name in STEPS:
        rows[name] = time_one(problem, name, folder / f"{name}.cubin", expected, args.repeats)
        print(name, json.dumps(rows[name]), flush=True)
    if not args.no_sampling:
        sample(problem, folder, rows)
    about = surroundings() | {"size": args.size, "depth": DEPTH, "group": GROUP}
    path = TABLES / "lab_beforeafter.json"
    path.write_text(json.dumps({"about": about, "steps": rows}, indent=1) + "\n")
    if not args.no_ncu:
        del expected
        try:
            text = narrowed(profile(args.ncu, folder, args.size))
            for name, counters in counters_of(text).items():
                rows[name]["counters"] = counters
                print(name, json.dumps(counters), flush=True)
            with gzip.GzipFile(TABLES / "lab_beforeafter_ncu.csv.gz", "wb", mtime=0) as file:
                file.write(text.encode())
        except (RuntimeError, subprocess.TimeoutExpired):
            traceback.print_exc()
    path.write_text(json.dumps({"about": about, "steps": rows}, indent=1) + "\n")
    print(path)


def sample(problem: Problem, folder: Path, rows: dict[str, dict[str, Any]]) -> None:
    """Add what the sampler says; without it the table holds the rest."""
    try:
        sampling = Sampling()
        for name in STEPS:
            launch = problem.launcher(name, folder / f"{name}.cubin")
            rows[name]["sampled"] = sampling.of(launch, problem.cupy.cuda.runtime.deviceSynchronize)
            print(name, json.dumps(rows[name]["sampled"]), flush=True)
        sampling.device.close()
    except Exception:
        traceback.print_exc()


if __name__ == "__main__":
    main()
