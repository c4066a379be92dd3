"""One process of the stress test that runs models: rounds of steps from the same state.

    python -m bench._agent_stress_worker LOAD+LOAD SECONDS [--stand-in] [--helper]

Each load has a thread of its own; one load alone has the main thread. After each round every bit of
its state is hashed; prints one JSON object a round: the hash, and how many steps it had.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from bench._agent_loads import SHAPES, Shape, make

STEPS = 50
#: Small, so that steps are short and windows many: several streams each, with and without graphs.
SHAPES |= {
    "stress_s4": Shape(512, 3, 4, graph=True, streams=4),
    "stress_s4_kernels": Shape(512, 3, 4, graph=True, streams=4, copies=False),
    "stress_s8": Shape(512, 2, 4, graph=True, streams=8),
    "stress_eager": Shape(512, 3, 4, graph=False, streams=2),
}


class Model:
    """A load that can begin anew."""

    def __init__(self, name: str, stand_in: bool, helper: bool) -> None:
        self._load = make(name, stand_in, helper)
        self._first = [state.clone() for state in getattr(self._load, "states", ())]

    def round(self) -> str:
        """So many steps from the first state; what it is then."""
        for state, first in zip(getattr(self._load, "states", ()), self._first, strict=True):
            state.copy_(first)
        for number in range(STEPS):
            self._load.step(number)
        return str(self._load.checksum())


def rounds(names: list[str], until: float, *flags: bool) -> None:
    """All loads at once, each round by round and waiting for no other."""
    if len(names) == 1:
        _go_on(0, Model(names[0], *flags), until)
        return
    pools = [ThreadPoolExecutor(1) for _ in names]
    models = [  # one after the other: a capture bears no other thread's calls
        pool.submit(Model, name, *flags).result() for pool, name in zip(pools, names, strict=True)
    ]
    running = [
        pool.submit(_go_on, at, model, until)
        for at, (pool, model) in enumerate(zip(pools, models, strict=True))
    ]
    for future in as_completed(running):
        future.result()


def _go_on(at: int, model: Model, until: float) -> None:
    while True:
        said = {"load": at, "sum": model.round(), "steps": STEPS}
        os.write(1, f"{json.dumps(said)}\n".encode())  # in one piece, from any thread
        if time.monotonic() > until:
            return


def main() -> None:
    """Run until the time is over."""
    words: list[Any] = [word for word in sys.argv[1:] if not word.startswith("--")]
    until = time.monotonic() + float(words[1])
    rounds(words[0].split("+"), until, "--stand-in" in sys.argv, "--helper" in sys.argv)


if __name__ == "__main__":
    main()
