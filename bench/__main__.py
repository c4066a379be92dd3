"""Run the benches and keep what they print: `python -m bench [--quick] [NAME ...]`.

Each line goes to stdout and, with the machine, the versions and the date, to
bench/results/YYYY-MM-DD.jsonl. Benches that need a GPU are run by name on one
(`python -m bench agent_overhead`); they are not part of the default. Those of the lab replay what a
GPU answered.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DEFAULT = (
    "wire_size",
    "codec",
    "collect",
    "archive_size",
    "trace_lookup",
    "replay_pacing",
    "replay_http",
    "replay_plan",
    "replay_sim",
    "bottlenecks",
    "lab_occupancy",
    "lab_banks",
    "lab_rounding",
    "lab_repair",
    "lab_counters",
    "lab_explain",
    "lab_pressure",
    "lab_predict",
    "lab_roofline",
    "lab_fusion",
    "pipeline_throughput",
)
PACKAGES = ("spanlite", "apache-flink", "confluent-kafka", "duckdb", "numpy", "protobuf", "pyarrow")
RESULTS = Path(__file__).parent / "results"


def processor() -> str:
    """The processor's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def surroundings() -> dict[str, Any]:
    """What a figure depends on, beside the code."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": versions,
    }


def run(name: str, quick: bool) -> tuple[int, list[dict[str, Any]]]:
    """One bench in a process of its own: its exit code and its figures."""
    command = [sys.executable, "-m", f"bench.{name}", *(["--quick"] if quick else [])]
    print(f"== {' '.join(command[1:])}", file=sys.stderr, flush=True)
    around = surroundings() | {"command": "python " + " ".join(command[1:])}
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if line.startswith("{"):
                rows.append(json.loads(line) | around)
    return process.returncode, rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(DEFAULT)}")
    parser.add_argument("--quick", action="store_true", help="under 50 s each")
    args = parser.parse_args()
    failed = []
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}.jsonl"
    for name in args.names or DEFAULT:
        code, rows = run(name, args.quick)
        with target.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        if code != 0 or not rows:
            failed.append(name)
    if failed:
        print(f"bench: no figures from: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
