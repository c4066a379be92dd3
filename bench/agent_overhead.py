"""What the agent costs a GPU process, on an NVIDIA GPU with PyTorch and CuPy.

    python -m bench.agent_overhead [--quick] > bench/results/agent_overhead.jsonl

Seven processes run the same decoders (bench/_agent_worker.py), one without anything, one again
without (the noise floor), and one for each level and for torch.profiler; they take turns, a second
or less each, so that clocks and neighbours hit all alike. Costs compare a level's time with that
of `nothing` in the same round; `spread` holds the quartiles over rounds. The agent's windows come
as close as its budget of 1 % allows (`window_seconds` 1 instead of 20), so this is its worst case.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench._agent_rings import RingDrain, account, kernels_a_step
from bench._report import emit

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "collectors" / "spanlite_collectors" / "lib" / "libspanlite_agent.so"
STAND_IN = ROOT / "collectors" / "agent" / "build" / "tests"
I64 = npt.NDArray[np.int64]

#: Environment of each process; None: no agent.
LEVELS: dict[str, dict[str, str] | None] = {
    "nothing": None,
    "nothing_again": None,
    "ranges": {"LEVEL": "ranges"},
    "windows": {"LEVEL": "windows", "DETACH": "proven"},
    "windows_attached": {"LEVEL": "windows", "DETACH": "never"},
    "continuous": {"LEVEL": "continuous"},
    "kineto": None,
}
GOALS = {"ranges": 0.2, "windows": 1.0}
P99_GOALS = {"windows": 2.0}
WORKLOADS = ("graphs", "graphs_600us", "eager", "graphs_s4")
PARTS = ("clock", "stress", "attribution", "overhead")
#: All workers share these cores, as one runs at a time and cores differ.
CORES = range(2, 6) if (os.cpu_count() or 1) >= 8 else range(os.cpu_count() or 1)
#: Steps of torch.profiler's turns, as a share: it keeps all events and parses them at the end.
PROFILED_SHARE = 0.25
WARM_UP_STEPS = 60


@dataclass
class Worker:
    """One process; `ns[workload]` has the step times of each round."""

    name: str
    process: subprocess.Popen[str]
    ns: dict[str, list[I64]] = field(default_factory=dict)

    def ask(self, **request: Any) -> None:
        """Send a request."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for its answer. Raises RuntimeError where the process has died."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process '{self.name}' died: {self.process.wait()}")
        return dict(json.loads(line))

    def resident_mib(self) -> float:
        """Memory of the process."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024

    def end(self) -> None:
        """Let it run to its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def start(
    name: str, agent: dict[str, str] | None, rings: Path, stand_in: bool, *words: str
) -> Worker:
    """A process, under the agent where settings for one are given; `words`: its own flags."""
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if agent is not None:
        environment |= {
            "CUDA_INJECTION64_PATH": str(LIBRARY),
            "NVTX_INJECTION64_PATH": str(LIBRARY),
            "SPANLITE_AGENT_DIR": str(rings),
            "SPANLITE_AGENT_WINDOW_SECONDS": "1",
            "SPANLITE_AGENT_RING_BYTES": str(256 << 20),
        } | {f"SPANLITE_AGENT_{key}": value for key, value in agent.items()}
    if stand_in:
        environment["LD_LIBRARY_PATH"] = str(STAND_IN)
    flags = [*(["--stand-in"] if stand_in else []), *words]
    command = [sys.executable, "-m", "bench._agent_worker", *flags]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    os.sched_setaffinity(process.pid, CORES)
    return Worker(name, process)


def all_at_once(workers: list[Worker], **request: Any) -> list[dict[str, Any]]:
    """The same request to all, in parallel: for building and warming up."""
    for worker in workers:
        worker.ask(**request)
    return [worker.answer() for worker in workers]


def take_turns(workers: list[Worker], workload: str, rounds: int, seconds: float) -> None:
    """Rounds in which each process runs for about `seconds`, one after the other."""
    probe = all_at_once(workers[:1], run=workload, steps=WARM_UP_STEPS)[0]
    steps = max(20, int(seconds * 1e9 / float(np.median(probe["ns"]))))
    for number in range(rounds):
        shift = number % len(workers)
        for worker in workers[shift:] + workers[:shift]:
            profile = worker.name == "kineto"
            count = int(steps * PROFILED_SHARE) if profile else steps
            worker.ask(run=workload, steps=count, profile=profile)
            times = np.array(worker.answer()["ns"], np.int64)
            worker.ns.setdefault(workload, []).append(times)


def costs(worker: Worker, base: Worker, workload: str, figure: Any) -> npt.NDArray[np.float64]:
    """Per cent more than `base`, round by round, in `figure` of the step times."""
    pairs = zip(worker.ns[workload], base.ns[workload], strict=True)
    return np.array([(figure(mine) / figure(theirs) - 1) * 100 for mine, theirs in pairs])


