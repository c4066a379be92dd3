"""Records twelve seeded faults, twice each, and healthy runs, with our agent on an NVIDIA GPU.

    python -m bench.faults_record OUTPUT_FOLDER [--only NAME ...] [--steps 12] [--seconds 150]

One server process runs all of them (bench/_fault_bed.py says what a step is): STEPS healthy steps,
then as many with the fault, under the agent at level `continuous`; another one, started apart,
makes the baselines. The daemon's own code turns the rings into spans of the archive, which are
cut by time into one Parquet file each. Beside them NVML's clocks and throttle reasons are read
every few ms, and ncu counts bank conflicts of each of our kernels once. `python -m
bench.bottlenecks` analyses what lies under tests/recordings/faults. Needs torch and cupy.
Prints one JSON object a recording: the median healthy step, and how much slower the second half.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from bench._fault_names import RECORDINGS
from bench._fault_spans import (
    Clocks,
    annotated,
    cut,
    names_of,
    read_conflicts,
    spans_of_rings,
    write,
)

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "collectors" / "spanlite_collectors" / "lib" / "libspanlite_agent.so"
#: Everything stays in the ring until the end.
RING_BYTES = 256 << 20
CLOCK_EVERY_S = 0.002
#: ncu waits for other ncu processes of the machine; it is asked once more at the end.
COUNT_S = 25.0
_CONFLICTS = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum,"
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum,"
    "smsp__inst_executed_op_shared_ld.sum,smsp__inst_executed_op_shared_st.sum"
)
#: Names under which each source function is launched, and which variant is the healthy one.
_HEALTHY = {"custom_transpose": "transpose", "custom_mix": "mix"}
BASELINE = "baseline"


class Server:
    """A process that is recorded; see bench/_fault_worker.py."""

    def __init__(self, rings: Path, *words: str) -> None:
        self.environment = os.environ | {
            "CUDA_INJECTION64_PATH": str(LIBRARY),
            "NVTX_INJECTION64_PATH": str(LIBRARY),
            "SPANLITE_AGENT_DIR": str(rings),
            "SPANLITE_AGENT_LEVEL": "continuous",
            "SPANLITE_AGENT_RING_BYTES": str(RING_BYTES),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "bench._fault_worker", *words],
            env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=ROOT,
        )  # fmt: skip

    def answer(self) -> dict[str, Any]:
        """The next one. Raises RuntimeError where the process has died."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server died: {self.process.wait()}")
        return dict(json.loads(line))

    def ask(self, name: str, steps: int) -> dict[str, Any]:
        """Record it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"record": name, "steps": steps}) + "\n")
        self.process.stdin.flush()
        return self.answer() | {"process": self.process.pid}

    def end(self) -> None:
        """Let it run to its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


