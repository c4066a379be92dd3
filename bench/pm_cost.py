"""What PM sampling from another process does to the steps of a server.

python -m bench.pm_cost        on an NVIDIA GPU: a replayed graph alone, beside it, alone again
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench._report import emit
from bench._soak_worker import SHORT, Model

SECONDS = 1.5


def steps_us(model: Any) -> list[float]:
    """Times of steps."""
    out = []
    end = time.perf_counter() + SECONDS
    while (began := time.perf_counter()) < end:
        model.step(SHORT)
        out.append((time.perf_counter() - began) * 1e6)
    return out


def main() -> int:
    """Measure."""
    if not Path("/dev/nvidiactl").exists():
        print("bench.pm_cost needs an NVIDIA GPU", file=sys.stderr)
        return 0
    model = Model()
    steps_us(model)
    alone = steps_us(model)
    command = [sys.executable, "-m", "spanlite.cli", "collect", "--no-agent", "--pm-sampling",
               "--output", "/dev/shm/pm_cost.spans", "--otlp-port", "0",
               "--metrics-port", "0"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        for line in daemon.stderr:
            print(line, end="", file=sys.stderr)
            if "PM sampling" in line:
                break
        time.sleep(1)
        beside = steps_us(model)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(20)
    again = steps_us(model)
    for word, times in (("alone", alone), ("sampled", beside), ("alone_again", again)):
        emit(f"agent.pm_step_us.{word}", float(np.median(times)), "us",
             p99=round(float(np.percentile(times, 99)), 1))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
