"""Time and achieved occupancy of some thousand launches of grid-stride kernels.

python3 -m bench.h200.lab_predict_table [--rows N] [--seed N] [--ncu-budget SECONDS]
    [--nvcc PATH] [--ncu PATH] [--cubins FOLDER] [--compile-only]

Each launch of `_predict_kernels` is timed by CUDA events, several back to back. Its achieved
occupancy is read in the kernel: the clocks that each warp spent on its SM, over the clocks from
the SM's first warp to its last. `ncu` counts the same on as many launches as its budget allows.
Writes bench/h200/tables/lab_predict.npz, with the cubins. About 10 s for 2,400 launches.
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
import traceback

import numpy as np

from bench.h200._device import load, save, surroundings
from bench.h200._launcher import (
    CLOCK_KHZ,
    L2_BYTES,
    LOCAL,
    MAX_DYNAMIC,
    REGISTERS,
    STATIC_SHARED,
    Launch,
    Launcher,
)
from bench.h200._predict_kernels import (
    CAPS,
    FOOTPRINTS,
    Config,
    configs,
    elements_of,
    families,
    grid_of,
    known,
    source,
)
from bench.h200.lab_pressure_table import cubins_of, packed

#: What ncu counts; all of it in as few passes as it can.
METRICS = {
    "ncu_warps_ppm": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1e4),
    "ncu_cycles": ("sm__cycles_active.avg", 1.0),
    "ncu_time_ns": ("gpu__time_duration.sum", 1.0),
    "ncu_instructions": ("sm__inst_executed.sum", 1.0),
}
#: Of back-to-back launches, by how long one takes.
TIMED_NS, MOST_REPEATS = 1.5e6, 20
WITHOUT_OPT_IN = 48 * 1024
NAMES = (
    "config", "family", "unroll", "cap", "block", "grid", "blocks", "registers", "local_bytes",
    "static_bytes", "dynamic_bytes", "footprint_floats", "elements", "time_ns", "spread_ppm",
    "occupancy_ppm", "span_cycles", "longest_cycles", "warp_cycles", "warps", "sms",
)  # fmt: skip


class Bench:
    """Loaded cubins, and two arrays as large as the largest footprint."""

    def __init__(self, cubins: dict[int, bytes]) -> None:
        self.launcher = Launcher()
        self.modules = {cap: self.launcher.load_module(data) for cap, data in cubins.items()}
        self.functions: dict[tuple[int, str], ctypes.c_void_p] = {}
        self.x, self.y = (self.launcher.allocate(FOOTPRINTS[-1] * 4) for _ in range(2))
        draw = np.random.default_rng(90)
        part = draw.uniform(0.5, 1.0, 1 << 22).astype(np.float32)
        for at in range(0, FOOTPRINTS[-1], part.size):
            self.launcher.upload(self.x + at * 4, part)

    def function(self, config: Config) -> ctypes.c_void_p:
        """The compiled kernel."""
        key = config.cap, config.name
        if key not in self.functions:
            module = self.modules[config.cap]
            self.functions[key] = self.launcher.function(module, config.name)
        return self.functions[key]

    def launch(self, config: Config) -> tuple[Launch, tuple[int, ...]] | None:
        """The launch, and what is known of it; None where no block fits."""
        function, launcher = self.function(config), self.launcher
        family = families()[config.family]
        dynamic = config.shared_bytes(family)
        if dynamic > 227 * 1024:
            return None
        if dynamic > WITHOUT_OPT_IN:
            launcher("cuFuncSetAttribute", function, MAX_DYNAMIC, dynamic)
        blocks = launcher.blocks_per_sm(function, config.block, dynamic)
        if blocks == 0:
            return None
        grid = grid_of(config, blocks, launcher.sms)
        elements = elements_of(config, grid)
        arguments = (
            ctypes.c_uint64(self.y),
            ctypes.c_uint64(self.x),
            ctypes.c_uint32(elements),
            ctypes.c_uint32(config.footprint - 1),
            ctypes.c_float(0.75),
        )
        asked = [launcher.asked(function, a) for a in (REGISTERS, LOCAL, STATIC_SHARED)]
        row = (
            *(config.family, config.unroll, config.cap, config.block, grid, blocks, *asked),
            *(dynamic, config.footprint, elements),
        )
        return Launch(launcher, function, grid, config.block, dynamic, arguments), row

    def measure(self, config: Config) -> tuple[int, ...] | None:
        """A row of the table but for its number."""
        made = self.launch(config)
        if made is None:
            return None
        launch, row = made
        launch.go()
        first = launch.time_ns(1)
        repeats = int(np.clip(TIMED_NS / max(first, 1), 2, MOST_REPEATS))
        times = [launch.time_ns(repeats) for _ in range(3)]
        launch.recorded()
        record = launch.recorded()
        spread = (max(times) - min(times)) / float(np.median(times))
        return (
            *row,
            round(float(np.median(times))),
            round(spread * 1e6),
            round(record.occupancy * 1e6),
            round(record.span_cycles),
            record.longest_cycles,
            round(record.warp_cycles),
            record.warps,
            record.sms,
        )


def run(cubins: dict[int, bytes], chosen: list[Config], budget_s: float) -> dict[str, np.ndarray]:
    """All launches, as long as the time lasts."""
    bench = Bench(cubins)
    rows, began = [], time.monotonic()
    for number, config in enumerate(chosen):
        if time.monotonic() - began > budget_s:
            print(f"stopped at launch {number} of {len(chosen)}: out of time", flush=True)
            break
        try:
            got = bench.measure(config)
        except RuntimeError:
            print(f"failed: {config}", flush=True)
            traceback.print_exc()
            break
        if got:
            rows.append((number, *got))
        if number % 100 == 0:
            print(f"{number}: {config.name} {got}, {time.monotonic() - began:.1f} s", flush=True)
    return dict(zip(NAMES, np.array(rows, np.int64).reshape(-1, len(NAMES)).T, strict=True))


def under_ncu(cubins: dict[int, bytes], chosen: list[Config]) -> None:
    """One launch of each after one that warms the caches. This part runs under `ncu`."""
    bench = Bench(cubins)
    for config in chosen:
        made = bench.launch(config)
        if made is None:
            continue
        made[0].go()
        bench.launcher.wait()
        bench.launcher("cuProfilerStart")
        made[0].go()
        bench.launcher.wait()
        bench.launcher("cuProfilerStop")


def count_with_ncu(
    args: argparse.Namespace, folder: str, numbers: np.ndarray, timeout_s: float
) -> dict[str, np.ndarray]:
    """ncu's counters of the configurations, in their order."""
    command = [args.ncu, "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--cache-control", "none", "--clock-control", "none", "--profile-from-start", "off"]
    command += ["--metrics", ",".join(metric for metric, _ in METRICS.values())]
    child = [sys.executable, "-m", "bench.h200.lab_predict_table", "--cubins", folder]
    child += ["--rows", str(args.rows), "--seed", str(args.seed)]
    child += ["--child", ",".join(str(n) for n in numbers)]
    done = subprocess.run(
        command + child, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise RuntimeError(f"ncu failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    lines = done.stdout.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        raise RuntimeError(f"ncu printed no table:\n{done.stdout[-2000:]}")
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[head:]))))[1:]
    if len(rows) != len(numbers):
        raise RuntimeError(f"ncu printed {len(rows)} launches of {len(numbers)}")
    rows.sort(key=lambda row: int(row["ID"]))
    return {
        name: np.array([round(float(row[m].replace(",", "")) * scale) for row in rows])
        for name, (m, scale) in METRICS.items()
    }


