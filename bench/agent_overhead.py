"""What the agent costs a GPU process, on an NVIDIA GPU with PyTorch and CuPy.

    python -m bench.agent_overhead [--quick] > bench/results/agent_overhead.jsonl

Processes run the same loads (bench/_agent_loads.py), one without anything, one again without (the
noise floor), one for each level, one that was attached and has detached, one with the helper's
ranges, one under torch.profiler; they take turns, some tenths of a second each, so that clocks and
neighbours hit all alike. Costs compare a level's turn with that of `nothing` in the same round:
mean over rounds, with a bootstrap interval of 95 %. The agent's windows come as close as its budget
of 1 % allows (`window_seconds` 1 instead of 20), so this is its worst case.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bench._agent_costs import report_costs, report_long, report_ranges
from bench._agent_loads import SHAPES
from bench._agent_options import add_shared, variants, wait
from bench._agent_plain import machine_cupti, plain
from bench._agent_rings import RingDrain, account, kernels_a_step, name_shares
from bench._agent_turns import (
    LIBRARY,
    ROOT,
    WARM_UP_STEPS,
    Worker,
    start,
    take_long_turns,
    take_turns,
)
from bench._gpu import ask
from bench._report import emit

#: Environment of each process; None: no agent.
LEVELS: dict[str, dict[str, str] | None] = {
    "nothing": None,
    "nothing_again": None,
    # Attached while the program warms up, then detached, and no window ever after.
    "detached": {"LEVEL": "windows", "DETACH": "proven", "WINDOW_SECONDS": "1000000"},
    "ranges": {"LEVEL": "ranges"},
    "helper": {"LEVEL": "ranges"},
    "windows": {"LEVEL": "windows", "DETACH": "proven"},
    "windows_attached": {"LEVEL": "windows", "DETACH": "never"},
    "continuous": {"LEVEL": "continuous"},
    "kineto": None,
}
#: The first three get the most rounds, and the others leave out some levels.
WORKLOADS = (
    "graphs", "graphs_600us", "eager", "compiled", "cupy", "graphs_s4", "graphs_s8", "graphs_dense",
    "graphs_thin",
)  # fmt: skip
MOST_ROUNDS = 3
LEFT_OUT = {"windows_attached", "nothing_again", "detached", "helper"}
PARTS = ("clock", "plain", "stress", "attribution", "overhead")


def report_records(workers: list[Worker], drain: RingDrain) -> None:
    """What came through the rings, and whether all of it is accounted for."""
    missing = steps = 0
    base = workers[0].resident_mib()
    for worker in workers:
        emit(f"agent.resident_mib.{worker.name}", worker.resident_mib() - base, "MiB",
             note="more than without the agent")  # fmt: skip
    for worker in workers:
        worker.close()
    for worker in workers:
        worker.end()
    drain.stop()
    for worker in workers:
        if (mine := drain.drained.get(worker.process.pid)) is None:
            continue
        found = account(mine, worker.times())
        missing, steps = missing + found.missing, steps + found.steps
        emit(f"agent.records.{worker.name}", mine.state["records"], "records", drops=mine.drops,
             whole_steps=found.steps, missing=found.missing, lacking=found.lacking,
             examples=found.examples,
             counts=found.counts if len(found.counts) < 9 else len(found.counts),
             **mine.state)  # fmt: skip
        kernels = int(kernels_a_step(mine).sum())
        if worker.name == "continuous" and kernels:
            emit("agent.ring_bytes_per_kernel", mine.ring_bytes / kernels, "B")
            turns = [turn for turns in worker.turns.values() for turn in turns]
            busy_s = sum(float(turn.ns.sum()) for turn in turns) / 1e9
            emit("agent.records_per_s.continuous", mine.state["records"] / busy_s, "records/s")
    emit("agent.unaccounted_records", missing, "records", 0, whole_steps=steps)
    named = {worker.name: worker for worker in workers}
    if {"windows", "continuous"} <= named.keys():
        for workload in named["continuous"].turns:
            report_shares(named["windows"], named["continuous"], workload, drain)


def report_shares(windows: Worker, continuous: Worker, workload: str, drain: RingDrain) -> None:
    """How well the steps that windows covered tell each kernel's share of the device's time."""
    told, truth = (
        name_shares(
            drain.drained[worker.process.pid],
            [turn.began_ns for turn in worker.all_turns(workload)],
            [turn.ended_ns for turn in worker.all_turns(workload)],
        )
        for worker in (windows, continuous)
    )
    if not told:
        return
    large = {name: share for name, share in truth.items() if share >= 0.01}
    errors = [abs(told.get(name, 0.0) / share - 1) * 100 for name, share in large.items()]
    emit(f"agent.share_error_pct.windows.{workload}", max(errors, default=0.0), "%", 5,
         names=len(truth), unseen=len(truth.keys() - told.keys()),
         compared=len(large), note="worst of the names with 1 % of the time or more")  # fmt: skip


def timestamps() -> None:
    """Our kernel times against the kernels' own reading of the GPU's timer."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        drain = RingDrain(Path(folder))
        cupti = machine_cupti()
        environment = os.environ | {
            "CUDA_INJECTION64_PATH": str(LIBRARY),
            "SPANLITE_AGENT_DIR": folder,
            "SPANLITE_AGENT_LEVEL": "continuous",
            "SPANLITE_AGENT_HW_TRACE": "1",
        }
        environment |= {"SPANLITE_AGENT_CUPTI": str(cupti)} if cupti else {}
        done = subprocess.run([sys.executable, "-m", "bench._agent_clock"], env=environment,
                              cwd=ROOT, capture_output=True, text=True, timeout=120)  # fmt: skip
        drain.stop()
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        answer = json.loads(done.stdout.splitlines()[-1])
        report_timestamps(answer, next(iter(drain.drained.values())))


