"""Count kernels with our own range profiler: what `lab explain` reads in place of ncu's table.

python3 -m bench.h200.lab_counters_table [--size N] [--launches N]

Runs the kernels of bench/h200/kernels (docs/lab.md repairs them) as `spanlite counters` would.
Needs CuPy, nvcc and what `make agent` builds; no ncu. Writes lab_counters.csv.gz, and
lab_counters.json that says what made it, into bench/h200/tables.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.h200._device import TABLES, surroundings
from bench.h200.lab_beforeafter_table import STEPS, build

# isort: split
from spanlite_collectors.commands.counters import settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--launches", type=int, default=1)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--cupti", default="", help="the libcupti to use")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
        folder, counted = Path(name), Path(name) / "counters.csv"
        list(pool.map(lambda step: build(step, folder, args.nvcc), STEPS))
        command = [sys.executable, "-m", "bench.h200.lab_beforeafter_table"]
        command += ["--child", str(folder), "--size", str(args.size)]
        # As `spanlite counters` does, which need not be installed here.
        counting = settings(counted, "scores_", args.launches, args.cupti)
        subprocess.run(command, env=os.environ | counting, check=True, timeout=60)
        data = counted.read_bytes()
    print(data.decode(), flush=True)
    with gzip.GzipFile(TABLES / "lab_counters.csv.gz", "wb", mtime=0) as file:
        file.write(data)
    about = surroundings() | {"size": args.size, "profiler": "CUPTI range profiler"}
    (TABLES / "lab_counters.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