def with_ncu(
    args: argparse.Namespace, folder: str, columns: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Counters of as many rows as the budget allows; -1 where there are none."""
    count = len(columns["config"])
    made = {name: np.full(count, -1, np.int64) for name in METRICS}
    order = np.random.default_rng(args.seed).permutation(count)
    began, done, size, cost = time.monotonic(), 0, args.ncu_first, 0.0
    while done < count and size:
        part = np.sort(order[done : done + size])
        left = args.ncu_budget - (time.monotonic() - began)
        start = time.monotonic()
        try:
            got = count_with_ncu(args, folder, columns["config"][part], max(left, 1))
        except (RuntimeError, subprocess.TimeoutExpired, KeyError, ValueError) as error:
            print(f"ncu stopped after {done} launches: {error}", flush=True)
            break
        for name, values in got.items():
            made[name][part] = values
        done += len(part)
        cost = max((time.monotonic() - start - 2) / len(part), 0.005)
        left = args.ncu_budget - (time.monotonic() - began)
        size = min(int((left - 4) * 0.8 / cost), 400) if left > 6 else 0
        print(f"ncu: {done} launches, {time.monotonic() - began:.1f} s", flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=90)
    parser.add_argument("--budget", type=float, default=60, help="seconds without ncu")
    parser.add_argument("--ncu-budget", type=float, default=30, help="seconds under ncu; 0: none")
    parser.add_argument("--ncu-first", type=int, default=40, help="launches of its first run")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--cubins", default="", metavar="FOLDER", help="compiled before, or kept")
    parser.add_argument("--compile-only", action="store_true", help="needs no GPU")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    began = time.monotonic()
    chosen = configs(args.rows, args.seed)
    with tempfile.TemporaryDirectory() as other:
        folder = args.cubins or other
        cubins = cubins_of(source(), CAPS, folder, args.nvcc, "predict")
        if args.child:
            under_ncu(cubins, [chosen[int(n)] for n in args.child.split(",")])
            return
        print(f"{len(cubins)} caps: {time.monotonic() - began:.1f} s", flush=True)
        if args.compile_only:
            return
        columns = run(cubins, chosen, args.budget)
        write(args, columns, cubins, began)
        if args.ncu_budget > 0:
            columns |= with_ncu(args, folder, columns)
            write(args, columns, cubins, began)


def write(
    args: argparse.Namespace,
    columns: dict[str, np.ndarray],
    cubins: dict[int, bytes],
    began: float,
) -> None:
    """The table as it stands."""
    launcher = Launcher()
    about = surroundings() | {
        "families": [family.name for family in families()],
        "known": [known(family) for family in families()],
        "sms": launcher.sms,
        "clock_khz": launcher.attribute(CLOCK_KHZ),
        "l2_bytes": launcher.attribute(L2_BYTES),
        "metrics": {name: metric for name, (metric, _) in METRICS.items()},
        "seconds": round(time.monotonic() - began, 1),
    }
    column, about["cubins"] = packed(cubins)
    path = save("lab_predict", columns | {"cubins": column}, about)
    print(f"{len(load(path)[0]['config'])} launches in {path}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