def report_timestamps(answer: dict[str, Any], drained: Any) -> None:
    """Errors of starts and ends, in us."""
    from spanlite_collectors.agent.layout import RecordType

    from bench._agent_clock import BLOCK

    truth = np.array(answer["ns"], np.int64).reshape(-1, 2)
    kernels = drained.rows(RecordType.KERNEL)
    kernels = np.sort(kernels[kernels["block_x"] == BLOCK], order="start_ns")[-len(truth) :]
    ours = np.stack([kernels["start_ns"], kernels["end_ns"]], axis=1).astype(np.int64)
    errors = (ours - truth) / 1e3
    worst = np.abs(errors).max(axis=1)
    emit("agent.timestamp_error_us.p99", float(np.percentile(worst, 99)), "us", 0.8,
         bound_us=round(answer["bound_ns"] / 1e3, 3), kernels=len(truth))  # fmt: skip
    for column, edge in enumerate(("start", "end")):
        middle = float(np.median(errors[:, column]))
        jitter = float(np.percentile(np.abs(errors[:, column] - middle), 99))
        emit(f"agent.timestamp_offset_us.{edge}", middle, "us", jitter_p99=round(jitter, 3))


def machine() -> dict[str, str]:
    """GPU, driver and versions, for the record."""
    gpu = ask("name", "driver_version", "clocks.sm", "clocks.mem", "power.draw")
    return {
        "gpu": ", ".join(gpu.values()),
        "torch": version("torch"),
        "date": time.strftime("%Y-%m-%d"),
    }


def levels_of(args: argparse.Namespace) -> dict[str, dict[str, str] | None]:
    """The processes to start: the levels, or those chosen, and variants of them."""
    levels = {k: v for k, v in LEVELS.items() if not args.levels or k in args.levels}
    if args.stand_in:
        levels.pop("kineto", None)
    return levels | variants(args, LEVELS)


def build(workers: list[Worker], workloads: list[str]) -> list[str]:
    """Build and warm up all loads in all processes; those that the first of them could build.

    The first compiles what is to be compiled while the others build the rest, and the other way
    round. A process that cannot build what the first can is left out from then on.
    """
    compiled = [name for name in workloads if name in SHAPES and SHAPES[name].compiled]
    others = [name for name in workloads if name not in compiled]
    first, *rest = workers
    failed: dict[str, set[str]] = {}
    for mine, theirs in ((compiled, others), (others, compiled)):
        asked = [(first, name) for name in mine]
        asked += [(worker, name) for worker in rest for name in theirs]
        for worker, name in asked:
            worker.ask(run=name, steps=WARM_UP_STEPS)
        for worker, name in asked:
            try:
                worker.answer()
            except RuntimeError as error:
                emit(f"agent.load_failed.{worker.name}.{name}", 1, "failures", 0,
                     error=str(error))  # fmt: skip
                failed.setdefault(name, set()).add(worker.name)
        print(f"{time.strftime('%T')} built {mine} and {theirs}", file=sys.stderr, flush=True)
    built = [name for name in workloads if first.name not in failed.get(name, ())]
    cannot = set().union(*(failed.get(name, set()) for name in built))
    workers[:] = [worker for worker in workers if worker.name not in cannot]
    return built


