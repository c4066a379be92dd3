"""One process of the agent's bench: builds its loads, then runs steps as it is told.

Reads one JSON object a line (`{"run": NAME, "steps": N, "profile": ""}`), answers with one:
step times in ns, a checksum of each load's state, the CPU seconds of all its threads meanwhile.
`"profile"` names a profiler of Python that records the steps, `"marks"` asks for the host time at
each step's edge, `"sum": false` leaves the checksum out. `{"ranges": N}` times N ranges instead.
The process is an ordinary server: only its environment says whether an agent is loaded.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, Protocol, cast

from bench._agent_loads import make


def edges(load: Any, steps: int, first: int, clock: Callable[[], int]) -> list[int]:
    """Run steps; the time before each and after the last, in ns of the clock."""
    times = [clock()]
    for number in range(first, first + steps):
        load.step(number)
        times.append(clock())
    return times


def timed(load: Any, steps: int, first: int) -> list[int]:
    """Run steps; the time of each in ns."""
    times = edges(load, steps, first, time.perf_counter_ns)
    return [after - before for before, after in pairwise(times)]


class Profiler(Protocol):
    """What records the process's kernels from Python."""

    def start(self) -> Any:
        """Begin to record."""

    def stop(self) -> Any:
        """Record no more; whatever was recorded is there afterwards."""


def profiler(name: str) -> Profiler:
    """torch.profiler with its cheapest setting, CUDA activities only, or cupti-python."""
    if name == "cupti_python":
        from bench._agent_cupti_python import CuptiPython

        return CuptiPython.only()
    from torch.profiler import (  # type: ignore[import-not-found,unused-ignore]
        ProfilerActivity,
        profile,
    )

    return cast(Profiler, profile(activities=[ProfilerActivity.CUDA]))


def profiled(load: Any, steps: int, first: int, name: str) -> tuple[list[int], int, int]:
    """The same under a profiler, the ns that its start and stop took, which are in no step's time,
    and the records that it counted."""
    began = time.perf_counter_ns()
    recorder = profiler(name)
    recorder.start()
    times = timed(load, steps, first)
    recorder.stop()
    outside_ns = time.perf_counter_ns() - began - sum(times)
    return times, outside_ns, getattr(recorder, "records", 0)


class Loads:
    """What the process runs. One load alone is run by the main thread; of several, each by a
    thread of its own, which builds it too and lives as long as the process.

    So no thread launches but those that name steps: the agent holds, where asked to, only such.
    """

    def __init__(self, stand_in: bool, helper: bool) -> None:
        self._pools: list[ThreadPoolExecutor] = []
        self._loads: dict[str, Any] = {}
        self._flags = (stand_in, helper)

    def get(self, name: str, thread: str = "main") -> Any:
        """The load of that name and thread, built by the first call."""
        key = f"{name}/{thread}"
        if key not in self._loads:
            self._loads[key] = make(name, *self._flags)
        return self._loads[key]

    def together(self, names: list[str], steps: int, first: int) -> dict[str, Any]:
        """All at once; the times of all, and their checksums."""
        while len(self._pools) < len(names):
            self._pools.append(ThreadPoolExecutor(1))
        pools = self._pools[: len(names)]
        loads = [  # one after the other: a capture bears no other thread's calls
            pool.submit(self.get, name, str(at)).result()
            for at, (pool, name) in enumerate(zip(pools, names, strict=True))
        ]
        pairs = list(zip(pools, loads, strict=True))
        futures = [pool.submit(timed, load, steps, first) for pool, load in pairs]
        times = [time_ns for future in futures for time_ns in future.result()]
        sums = [pool.submit(load.checksum).result() for pool, load in pairs]
        return {"ns": times, "sum": sums}


def alone(load: Any, request: dict[str, Any], first: int) -> dict[str, Any]:
    """One load's steps, on this thread, after a few that warm caches and are not timed."""
    timed(load, request.get("warm", 0), first)
    cpu_s, more = time.process_time(), dict[str, Any]()
    if request.get("profile"):
        times, outside_ns, records = profiled(load, request["steps"], first, request["profile"])
        more = {"outside_ns": outside_ns, "records": records}
    elif request.get("marks"):
        marks = edges(load, request["steps"], first, time.time_ns)
        times, more = [], {"marks": marks}
    else:
        times = timed(load, request["steps"], first)
    return more | {
        "ns": times,
        "cpu_s": time.process_time() - cpu_s,
        "stages": load.stages_a_step,
        "sum": [load.checksum()] if request.get("sum", True) else [],
    }


def range_costs(load: Any, count: int) -> dict[str, float]:
    """ns of a step's range and of a stage's, the cheapest of 20 rounds."""
    uses = {"step": lambda: load.ranges.step(7), "stage": lambda: load.ranges.stage("FFN")}
    return {word: min(_range_ns(use, count // 20) for _ in range(20)) for word, use in uses.items()}


def _range_ns(use: Callable[[], AbstractContextManager[Any]], count: int) -> float:
    began = time.perf_counter_ns()
    for _ in range(count):
        with use():
            pass
    return (time.perf_counter_ns() - began) / count


def main() -> None:
    """Answer requests until stdin closes."""
    loads = Loads("--stand-in" in sys.argv, "--helper" in sys.argv)
    taken = 0
    for line in sys.stdin:
        request = json.loads(line)
        names = request["run"].split("+")
        steps = request.get("steps", 0)
        try:
            if "ranges" in request:
                answer: dict[str, Any] = range_costs(loads.get(names[0]), request["ranges"])
            elif len(names) == 1:
                answer = alone(loads.get(names[0]), request, taken)
            else:
                answer = loads.together(names, steps, taken)
        except Exception as error:  # the other loads are worth having
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        taken += steps
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
