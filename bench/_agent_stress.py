"""Windows opened and closed as fast as they go, in each way, beside the same model without any."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench._agent_rings import RingDrain, account
from bench._agent_turns import Worker, all_at_once, start
from bench._report import emit

STEPS_AT_ONCE = 200
#: A process that has not answered so long after its time is hanging.
_PATIENCE_S = 30.0


@dataclass
class Way:
    """How windows are closed, and what runs meanwhile: loads joined by + have a thread each."""

    detach: str
    run: str
    flags: tuple[str, ...] = ()
    windows: int = 0
    failures: list[str] = field(default_factory=list)


#: One thread and a detach after each window; three threads and none; two threads that are held
#: while CUPTI is detached.
WAYS = (
    Way("proven", "graphs_s4"),
    Way("never", "graphs_s4+eager+graphs_s8"),
    Way("held", "graphs_600us+eager", ("--helper",)),
)


def stress(stand_in: bool, windows: int, limit_s: float) -> None:
    """All ways at the same time, until each has so many windows."""
    ends = time.monotonic() + limit_s
    ways = [Way(way.detach, way.run, way.flags) for way in WAYS]

    def enough(way: Way) -> bool:
        return way.windows >= windows or time.monotonic() > ends

    def run(way: Way) -> None:
        try:
            _run(way, stand_in, lambda: enough(way), limit_s)
        except Exception as error:  # a process that died is what this looks for
            way.failures.append(f"{type(error).__name__}: {error}"[:300])
        emit(f"agent.stress_failures.{way.detach}", len(way.failures), "failures", 0,
             run=way.run, windows=way.windows, failures=way.failures)  # fmt: skip

    threads = [threading.Thread(target=run, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emit("agent.stress_windows", sum(way.windows for way in ways), "windows", windows * len(ways),
         failures=sum(len(way.failures) for way in ways))  # fmt: skip


def _run(way: Way, stand_in: bool, enough: Callable[[], bool], limit_s: float) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        drain = RingDrain(Path(folder))
        settings = {"DETACH": way.detach, "WINDOW_SECONDS": "0", "WINDOW_STEPS": "1",
                    "BUDGET_PCT": "100000", "HOLD_MS": "200"}  # fmt: skip
        watched = start(way.detach, settings, Path(folder), stand_in, *way.flags)
        plain = start("plain", None, Path(folder), stand_in, *way.flags)
        hanging = threading.Timer(limit_s + _PATIENCE_S, _kill, [watched, plain])
        hanging.start()
        try:
            _rounds(way, watched, plain, drain, enough)
        finally:
            hanging.cancel()
            for worker in (watched, plain):
                if worker.process.poll() is None:
                    worker.process.kill()
            drain.stop()
        _report(way, watched, drain)


def _rounds(
    way: Way, watched: Worker, plain: Worker, drain: RingDrain, enough: Callable[[], bool]
) -> None:
    """Both run the same steps; every bit of their states is compared each time."""
    while True:
        sums = [a["sum"] for a in all_at_once([watched, plain], run=way.run, steps=STEPS_AT_ONCE)]
        if sums[0] != sums[1]:
            way.failures.append(f"after {way.windows} windows the bits differ")
            break
        time.sleep(0.15)  # a drain
        if mine := drain.drained.get(watched.process.pid):
            way.windows = mine.state.get("windows", 0)
        if enough():
            break
    for worker in (watched, plain):
        worker.end()
        if worker.process.returncode != 0:
            way.failures.append(f"{worker.name} ended with {worker.process.returncode}")


def _report(way: Way, watched: Worker, drain: RingDrain) -> None:
    mine = drain.drained.get(watched.process.pid)
    if mine is None:
        way.failures.append("no ring")
        return
    found = account(mine)
    emit(f"agent.stress_windows.{way.detach}", way.windows, "windows", run=way.run,
         detaches=mine.state["detaches"], bits="compared every "
         f"{STEPS_AT_ONCE} steps")  # fmt: skip
    emit(f"agent.stress_unaccounted.{way.detach}", found.missing, "records", 0,
         whole_steps=found.steps, lacking=found.lacking, drops=mine.drops, examples=found.examples,
         counts=found.counts if len(found.counts) < 9 else len(found.counts))  # fmt: skip


def _kill(*workers: Worker) -> None:
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