class ClockReader(threading.Thread):
    """Reads NVML until told to stop."""

    def __init__(self) -> None:
        import pynvml

        super().__init__(daemon=True)
        self._nvml, self._stop_asked = pynvml, threading.Event()
        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.rows: list[tuple[int, int, int, int]] = []
        self.read_us: list[float] = []
        self.facts = {
            "gpu.name": _text(pynvml.nvmlDeviceGetName(self._gpu)),
            "nvidia.driver.version": _text(pynvml.nvmlSystemGetDriverVersion()),
        }
        self.start()

    def users(self) -> list[str]:
        """Processes on the GPU: where others work, no recording is what it says."""
        found: list[str] = []
        try:
            users = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._gpu)
        except self._nvml.NVMLError:
            return found
        for one in users:
            try:
                words = Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                words = [b"?"]
            found.append(f"{one.pid}: {b' '.join(words).decode(errors='replace')[:150]}")
        return found

    def run(self) -> None:
        """See the class."""
        nvml, gpu = self._nvml, self._gpu
        while not self._stop_asked.wait(CLOCK_EVERY_S):
            began = time.perf_counter()
            clock = nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)
            reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)
            power = nvml.nvmlDeviceGetPowerUsage(gpu)
            self.rows.append((time.time_ns(), clock, reasons, power))
            self.read_us.append((time.perf_counter() - began) * 1e6)

    def clocks(self) -> Clocks:
        """All so far; ends the reading."""
        self._stop_asked.set()
        self.join()
        table = np.array(self.rows, np.int64).reshape(-1, 4)
        return Clocks(table[:, 0], table[:, 1], table[:, 2], table[:, 3] / 1e3)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def count_conflicts() -> dict[str, float]:
    """By variant of kernel, from ncu in a process of its own; empty where it cannot count."""
    from bench._fault_bed import VARIANTS

    command = ["ncu", "--csv", "--clock-control", "none", "--metrics", _CONFLICTS]
    command += ["--kernel-name", "regex:custom_|expert_|decode_"]
    command += [sys.executable, "-m", "bench._fault_worker", "--count"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COUNT_S, check=False, cwd=ROOT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(json.dumps({"ncu": str(error)}), flush=True)
        return {}
    counts = read_conflicts(done.stdout)
    if not counts:
        print(json.dumps({"ncu": (done.stdout + done.stderr)[-600:]}), flush=True)
    return names_of(counts, list(VARIANTS))


def record(args: argparse.Namespace, rings: Path, until: float, quiet: Any) -> list[dict[str, Any]]:
    """All that fit the time; the baselines first, by a process of their own.

    `quiet()` returns when nothing else uses the GPU any more.
    """
    servers = [Server(rings, "--alone"), Server(rings)]
    done = []
    for server in servers:
        server.answer()
    quiet()
    print(json.dumps({"ready_s": round(time.monotonic() - until + args.seconds, 1)}), flush=True)
    wanted = [(name, servers[0]) for name in args.only if name.startswith("healthy")]
    wanted += [(name, servers[1]) for name in args.only]
    try:
        for name, server in wanted:
            if time.monotonic() > until:
                print(json.dumps({"recording": name, "failed": "out of time"}), flush=True)
                continue
            answer = server.ask(name, args.steps)
            if server is servers[0]:
                answer["recording"] = name.replace("healthy", BASELINE)
            print(json.dumps(answer), flush=True)
            if "failed" not in answer:
                done.append(answer)
            # Clocks come back after a load.
            time.sleep(0.5 if RECORDINGS[name].burn_ms else 0.02)
    finally:
        for server in servers:
            server.end()
    return done


def write_all(
    args: argparse.Namespace,
    rings: Path,
    done: list[dict[str, Any]],
    clocks: Clocks,
    facts: dict[str, Any],
    conflicts: dict[str, float],
) -> None:
    """Each recording as a file."""
    spans = spans_of_rings(rings, facts | {"host.name": "gpu-host"})
    for one in done:
        name = one["recording"]
        seeded = RECORDINGS[name.replace(BASELINE, "healthy")]
        part = cut(spans, one["process"], one["begin_ns"], one["closed_ns"])

        def counted(kernel: str, after: bool, options: Any = seeded.options) -> dict[str, Any]:
            healthy = _HEALTHY.get(kernel)
            if healthy is None:
                return {}
            variant = options.get(healthy, healthy) if after else healthy
            if variant not in conflicts:
                return {}
            return {"bank_conflicts_per_request": round(conflicts[variant], 2)}

        part = annotated(part, clocks, counted, one["change_ns"])
        said = {key: one[key] for key in ("begin_ns", "change_ns", "end_ns", "slower")}
        said |= {"seeded": vars(seeded), **facts}
        size = write(part, args.folder / f"{name}.parquet", said)
        inside = (clocks.at_ns >= one["change_ns"]) & (clocks.at_ns <= one["end_ns"])
        mhz = clocks.sm_mhz[inside]
        print(
            json.dumps(
                {"recording": name, "spans": len(part), "bytes": size,
                 "sm_mhz": [int(mhz.min()), int(np.median(mhz))] if len(mhz) else [],
                 "throttled": hex(int(np.bitwise_or.reduce(clocks.reasons[inside], initial=0))),
                 "watts": round(float(clocks.watts[inside].max(initial=0.0)), 1)}
            ), flush=True,
        )  # fmt: skip


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="where the recordings go")
    parser.add_argument("--only", nargs="+", choices=list(RECORDINGS), default=list(RECORDINGS))
    parser.add_argument("--steps", type=int, default=12, help="healthy ones, and faulty ones (12)")
    parser.add_argument("--seconds", type=float, default=150, help="begin none after (150)")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    return parser


def main() -> int:
    """Record each; what fails is said, and the others go on."""
    parser = arguments()
    args = parser.parse_args()
    if args.list:
        print("\n".join(RECORDINGS))
        return 0
    if args.folder is None:
        parser.error("say where the recordings go")
    args.folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + args.seconds
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        rings = Path(folder)
        conflicts: dict[str, float] = {}
        counting = threading.Thread(target=lambda: conflicts.update(count_conflicts()))
        counting.start()  # while the servers start
        reader = ClockReader()
        print(json.dumps(reader.facts | {"users": reader.users()}), flush=True)
        done = record(args, rings, until, counting.join)
        clocks = reader.clocks()
        if not conflicts:
            conflicts.update(count_conflicts())
        print(
            json.dumps(
                {"conflicts": conflicts, "clock_samples": len(clocks.at_ns),
                 "clock_read_us": round(float(np.median(reader.read_us)), 1)}
            ), flush=True,
        )  # fmt: skip
        try:
            write_all(args, rings, done, clocks, reader.facts, conflicts)
        except Exception:
            print(json.dumps({"failed": traceback.format_exc()}), flush=True)
            keep(rings, args.folder)
            return 1
    return 0


def keep(rings: Path, folder: Path) -> None:
    """Save what the rings hold, so that nothing recorded is lost."""
    for path in rings.glob("*.ring*"):
        with path.open("rb") as source, gzip.open(folder / f"{path.name}.gz", "wb", 4) as goal:
            shutil.copyfileobj(source, goal, 1 << 22)


if __name__ == "__main__":
    raise SystemExit(main())