def overhead(args: argparse.Namespace) -> None:
    """The interleaved comparison."""
    ends = time.monotonic() + args.until
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        drain = RingDrain(Path(folder))
        workers = [
            start(name, agent, Path(folder), args.stand_in, *(["--helper"] * (name == "helper")))
            for name, agent in levels_of(args).items()
        ]
        built = build(workers, args.workloads)
        for worker in workers:
            worker.settle()
        wait(args)
        for place, workload in enumerate(built):
            if time.monotonic() > ends:
                emit(f"agent.load_left_out.{workload}", 1, "loads", note="out of time")
                continue
            measure(args, workload, workers, place < MOST_ROUNDS, drain, ends)
        report_records(workers, drain)


def measure(
    args: argparse.Namespace,
    workload: str,
    workers: list[Worker],
    much: bool,
    drain: RingDrain,
    ends: float,
) -> None:
    """One workload: short turns of all, then long ones of the level with windows."""
    chosen = set(variants(args, LEVELS))
    long = {"windows"} if args.long_turns else set()
    left_out = long if much else long | LEFT_OUT | chosen
    rounds = args.rounds if much else max(2, args.rounds // 5)
    mine = [worker for worker in workers if worker.name not in left_out]
    take_turns(mine, workload, rounds, args.seconds, ends)
    report_costs(mine, workload)
    workers[0].ask(run=workload, steps=1)
    stages = workers[0].answer()["stages"]
    named = {worker.name: worker for worker in workers}
    report_ranges(named, workload, stages)
    if not args.long_turns or "windows" not in named:
        return
    seconds = args.long_seconds if much else args.long_seconds / 2
    before = windows_of(named["windows"], drain)
    turns = args.long_turns if much else max(1, args.long_turns // 2)
    take_long_turns(workers[0], named["windows"], workload, turns, seconds, ends)
    report_long(named["windows"], workload, windows_of(named["windows"], drain) - before)


def windows_of(worker: Worker, drain: RingDrain) -> int:
    """How many windows the process has had."""
    time.sleep(0.15)  # a drain
    mine = drain.drained.get(worker.process.pid)
    return mine.state.get("windows", 0) if mine is not None else 0


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short rounds, fewer workloads")
    parser.add_argument("--rounds", type=int, default=24, help="a fifth after three workloads")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each process in a round")
    parser.add_argument("--long-turns", type=int, default=4, metavar="N",
                        help="long turns of `windows`; half after three workloads")  # fmt: skip
    parser.add_argument("--long-seconds", type=float, default=6, help="of each of these")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, help="all by default")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--windows", type=int, default=1000, help="of each stress run")
    parser.add_argument("--stress-seconds", type=float, default=60, help="at most")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--plain", type=Path, metavar="FOLDER",
                        help="what build_agent_plain.sh made")  # fmt: skip
    parser.add_argument("--keep", default=os.environ.get("OUT"), metavar="FOLDER",
                        help="put the ring of the attribution part there")  # fmt: skip
    add_shared(parser)
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.windows = 3, 0.3, 20
        args.long_turns, args.long_seconds = 1, 2
        args.workloads = ["graphs_600us", "eager"]
    if not args.stand_in and not Path("/dev/nvidiactl").exists():
        print("bench.agent_overhead needs an NVIDIA GPU; bench/results/agent_overhead.jsonl holds "
              "the H200's figures", file=sys.stderr)  # fmt: skip
        return 0
    if not args.stand_in:
        emit("agent.bench", 1, "run", command=" ".join(["python -m bench.agent_overhead",
             *sys.argv[1:]]), **machine())  # fmt: skip
    from bench._agent_stress import stress
    from bench.agent_attribution import attribution

    parts: dict[str, Callable[[], None]] = {
        "clock": timestamps,
        "plain": lambda: plain(args.plain),
        "stress": lambda: stress(args.stand_in, args.windows, args.stress_seconds),
        "attribution": lambda: attribution(args.stand_in, args.keep),
        "overhead": lambda: overhead(args),
    }
    failed = False
    for part in args.parts:
        if (args.stand_in and part == "clock") or (part == "plain" and args.plain is None):
            continue
        try:
            parts[part]()
        except Exception as error:  # the parts that come after it are worth having
            failed = True
            emit(f"agent.part_failed.{part}", 1, "failures", 0,
                 error=f"{type(error).__name__}: {error}"[:500])  # fmt: skip
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
