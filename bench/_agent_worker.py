"""One process of the agent's bench: builds its loads, then runs steps as it is told.

Reads one JSON object a line (`{"run": NAME, "steps": N, "profile": false}`), answers with one:
step times in ns, a checksum of each load's state, the CPU seconds of all its threads meanwhile.
`{"ranges": N}` times N ranges instead. The process is an ordinary server: only its environment
says whether an agent is loaded.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from bench._agent_loads import make


def timed(load: Any, steps: int, first: int) -> list[int]:
    """Run steps; the time of each in ns."""
    clock = time.perf_counter_ns
    times, last = [], clock()
    for number in range(first, first + steps):
        load.step(number)
        now = clock()
        times.append(now - last)
        last = now
    return times


def profiled(load: Any, steps: int, first: int) -> tuple[list[int], int]:
    """The same under torch.profiler (CUDA activities only: its cheapest setting), and the ns that
    its start and stop took, which are in no step's time."""
    from torch.profiler import ProfilerActivity, profile

    began = time.perf_counter_ns()
    profiler = profile(activities=[ProfilerActivity.CUDA])
    profiler.start()
    times = timed(load, steps, first)
    profiler.stop()
    return times, time.perf_counter_ns() - began - sum(times)


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
    cpu_s, outside_ns = time.process_time(), 0
    if request.get("profile"):
        times, outside_ns = profiled(load, request["steps"], first)
    else:
        times = timed(load, request["steps"], first)
    return {
        "ns": times,
        "cpu_s": time.process_time() - cpu_s,
        "outside_ns": outside_ns,
        "stages": load.stages_a_step,
        "sum": [load.checksum()],
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
