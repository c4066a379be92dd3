"""How fast the simulator is, and how close it comes to what was recorded.

`replay.sim_events_per_s.*`: starts and ends of device spans and of calls in a second of CPU
time of one core, everything included but the fit, on recordings repeated to some hundred
thousand spans. `replay.sim_makespan_error_pct.*`: the makespan on the device against the
recording's own, `open` with the plan's deadlines and `closed` with each call after the one
before it. Recordings under tests/recordings/ (those of
our agent know waits, but not for which event), and others where ../shared/data is there.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording
from spanlite_replay.sim import fit_model, simulate

from bench._recordings import RECORDINGS, repeated, rows_of
from bench._report import emit

OTHERS = RECORDINGS.parents[2] / "shared" / "data" / "kineto"
GOAL_EVENTS_PER_S = 1_000_000
#: Of the simulator against the GPU, percent.
GOAL_ERROR_PCT = 5.0
#: Not CUDA's streams and clocks, or no kernels to speak of.
LEFT_OUT = ("a100_clock_anomaly_5streams", "vllm_decode_graph_capture")


def plan_of(table: Any, deps: Literal["stream", "observed"] = "stream") -> Plan:
    return build_plan(Recording.from_table(table), PlanSettings()).with_work(deps)


def events_per_s(plan: Plan, rounds: int) -> float:
    assert plan.work is not None
    model = fit_model(plan.work, plan.recording)
    best = 0.0
    for _ in range(rounds):
        begin = time.process_time()
        seen = simulate(plan.work, plan.recording, model, "closed")
        best = max(best, seen.events / (time.process_time() - begin))
    return best


def makespan_error_pct(plan: Plan, host: Literal["open", "closed"]) -> float:
    work = plan.work
    assert work is not None
    seen = simulate(work, plan.recording, fit_model(work, plan.recording), host)
    device = work.is_device
    recorded = np.ptp(
        np.concatenate((work.start_ns[device], (work.start_ns + work.duration_ns)[device]))
    )
    ran = np.ptp(np.concatenate((seen.start_ns[device], seen.end_ns[device])))
    return float(100 * (int(ran) - int(recorded)) / int(recorded))


def errors(paths: list[Path]) -> None:
    for path in paths:
        name = path.name.removesuffix(".json.gz").removesuffix(".parquet")
        if name in LEFT_OUT:
            continue
        table = pq.read_table(path) if path.suffix == ".parquet" else rows_of(path)
        for deps in ("stream", "observed"):
            plan = plan_of(table, deps)
            for host in ("open", "closed"):
                emit(
                    f"replay.sim_makespan_error_pct.{deps}.{host}.{name}",
                    makespan_error_pct(plan, host),
                    "%",
                    goal=GOAL_ERROR_PCT,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    quick = parser.parse_args().quick
    spans, rounds = (150_000, 2) if quick else (1_000_000, 5)
    for name in ("eager_s1", "eager_s4", "graph_s1", "graph_s4"):
        plan = plan_of(repeated(rows_of(RECORDINGS / f"{name}.json.gz"), spans))
        emit(
            f"replay.sim_events_per_s.{name}",
            events_per_s(plan, rounds),
            "events/s",
            goal=GOAL_EVENTS_PER_S,
        )
    errors(sorted(RECORDINGS.glob("*.json.gz")))
    errors(sorted((RECORDINGS / "faults").glob("healthy.*.parquet")))
    if not quick:
        errors(sorted(OTHERS.glob("*.json.gz")))


if __name__ == "__main__":
    main()
