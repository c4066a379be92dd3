"""What `spanlite.instrument` costs an application, in ns of its thread: with an agent and without.

The agent's own part is the same for all NVTX ranges of the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench._report import emit

AGENT = Path(__file__).parents[1] / "collectors/spanlite_collectors/lib/libspanlite_agent.so"
#: Each line runs in a loop of its own; the cheapest of many rounds is what the machine's other
#: work did not disturb.
_CASES = {
    "loop": "pass",
    "stage": "with stage('attention'): pass",
    "stage_prepared": "with prepared: pass",
    "step": "with step(served): pass",
    "request": "with request(context): pass",
    "decorated": "decorated()",
    "plain_call": "plain()",
    "gauge": "gauge.set(1.0, sequence=3)",
}
_PROGRAM = """
import timeit
from spanlite.instrument import request, stage, step, metrics
context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
prepared = stage("attention")
def plain(): pass
decorated = stage("attention")(plain)
served = [context] * 8
gauge = metrics.ROPE_FREQ_INV_MAX
for name, code in {cases!r}.items():
    best = min(timeit.repeat(code, globals=globals(), number=2000, repeat={rounds}))
    print(name, best / 2000 * 1e9)
"""


def measure(agent: Path | None, rounds: int) -> dict[str, float]:
    """ns a use, by case."""
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if "INJECTION64_PATH" not in k}
        if agent:
            env |= {"NVTX_INJECTION64_PATH": str(agent), "SPANLITE_AGENT_DIR": folder}
        program = _PROGRAM.format(cases=_CASES, rounds=rounds)
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
        )
    return {name: float(ns) for name, ns in map(str.split, done.stdout.splitlines())}


def main() -> None:
    """Print one line a case."""
    rounds = 20 if "--quick" in sys.argv else 200
    kinds: list[tuple[str, Path | None]] = [("absent", None)]
    if AGENT.exists():
        kinds.append(("agent", AGENT))
    for word, agent in kinds:
        found = measure(agent, rounds)
        for name in _CASES:
            if name != "loop":
                emit(f"instrument.{name}_ns.{word}", round(found[name] - found["loop"], 1), "ns")


if __name__ == "__main__":
    main()
