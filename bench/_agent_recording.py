"""Every kernel recorded: `continuous` and variants of it in turns with profilers of Python."""

from __future__ import annotations

from spanlite_collectors.agent.layout import Level

from bench._agent_turns import Worker, take_turn, take_turns
from bench._agent_windows import Windows
from bench._report import emit

#: Steps of a turn that is not counted: what is set up once a process is.
PRIME_STEPS = 20
SWITCHED = "continuous_switched"


class Recorders:
    """Who records in its turns only, as all that are compared with torch.profiler's start and stop
    do: profilers of Python, and the agent, switched to `continuous` and back at run time."""

    def __init__(self, opener: Windows, profilers: list[Worker]) -> None:
        self._opener, self._unprimed = opener, [*profilers, opener.worker]

    def prepare(self, load: str) -> None:
        """Give the agent's process its switch, and each a first turn that is not counted."""
        self._opener.worker.name, self._opener.worker.switch = SWITCHED, self._switch
        for worker in self._unprimed:
            try:
                take_turn(worker, load, PRIME_STEPS)
            except RuntimeError as error:
                emit(f"agent.recorder_failed.{worker.name}", 1, "failures", 0, error=str(error))
        self._unprimed = []

    def _switch(self, on: bool) -> None:
        self._opener.level(Level.CONTINUOUS if on else Level.RANGES)


def measure_recording(
    recorders: Recorders,
    workers: list[Worker],
    load: str,
    rounds: int,
    seconds: float,
    ends: float,
) -> None:
    """Turns of all on one load; the first of the workers is who has no agent."""
    recorders.prepare(load)
    take_turns(workers, load, rounds, seconds, ends)
