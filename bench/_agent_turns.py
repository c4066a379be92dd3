"""The processes of the agent's bench, and how they take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench._report import emit

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "collectors" / "spanlite_collectors" / "lib" / "libspanlite_agent.so"
STAND_IN = ROOT / "collectors" / "agent" / "build" / "tests"
I64 = npt.NDArray[np.int64]
#: All workers share these cores, as one runs at a time and cores differ.
CORES = range(2, 6) if (os.cpu_count() or 1) >= 8 else range(os.cpu_count() or 1)
#: Profilers of Python by the name of their process.
PROFILERS = ("kineto", "cupti_python")
#: Steps of their turns at most: torch.profiler keeps all events and parses them at the end.
PROFILED_STEPS = 150
#: Steps after a recording was switched off in which it ends.
SWITCH_STEPS = 10
WARM_UP_STEPS = 60
FEWEST_STEPS = 5
#: Steps before each turn's, not timed: another process has just had the GPU.
WARM_STEPS = 3


@dataclass
class Turn:
    """What a process did in a round."""

    ns: I64
    cpu_s: float
    outside_ns: int
    #: In host time (CLOCK_REALTIME), like the records.
    began_ns: int
    ended_ns: int
    #: That a profiler of Python counted.
    records: int = 0


@dataclass
class Worker:
    """One process; `turns[workload]` has what it did in each round."""

    name: str
    process: subprocess.Popen[str]
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    #: Longer turns: each with the one without an agent before it and the one after it.
    between: dict[str, list[tuple[Turn, Turn, Turn]]] = field(default_factory=dict)
    #: Switches the agent's recording on and off: it records in its turns only, as profilers do.
    switch: Callable[[bool], None] | None = None

    @property
    def profile(self) -> str:
        """The profiler of Python that records its turns, if any."""
        return self.name if self.name in PROFILERS else ""

    def all_turns(self, workload: str) -> list[Turn]:
        """Short and long ones, in the order of time."""
        long = [turn for _, turn, _ in self.between.get(workload, [])]
        return sorted([*self.turns.get(workload, []), *long], key=lambda turn: turn.began_ns)

    def times(self) -> dict[str, list[tuple[int, int]]]:
        """By workload when its turns began and ended."""
        names = {*self.turns, *self.between}
        return {n: [(t.began_ns, t.ended_ns) for t in self.all_turns(n)] for n in names}

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
        found = dict(json.loads(line))
        if "error" in found:
            raise RuntimeError(f"'{self.name}': {found['error']}")
        return found

    def settle(self) -> None:
        """Keep all its threads on the cores that all workers share. Once it is built."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), CORES)

    def resident_mib(self) -> float:
        """Memory of the process."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) / 1024

    def close(self) -> None:
        """Ask for nothing more."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        """Let it run to its end."""
        self.close()
        self.process.wait(60)


def start(
    name: str, agent: dict[str, str] | None, rings: Path, stand_in: bool, *words: str
) -> Worker:
    """A process, under the agent where settings for one are given; `words`: its own flags."""
    # One compiling thread: else each of the processes starts a pool of its own.
    environment = os.environ | {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    if agent is not None:
        environment |= {
            "CUDA_INJECTION64_PATH": str(LIBRARY),
            "NVTX_INJECTION64_PATH": str(LIBRARY),
            "SPANLITE_AGENT_DIR": str(rings),
            "SPANLITE_AGENT_WINDOW_SECONDS": "1",
            "SPANLITE_AGENT_DETACH_MIB_PER_DAY": "0",
            "SPANLITE_AGENT_RING_BYTES": str(256 << 20),
        } | {f"SPANLITE_AGENT_{key}": value for key, value in agent.items()}
    if stand_in:
        environment["LD_LIBRARY_PATH"] = str(STAND_IN)
    flags = [*(["--stand-in"] if stand_in else []), *words]
    command = [sys.executable, "-m", "bench._agent_worker", *flags]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    return Worker(name, process)


def all_at_once(workers: list[Worker], **request: Any) -> list[dict[str, Any]]:
    """The same request to all, in parallel: for building and warming up."""
    for worker in workers:
        worker.ask(**request)
    found, failed = [], None
    for worker in workers:
        try:
            found.append(worker.answer())
        except RuntimeError as error:  # the others' answers must be read all the same
            failed = error
    if failed is not None:
        raise failed
    return found


def take_turns(
    workers: list[Worker],
    workload: str,
    rounds: int,
    seconds: float,
    ends: float = float("inf"),
    quiet: bool = False,
) -> None:
    """Rounds in which each process runs for about `seconds`, one after the other.

    Who comes first moves on with each round. No round but the first two begins after `ends` (of
    the monotonic clock). Each turn is said on stderr, for a run that is cut
    off; a process that fails is left out from then on.
    """
    workers = list(workers)
    steps = _steps_in(workers[0], workload, seconds)
    for number in range(rounds):
        if number >= 2 and time.monotonic() > ends:
            break
        shift = number % len(workers)
        for worker in workers[shift:] + workers[:shift]:
            stops = bool(worker.profile) or worker.switch is not None
            try:
                turn = take_turn(worker, workload, min(steps, PROFILED_STEPS) if stops else steps)
            except RuntimeError as error:
                emit(f"agent.turn_failed.{worker.name}.{workload}", 1, "failures", 0,
                     error=str(error))  # fmt: skip
                worker.turns.pop(workload, None)
                workers.remove(worker)
                continue
            worker.turns.setdefault(workload, []).append(turn)
            if not quiet:
                _say(worker, workload, number, turn)


def take_long_turns(
    base: Worker, worker: Worker, workload: str, turns: int, seconds: float, ends: float
) -> None:
    """Turns of about `seconds`, so long that windows open by schedule in them.

    Between them `base` has turns of a third of that. Each is compared with the two beside it, so
    that what drifts hits both alike.
    """
    steps = _steps_in(base, workload, seconds)
    before = take_turn(base, workload, max(10, steps // 3))
    for number in range(turns):
        if number >= 1 and time.monotonic() > ends:
            break
        turn = take_turn(worker, workload, steps)
        after = take_turn(base, workload, max(10, steps // 3))
        worker.between.setdefault(workload, []).append((before, turn, after))
        _say(worker, workload, number, turn)
        before = after


def _steps_in(worker: Worker, workload: str, seconds: float) -> int:
    probe = all_at_once([worker], run=workload, steps=WARM_UP_STEPS)[0]
    return max(FEWEST_STEPS, int(seconds * 1e9 / float(np.median(probe["ns"]))))


def _say(worker: Worker, workload: str, number: int, turn: Turn) -> None:
    print(f"{time.strftime('%T')} {workload} {number} {worker.name}: "
          f"{turn.ns.mean() / 1e3:.1f} us, median {np.median(turn.ns) / 1e3:.1f}, "
          f"{len(turn.ns)} steps", file=sys.stderr, flush=True)  # fmt: skip


def take_turn(worker: Worker, workload: str, steps: int) -> Turn:
    """One turn of a process. Raises RuntimeError where it fails."""
    began_ns = time.time_ns()
    if worker.switch is not None:
        return _switched_turn(worker, workload, steps, worker.switch)
    said = ask_steps(worker, workload, steps, profile=worker.profile, warm=WARM_STEPS)
    times = np.array(said["ns"], np.int64)
    return Turn(times, said["cpu_s"], said.get("outside_ns", 0), began_ns, time.time_ns(),
                said.get("records", 0))  # fmt: skip


def _switched_turn(
    worker: Worker, workload: str, steps: int, switch: Callable[[bool], None]
) -> Turn:
    """A turn that begins and ends with a switch of the agent's level. The first step attaches and
    is counted with the others; what the steps after the last took longer is `outside_ns`."""
    began_ns = time.time_ns()
    ask_steps(worker, workload, WARM_STEPS)
    switch(True)
    said = ask_steps(worker, workload, steps)
    switch(False)
    after = ask_steps(worker, workload, SWITCH_STEPS)
    longer_ns = sum(after["ns"]) - SWITCH_STEPS * float(np.median(after["ns"]))
    return Turn(np.array(said["ns"], np.int64), said["cpu_s"], max(0, int(longer_ns)), began_ns,
                time.time_ns())  # fmt: skip


def ask_steps(worker: Worker, workload: str, steps: int, **more: Any) -> dict[str, Any]:
    """Have a process run steps, without a checksum after them, and wait for the answer."""
    worker.ask(run=workload, steps=steps, sum=False, **more)
    return worker.answer()