def report_costs(workers: list[Worker], workload: str) -> None:
    """Throughput, p99 and resting cost of each level."""
    base = workers[0]
    quiet = np.concatenate(base.ns[workload])
    emit(f"agent.step_us.{workload}", float(np.median(quiet)) / 1e3, "us")
    kineto = float("nan")
    for worker in reversed(workers[1:]):  # the peer comes first
        name = worker.name
        rounds = costs(worker, base, workload, np.mean)
        cost = float(np.median(rounds))
        kineto = cost if name == "kineto" else kineto
        ratio = kineto / cost if name == "continuous" and cost > 0 else None
        spread = [round(float(q), 3) for q in np.percentile(rounds, [25, 75])]
        peer = "kineto" if ratio is not None and np.isfinite(ratio) else None
        emit(f"agent.throughput_cost_pct.{name}.{workload}", cost, "%", GOALS.get(name), peer,
             ratio if peer else None, spread=spread, rounds=len(rounds))  # fmt: skip
        tail = np.percentile(np.concatenate(worker.ns[workload]), 99) / np.percentile(quiet, 99)
        emit(f"agent.p99_cost_pct.{name}.{workload}", float(tail - 1) * 100, "%",
             P99_GOALS.get(name))  # fmt: skip
        resting = float(np.median(costs(worker, base, workload, np.median)))
        emit(f"agent.median_cost_pct.{name}.{workload}", resting, "%")


def report_records(workers: list[Worker], drain: RingDrain) -> None:
    """What came through the rings, and whether all of it is accounted for."""
    missing = steps = 0
    base = workers[0].resident_mib()
    for worker in workers:
        emit(f"agent.resident_mib.{worker.name}", worker.resident_mib() - base, "MiB",
             note="more than without the agent")  # fmt: skip
    for worker in workers:
        worker.end()
    drain.stop()
    for worker in workers:
        if (mine := drain.drained.get(worker.process.pid)) is None:
            continue
        found = account(mine)
        missing, steps = missing + found.missing, steps + found.steps
        emit(f"agent.records.{worker.name}", mine.state["records"], "records", drops=mine.drops,
             whole_steps=found.steps, missing=found.missing, examples=found.examples,
             counts=found.counts if len(found.counts) < 9 else len(found.counts),
             **mine.state)  # fmt: skip
        kernels = int(kernels_a_step(mine).sum())
        if worker.name == "continuous" and kernels:
            emit("agent.ring_bytes_per_kernel", mine.ring_bytes / kernels, "B")
            busy = sum(float(t.sum()) for r in worker.ns.values() for t in r) / 1e9
            emit("agent.records_per_s.continuous", mine.state["records"] / busy, "records/s")
    emit("agent.unaccounted_records", missing, "records", 0, whole_steps=steps)


def timestamps() -> None:
    """Our kernel times against the kernels' own reading of the GPU's timer."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        drain = RingDrain(Path(folder))
        found = [p for base in sys.path for p in Path(base).glob("nvidia/*/lib/libcupti.so.1*")]
        environment = os.environ | {
            "CUDA_INJECTION64_PATH": str(LIBRARY),
            "SPANLITE_AGENT_DIR": folder,
            "SPANLITE_AGENT_LEVEL": "continuous",
            "SPANLITE_AGENT_HW_TRACE": "1",
        }
        environment |= {"SPANLITE_AGENT_CUPTI": str(found[0])} if found else {}
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
    import torch

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    return {"gpu": gpu, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}


def overhead(args: argparse.Namespace) -> None:
    """The interleaved comparison."""
    levels = {k: v for k, v in LEVELS.items() if not (args.stand_in and k == "kineto")}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        drain = RingDrain(Path(folder))
        workers = [start(n, a, Path(folder), args.stand_in) for n, a in levels.items()]
        for workload in args.workloads:
            all_at_once(workers, run=workload, steps=WARM_UP_STEPS)
        for workload in args.workloads:
            take_turns(workers, workload, args.rounds, args.seconds)
            report_costs(workers, workload)
        report_records(workers, drain)


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short rounds, fewer workloads")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.8, help="of each process in a round")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--windows", type=int, default=2000, help="of all stress runs together")
    parser.add_argument("--stress-seconds", type=float, default=60, help="at most")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--keep", default=os.environ.get("OUT"), metavar="FOLDER",
                        help="put the ring of the attribution part there")  # fmt: skip
    parser.add_argument("--stand-in", action="store_true", help="try the bench without a GPU")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.windows = 3, 0.3, 50
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
        "stress": lambda: stress(args.stand_in, args.windows, args.stress_seconds),
        "attribution": lambda: attribution(args.stand_in, args.keep),
        "overhead": lambda: overhead(args),
    }
    failed = False
    for part in args.parts:
        if args.stand_in and part == "clock":
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
