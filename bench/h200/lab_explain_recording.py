"""Record kernels with known limits by our agent and daemon, with the GPU's counters sampled.

python3 -m bench.h200.lab_explain_recording OUTPUT.spans.zst [--steps N]

A process whose steps have four stages, each one kernel again and again: docs/lab.md's slow
scores, their repair, a copy of 2 GiB, a product of bf16 matrices. `spanlite collect --pm-sampling`
beside it writes the file. `spanlite import` takes it into an archive, where
`spanlite lab explain all scores_slow` reads what was sampled. tests/recordings/scores.spans.zst is
such a file. Needs CuPy, torch, nvcc and what `make agent` builds, and a GPU on which nothing else
samples.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.h200.lab_beforeafter_table import ROOT, build

LIBRARY = ROOT / "collectors" / "spanlite_collectors" / "lib" / "libspanlite_agent.so"
KERNELS = ("scores_slow", "scores_tiled")
SIZE, COPIED, WIDTH = 4096, 1 << 29, 8192
STEPS = 12
#: Launches of the repaired scores in a step: together they last as long as the slow ones.
REPEATS = 16
DEADLINE_S = 25
#: For the daemon to sample, and how often that is tried.
START_S, TRIES = 6, 3
SETTINGS = {
    "CUDA_INJECTION64_PATH": str(LIBRARY),
    "NVTX_INJECTION64_PATH": str(LIBRARY),
    "SPANLITE_AGENT_LEVEL": "continuous",
    "OTEL_SERVICE_NAME": "scores",
}


def serve(folder: Path, steps: int) -> None:
    """The process that is recorded."""
    import torch
    from spanlite import instrument

    from bench.h200.lab_beforeafter_table import Problem

    problem = Problem(SIZE)
    slow, tiled = (problem.launcher(name, folder / f"{name}.cubin") for name in KERNELS)
    source = torch.zeros(COPIED, device="cuda")
    target = torch.empty_like(source)
    a, b = (torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    stages = {
        "scores": slow,
        "scores_repaired": lambda: [tiled() for _ in range(REPEATS)],
        "copy": lambda: torch.add(source, 1.0, out=target),
        "product": lambda: torch.mm(a, b, out=out),
    }
    for run in stages.values():
        run()
    torch.cuda.synchronize()
    wait = problem.cupy.cuda.runtime.deviceSynchronize
    request = instrument.request(name="scores")
    request.begin()
    for _ in range(steps):
        with instrument.step([request]):
            for name, run in stages.items():
                with instrument.stage(name):
                    run()
                wait()
    request.end()


class Daemon:
    """`spanlite collect` with sampled counters, and all that it says."""

    def __init__(self, output: Path, rings: str) -> None:
        command = [sys.executable, "-m", "spanlite.cli", "collect", "--output", str(output),
                   "--agent-dir", rings, "--pm-sampling", "--otlp-port", "0",
                   "--metrics-port", "0"]  # fmt: skip
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line)
            print(" ", line, end="", flush=True)

    def samples(self) -> bool:
        """Whether it samples, which it says after a moment."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            text = "".join(self.said)
            if "no PM sampling" in text:
                return False
            if "PM sampling (" in text:
                return True
            time.sleep(0.05)
        return False

    def stop(self) -> int:
        """End it; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join()
        return self._process.wait()


def record(path: Path, cubins: Path, steps: int) -> None:
    """The process, and the daemon beside it. Raises RuntimeError where one of them fails."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        daemon = Daemon(path, folder)
        for _ in range(TRIES - 1):
            if daemon.samples():
                break
            # Another sampler may be about to end.
            daemon.stop()
            time.sleep(2)
            daemon = Daemon(path, folder)
        try:
            if not daemon.samples():
                raise RuntimeError("the GPU's counters cannot be sampled")
            server = [sys.executable, "-m", "bench.h200.lab_explain_recording", "--serve",
                      str(cubins), "--steps", str(steps)]  # fmt: skip
            environment = os.environ | SETTINGS | {"SPANLITE_AGENT_DIR": folder}
            subprocess.run(server, env=environment, check=True, timeout=DEADLINE_S)
            end = time.monotonic() + 5
            while list(Path(folder).glob("*.ring")) and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            code = daemon.stop()
    if code:
        raise RuntimeError(f"the daemon ended with {code}")
    print(f"{path.name}: {path.stat().st_size} bytes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.steps)
        return
    if args.output is None:
        parser.error("OUTPUT.spans.zst is missing")
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
        folder = Path(name)
        list(pool.map(lambda step: build(step, folder, args.nvcc), KERNELS))
        record(args.output, folder, args.steps)


if __name__ == "__main__":
    main()
