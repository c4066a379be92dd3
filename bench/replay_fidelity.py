"""How faithful replays on this machine's GPU are, for the recordings under tests/recordings/.

Needs an NVIDIA GPU. For each recording and mode the plan is run twice (A/A):
`replay.makespan_error_pct`, `replay.start_error_us.p99`, `replay.duration_error_pct.p95` (and as a
share of max(1 %, 1 us)), `replay.order_violations`, `replay.lost`, `replay.aa_noise_pct` (of the
makespan), `replay.coverage_pct` of ops mode, and `replay.sim_makespan_error_pct`: the simulator
against the GPU. Modes: `timing` (stand-ins spin by the wall clock; `timing_steered`: their ends
move towards their recorded time too), `work` (by the SM's cycles) and `ops`.
`--results FILE` keeps the figures with GPU, driver and date.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from spanlite_replay.commands._faithful import fidelity_of
from spanlite_replay.fidelity.report import Fidelity
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording
from spanlite_replay.report import Report
from spanlite_replay.runner import run_plan
from spanlite_replay.sim import fit_model, simulate
from spanlite_replay.targets.gpu.open import open_target
from spanlite_replay.targets.gpu.target import GpuTarget
from spanlite_replay.targets.gpu.tuning import Tuning

from bench._recordings import RECORDINGS, repeated, rows_of
from bench._report import emit

NAMES = ("eager_s1", "eager_s4", "eager_s8", "graph_s1", "graph_s4", "graph_s8")
MODES = ("timing", "ops", "work")
QUICK = ["timing.eager_s1", "timing.graph_s4"]
#: Facts of a replay that its figures depend on.
KEPT = ("gpu", "driver", "sm_mhz", "throttle")
MAKESPAN_GOAL_PCT = {"timing": 1.0, "ops": 3.0}
#: The goal of ops mode holds from this coverage on.
COVERED_PCT = 90.0
START_GOAL_US, SIM_GOAL_PCT = 20.0, 5.0

Emit = Callable[..., None]
VERBOSE = False
OBSERVED: Path | None = None


def plan_of(name: str) -> Plan:
    """Of a recording; `NAME_xN`: of N copies of it one after the other."""
    name, _, copies = name.partition("_x")
    table = rows_of(RECORDINGS / f"{name}.json.gz")
    if copies:
        table = repeated(table, len(table) * int(copies))
    return build_plan(Recording.from_table(table), PlanSettings()).with_work("stream")


def tuning_of(text: str) -> Tuning:
    """From numbers in the order of the class; HELD `all`: all blocks stay."""
    held, *rest = text.split(",")
    return Tuning(None if held == "all" else float(held), *map(int, rest))


def run_once(
    plan: Plan, mode: Any, spin: Any, tell: bool, tuning: Tuning | None
) -> tuple[Report, GpuTarget]:
    target = open_target("bench", mode, spin, tuning=tuning)
    report = run_plan(plan, target)
    if tell:
        print(json.dumps(report.facts), file=sys.stderr, flush=True)
    return report, target


def measure(
    name: str,
    mode: str,
    spin: str,
    twice: bool,
    put: Emit,
    around: dict[str, Any],
    tuning: Tuning | None = None,
) -> Fidelity:
    """Run one recording in one mode, and print its figures."""
    plan = plan_of(name)
    report, target = run_once(plan, mode, spin, True, tuning)
    around |= {key: report.facts[key] for key in KEPT if key in report.facts}
    again = run_once(plan, mode, spin, False, tuning)[0] if twice else None
    fidelity = fidelity_of(plan, report, again)
    told = f"{mode}_steered" if tuning is not None and tuning.steer_ns else mode
    word = f"{told if spin == 'wall' else f'{mode}_{spin}'}.{name}"
    figures(word, mode, fidelity, target, put)
    if VERBOSE:
        look_closer(plan, report, target)
    if OBSERVED is not None:
        OBSERVED.mkdir(parents=True, exist_ok=True)
        pq.write_table(report.observed, OBSERVED / f"{word}.parquet")
    if mode == "timing":
        put(
            f"replay.sim_makespan_error_pct.{word}",
            sim_error_pct(plan, report.observed),
            "%",
            goal=SIM_GOAL_PCT,
        )
    return fidelity


def figures(word: str, mode: str, fidelity: Fidelity, target: GpuTarget, put: Emit) -> None:
    duration, start = fidelity.durations, fidelity.starts
    goal = MAKESPAN_GOAL_PCT[mode]
    if mode == "ops":
        put(f"replay.coverage_pct.count.{word}", target.coverage.count_pct, "%")
        put(f"replay.coverage_pct.time.{word}", target.coverage.time_pct, "%")
        goal = (
            goal
            if min(target.coverage.count_pct, target.coverage.time_pct) >= COVERED_PCT
            else None
        )
    put(f"replay.makespan_error_pct.{word}", abs(fidelity.makespan_ms.error or 0.0), "%", goal=goal)
    put(f"replay.start_error_us.p99.{word}", start.p99_us, "us", goal=START_GOAL_US)
    put(f"replay.duration_error_pct.p95.{word}", duration.p95_pct, "%", us=duration.p95_us)
    put(
        f"replay.duration_error_of_limit.p95.{word}",
        duration.p95_of_limit,
        "of max(1 %, 1 us)",
        goal=1,
    )
    put(f"replay.duration_bias_pct.{word}", duration.bias_pct, "%")
    if fidelity.overlap_iou is not None:
        put(f"replay.overlap_iou.{word}", fidelity.overlap_iou, "")
    orders = {kind: one.violations for kind, one in fidelity.order.items()}
    put(f"replay.order_violations.{word}", fidelity.violations, "edges", goal=0, **orders)
    put(f"replay.lost.{word}", fidelity.lost, "spans", goal=0, of=fidelity.spans)
    if fidelity.noise:
        put(f"replay.aa_noise_pct.{word}", abs(fidelity.noise["makespan_pct"]), "%")
        put(f"replay.aa_noise_us.start_p99.{word}", fidelity.noise["starts.p99_us"], "us")
        put(f"replay.aa_noise_us.duration_p95.{word}", fidelity.noise["durations.p95_us"], "us")
    put(
        f"replay.grade.{word}",
        "ABCDF".index(fidelity.grade.letter),
        "0 is A",
        because=fidelity.grade.because,
    )


def look_closer(plan: Plan, report: Report, target: GpuTarget) -> None:
    """On stderr: what each shape was calibrated to, and how far off its kernels were."""
    seen = report.observed
    start, end, planned, until = (
        seen.column(name).to_numpy()
        for name in ("start_ns", "end_ns", "planned_start_ns", "planned_end_ns")
    )
    late = start - planned
    late = late - int(np.median(late))
    print(
        "late us", np.percentile(late, [0, 1, 5, 25, 50, 75, 95, 99, 100]).round(), file=sys.stderr
    )
    error = (end - start) - (until - planned)
    print("longer ns", np.percentile(error, [0, 1, 5, 50, 95, 99, 100]).round(), file=sys.stderr)
    for at in np.argsort(-np.abs(error))[:8].tolist():
        print(f"  {until[at] - planned[at]} ns took {end[at] - start[at]}", file=sys.stderr)
    for line in target.describe():
        print(f"  {line}", file=sys.stderr)


def sim_error_pct(plan: Plan, observed: pa.Table) -> float:
    """The simulator's makespan on the device against the GPU's."""
    work = plan.work
    assert work is not None
    seen = simulate(work, plan.recording, fit_model(work, plan.recording), "open")
    device = work.is_device
    modelled = int(seen.end_ns[device].max() - seen.start_ns[device].min())
    start, end = (observed.column(f"{edge}_ns").to_numpy() for edge in ("start", "end"))
    ran = int(end.max() - start.min())
    return 100 * abs(modelled - ran) / ran


def keeper(path: Path | None, around: dict[str, Any]) -> Emit:
    """Prints each figure, and adds it to the file with what it depends on."""

    def put(metric: str, value: Any, unit: str, **more: Any) -> None:
        if value is None:
            return
        value = value.item() if isinstance(value, np.generic) else value
        emit(metric, value, unit, **more)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            row = {"metric": metric, "value": round(value, 4), "unit": unit, **more, **around}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    return put


def _flags(args: argparse.Namespace) -> str:
    """Those that a figure depends on."""
    told = [f"--{name}" for name in ("quick", "once") if getattr(args, name)]
    told += [f"--{name} {getattr(args, name)}" for name in ("runs",) if getattr(args, name)]
    told += [f"--try={text}" for text in args.tries or []]
    return "".join(f" {one}" for one in told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 50 s: two recordings, no A/A")
    parser.add_argument("--runs", help="MODE.RECORDING, by commas (default: all)")
    parser.add_argument("--once", action="store_true", help="no A/A")
    parser.add_argument("--results", type=Path, help="add the figures to this file")
    parser.add_argument("--observed", type=Path, help="write what ran when into this folder")
    parser.add_argument("--verbose", action="store_true", help="what the errors are made of")
    parser.add_argument(
        "--try",
        dest="tries",
        action="append",
        help="HELD,FEWEST,PATIENCE_NS,CROWD_GAP_NS,STEER_NS,COPY_PATIENCE_NS of "
        "targets/gpu/tuning.py, and again",
    )
    args = parser.parse_args()
    global VERBOSE, OBSERVED
    VERBOSE, OBSERVED = args.verbose, args.observed
    runs = [f"{mode}.{name}" for mode in MODES for name in NAMES]
    runs = QUICK if args.quick else args.runs.split(",") if args.runs else runs
    around: dict[str, Any] = {
        "command": "python -m bench.replay_fidelity" + _flags(args),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    put, failed = keeper(args.results, around), 0
    for run in runs:
        mode, _, name = run.partition(".")
        begin = time.monotonic()
        try:
            spin, kind = ("work", "timing") if mode == "work" else ("wall", mode)
            for text in args.tries or [None]:
                if text is not None:
                    print(f"try {text}", flush=True)
                tuning = None if text is None else tuning_of(text)
                measure(name, kind, spin, not (args.quick or args.once), put, around, tuning)
        except Exception:
            failed += 1
            traceback.print_exc()
        print(f"{run}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
