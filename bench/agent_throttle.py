"""A GPU that begins to hold its clocks down opens a window that says so, on an NVIDIA GPU.

    python -m bench.agent_throttle --seconds 20

One process multiplies large matrices under the agent until NVML tells that the power limit, or
heat, holds the clocks down; what reads NVML and asks for the window is the daemon's own code.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from spanlite_collectors.agent.layout import RecordType, WindowReason
from spanlite_collectors.agent.nvml import open_nvml
from spanlite_collectors.agent.triggers import CaptureTrigger

from bench._agent_rings import Drained, RingDrain
from bench._agent_turns import LIBRARY, ROOT
from bench._report import emit


def work(seconds: float) -> None:
    """Steps of large products, as an ordinary program has them."""
    import torch

    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    left, right = (torch.randn((16384, 16384), **options) for _ in range(2))
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        torch.cuda.nvtx.range_push(f"step:{number % 1000}")
        for _ in range(2):
            torch.mm(left, right)
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        number += 1


def watch(seconds: float) -> None:
    """Run it, read NVML beside it, and say what opened."""
    told: list[tuple[int, str]] = []
    said: list[str] = []
    sampler = open_nvml(said.append)
    if sampler is None:
        emit("agent.throttle_windows", 0, "windows", 1, said=said)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as rings:
        drain = RingDrain(Path(rings))
        asks = CaptureTrigger(drain, said.append, "clocks are held down", WindowReason.THROTTLE)
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.agent_throttle", "--work", "--seconds", str(seconds)],
            cwd=ROOT, env=os.environ | {
                "CUDA_INJECTION64_PATH": str(LIBRARY), "NVTX_INJECTION64_PATH": str(LIBRARY),
                "SPANLITE_AGENT_DIR": rings, "SPANLITE_AGENT_WINDOW_SECONDS": "1000000"},
        )  # fmt: skip

        def held_down(text: str) -> None:
            told.append((time.time_ns(), text))
            if drain.drained:
                asks(text)

        sampler.on_throttle = held_down
        sampler.start()
        try:
            process.wait(seconds + 60)
        finally:
            process.kill()
            sampler.stop()
            drain.stop()
        report(next(iter(drain.drained.values())), told, said, process.returncode)


def report(mine: Drained, told: list[tuple[int, str]], said: list[str], code: int) -> None:
    """The windows, and what was asked."""
    rows = mine.rows(RecordType.WINDOW)
    windows = [] if rows is None else [
        {"reason": WindowReason(int(row["reason"])).name.lower(), "steps": int(row["steps"]),
         "open_ns": int(row["open_ns"])} for row in rows]  # fmt: skip
    throttled = [window for window in windows if window["reason"] == "throttle"]
    emit("agent.throttle_windows", len(throttled), "windows", 1, told=[text for _, text in told],
         said=said, exit_code=code,
         windows=[(w["reason"], w["steps"]) for w in windows])  # fmt: skip
    before = [at for at, _ in told if throttled and at <= throttled[0]["open_ns"]]
    if before:
        emit("agent.throttle_window_ms", (throttled[0]["open_ns"] - before[-1]) / 1e6, "ms",
             steps=throttled[0]["steps"])  # fmt: skip


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="10 s")
    args = parser.parse_args()
    if args.quick:
        args.seconds = 10
    if not Path("/dev/nvidiactl").exists():
        print("bench.agent_throttle needs an NVIDIA GPU", file=sys.stderr)
        return 0
    if args.work:
        work(args.seconds)
    else:
        watch(args.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
