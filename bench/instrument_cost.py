"""What a range costs the application's thread, in ns: with an agent and without.

Of `spanlite.instrument`, and of NVTX itself as torch calls it (`--torch`; else through the tests'
small library, where it is built). Processes with and without an agent take turns; each figure is
that of the cheapest turn, which the machine's other work did not disturb, and `median` that of the
middle one. The rings are emptied in between, as a daemon does it.

    python -m bench.instrument_cost --torch --agent before=OLD/libspanlite_agent.so
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from spanlite_collectors.agent.ring import Ring

from bench._report import emit

ROOT = Path(__file__).parents[1]
AGENT = ROOT / "collectors/spanlite_collectors/lib/libspanlite_agent.so"
COUNT = 1000
#: What a stage's range may cost, and a step's, in ns.
GOALS = {"nvtx_stage": 200.0, "nvtx_layers": 200.0, "nvtx_step": 350.0}


class Process:
    """An application, under that agent if one is given."""

    def __init__(self, agent: Path | None, folder: Path, torch: bool) -> None:
        env = {k: v for k, v in os.environ.items() if "INJECTION64_PATH" not in k}
        if agent:
            env |= {
                "NVTX_INJECTION64_PATH": str(agent),
                "SPANLITE_AGENT_DIR": str(folder),
                "SPANLITE_AGENT_LEVEL": "ranges",
            }
        command = [sys.executable, "-m", "bench._instrument_worker", *(["--torch"] * torch)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env=env, stdin=pipe, stdout=pipe, text=True, cwd=ROOT
        )
        self._folder = folder
        self._ring: Ring | None = None
        self.times: dict[str, list[float]] = {}

    def line(self) -> Any:
        """What it says next. Raises RuntimeError where it has died."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            raise RuntimeError(f"a process died: {self.process.wait()}")
        return json.loads(text)

    def turn(self, case: str) -> None:
        """Time one case."""
        assert self.process.stdin is not None
        print(json.dumps({"case": case, "count": COUNT}), file=self.process.stdin, flush=True)
        self.times.setdefault(case, []).append(self.line())

    def drain(self) -> None:
        """Take what its ring holds."""
        for path in self._folder.glob("*.ring"):
            self._ring = self._ring or Ring(path)
        while self._ring and self._ring.drain()[0] > 0:
            pass

    def end(self) -> None:
        """Let it run to its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def measure(
    agents: dict[str, Path | None], rounds: int, ends: float, torch: bool
) -> tuple[str, dict[str, Process]]:
    """Whose NVTX it was, and each process with its times."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        processes = {}
        for name, agent in agents.items():
            rings = Path(folder) / name
            rings.mkdir()
            processes[name] = Process(agent, rings, torch)
        said = [process.line() for process in processes.values()]
        time.sleep(0.2)  # what an agent does at its start is over by then
        for number in range(rounds):
            if number >= 3 and time.monotonic() > ends:
                break
            for case in said[0]["cases"]:
                for process in processes.values():
                    process.turn(case)
            for process in processes.values():
                process.drain()
        for process in processes.values():
            process.end()
    return said[0]["nvtx"], processes


def report(nvtx: str, processes: dict[str, Process]) -> None:
    """Each case of each process, and what is more than without an agent."""
    absent, agents = processes["absent"], [name for name in processes if name != "absent"]
    for case in absent.times:
        if case == "loop":
            continue
        best = {n: min(p.times[case]) - min(p.times["loop"]) for n, p in processes.items()}
        for name, process in processes.items():
            middle = float(np.median(process.times[case]) - np.median(process.times["loop"]))
            emit(f"instrument.{case}_ns.{name}", best[name], "ns", median=round(middle, 1),
                 rounds=len(process.times[case]))  # fmt: skip
        for name in agents if case in GOALS else ():
            pairs = np.array(processes[name].times[case]) - np.array(absent.times[case])
            more, first = best[name] - best["absent"], best[agents[0]] - best["absent"]
            emit(f"agent.range_ns.{case.removeprefix('nvtx_')}.{name}", more, "ns", GOALS[case],
                 ratio=None if name == agents[0] else more / first,
                 peer=None if name == agents[0] else agents[0],
                 median=round(float(np.median(pairs)), 1), nvtx=nvtx)  # fmt: skip


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return f"{name}, {os.cpu_count()} cores"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--seconds", type=float, default=30, help="no round begins after these")
    parser.add_argument("--torch", action="store_true", help="torch's NVTX")
    parser.add_argument(
        "--agent", action="append", default=[], metavar="NAME=PATH", help="another build to compare"
    )
    args = parser.parse_args()
    emit("agent.ranges_bench", 1, "run", cpu=_cpu(), date=time.strftime("%Y-%m-%d", time.gmtime()),
         command=" ".join(["python -m bench.instrument_cost", *sys.argv[1:]]))  # fmt: skip
    ends = time.monotonic() + args.seconds
    agents: dict[str, Path | None] = {"absent": None}
    agents |= {name: Path(path) for name, path in (word.split("=", 1) for word in args.agent)}
    if AGENT.exists():
        agents["agent"] = AGENT
    report(*measure(agents, 20 if args.quick else 200, ends, args.torch))


if __name__ == "__main__":
    main()
