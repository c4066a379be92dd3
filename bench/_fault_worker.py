"""Processes of bench/faults_record.py: the server whose steps are recorded, and its neighbour.

The server reads one JSON object a line (`{"record": NAME, "steps": N}`) and answers with one: when
the recording began, changed and ended (Unix ns), and how long each step took. Only its
environment says whether an agent is loaded. `--neighbour` is the other process on the same GPU:
it reads `burn MS`, `run PERCENT` and `stop`. `--count NAME`: launch one kernel, for ncu.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

from bench._fault_bed import MIB, REQUESTS, SIDE, VARIANTS, Bed, Options, kernel_of
from bench._fault_names import BATCH, RECORDINGS, Seeded

WARM_STEPS = 3
#: One request leaves and another comes, every so many steps.
CHURN = 3
CONTEXT = (2_000, 4_000)


class Batch:
    """The requests that are served, as a server's log would have them."""

    def __init__(self, bed: Bed, seed: int) -> None:
        from spanlite import instrument

        self._instrument, self._bed, self._random = instrument, bed, Random(seed)
        self._oldest = 0
        self.requests = [self._begin(slot) for slot in range(REQUESTS)]

    def _begin(self, slot: int, context: int = 0) -> Any:
        tokens = context or self._random.randint(*CONTEXT)
        self._bed.context_host[slot] = tokens
        request = self._instrument.request(
            name="chat",
            **{"gen_ai.usage.input_tokens": tokens},  # type: ignore[arg-type]
        )
        request.begin()
        return request

    def replace(self, context: int = 0) -> None:
        """The oldest request ends, and one with so long a context (0: a usual one) comes."""
        slot, self._oldest = self._oldest % REQUESTS, self._oldest + 1
        self.requests[slot].end()
        self.requests[slot] = self._begin(slot, context)

    def end(self) -> None:
        """All of them."""
        for request in self.requests:
            request.end()


class Neighbour:
    """Another process on the GPU, not recorded."""

    def __init__(self) -> None:
        plain = {k: v for k, v in os.environ.items() if "INJECTION64" not in k}
        command = [sys.executable, "-m", "bench._fault_worker", "--neighbour"]
        self._process = subprocess.Popen(
            command, env=plain, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def wait(self) -> None:
        """Until it has done what it was told last."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the neighbour died")

    def tell(self, words: str) -> None:
        """Say what to do next."""
        assert self._process.stdin is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Server:
    """Runs steps, healthy ones and then those with the fault."""

    def __init__(self, neighbour: Neighbour | None) -> None:
        self.beds: dict[int, Bed] = {}
        self.neighbour = neighbour

    def record(self, name: str, steps: int) -> dict[str, Any]:
        """Returns what the driver needs to know of it."""
        seeded = RECORDINGS[name]
        if seeded.batch not in self.beds:
            self.beds[seeded.batch] = Bed(seeded.batch, seeded.seed)
        bed, options = self.beds[seeded.batch], Options(**seeded.options)
        for one in (options, Options()):
            for _ in range(WARM_STEPS):
                bed.step(one)
        begin, batch = time.time_ns(), Batch(bed, seeded.seed)
        took = [self._step(bed, batch, number, Options()) for number in range(steps + 1)]
        change = time.time_ns()
        if seeded.long_context:
            batch.replace(seeded.long_context)
        with self._around(seeded):
            for number in range(steps + 1, 2 * steps + 1):
                if seeded.burn_ms and self.neighbour:
                    self.neighbour.tell(f"burn {seeded.burn_ms}")
                    self.neighbour.wait()
                took.append(self._step(bed, batch, number, options))
        end = time.time_ns()
        batch.end()
        bed.torch.cuda.synchronize()
        halves = [sorted(took[1 : steps + 1]), sorted(took[steps + 1 :])]
        middle = [half[len(half) // 2] for half in halves]
        return {
            "recording": name,
            "begin_ns": begin,
            "change_ns": change,
            "end_ns": end,
            "closed_ns": time.time_ns(),
            "healthy_us": round(middle[0] / 1e3, 1),
            "slower": round(middle[1] / middle[0], 3),
        }

    def _step(self, bed: Bed, batch: Batch, number: int, options: Options) -> int:
        from spanlite import instrument

        if number % CHURN == CHURN - 1:
            batch.replace()
        began = time.perf_counter_ns()
        with instrument.step(batch.requests, number=number):
            bed.step(options)
        return time.perf_counter_ns() - began

    @contextmanager
    def _around(self, seeded: Seeded) -> Iterator[None]:
        with ExitStack() as stack:
            if seeded.busy_thread_us:
                stack.enter_context(busy_thread(seeded.busy_thread_us / 1e6))
            if seeded.neighbour_pct and self.neighbour:
                self.neighbour.tell(f"run {seeded.neighbour_pct}")
                self.neighbour.wait()
                stack.callback(self.neighbour.wait)
                stack.callback(self.neighbour.tell, "stop")
            yield


@contextmanager
def busy_thread(turn_s: float) -> Iterator[None]:
    """A second Python thread that wants the interpreter all the time."""
    stop = threading.Event()

    def compete() -> None:
        while not stop.is_set():
            sum(range(2_000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(turn_s)
    thread = threading.Thread(target=compete)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


def run_neighbour() -> None:
    """See the module."""
    import torch

    torch.set_grad_enabled(False)
    half = {"device": "cuda", "dtype": torch.bfloat16}
    big, small = torch.randn(8192, 8192, **half), torch.randn(4096, 4096, **half)
    for one in (big, small):
        torch.mm(one, one)
    torch.cuda.synchronize()

    def work(one: Any, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            for _ in range(8):
                torch.mm(one, one)
            torch.cuda.synchronize()

    print("ready", flush=True)
    while line := sys.stdin.readline():
        word, _, number = line.strip().partition(" ")
        if word == "burn":
            work(big, int(number) / 1e3)
        elif word == "run":
            print("runs", flush=True)
            while not select.select([sys.stdin], [], [], 0)[0]:
                began = time.perf_counter()
                work(small, 0.002)
                took = time.perf_counter() - began
                time.sleep(took * (100 - int(number)) / int(number))
            sys.stdin.readline()
        print("done", flush=True)


def count(variant: str) -> None:
    """One launch of a kernel, for ncu. Needs cupy alone."""
    import cupy

    kernel, side = kernel_of(variant), SIDE // 4
    a, b = cupy.zeros(side * side, cupy.float32), cupy.zeros(side * side, cupy.float32)
    if variant.startswith("transpose"):
        args = (a, b, cupy.int32(side), cupy.int32(1))
        kernel((side // 32, side // 32), (32, 8), args)
    elif variant.startswith("mix"):
        kernel((1024,), (128,), (a, b, cupy.int32(side * side), cupy.int32(10)))
    elif variant == "expert":
        kernel((20,), (128,), (b, cupy.int32(100)))
    else:
        pool, context = cupy.zeros(64 * MIB, cupy.uint8), cupy.full(16, 64, cupy.int32)
        kernel((16, 64), (128,), (pool, b, context, cupy.int32(1 << 17), cupy.int32(0)))
    cupy.cuda.Device().synchronize()


def serve() -> None:
    """Answer requests until stdin ends."""
    neighbour = None
    if "--alone" not in sys.argv:
        neighbour = Neighbour()
    server = Server(neighbour)
    server.record("healthy.a", 4)  # warms everything up
    if neighbour:
        neighbour.wait()
    print(json.dumps({"ready": True, "batch": BATCH}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = server.record(asked["record"], int(asked["steps"]))
        except Exception:
            answer = {"recording": asked["record"], "failed": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
    if neighbour:
        neighbour.end()


def main() -> None:
    """See the module."""
    if "--neighbour" in sys.argv:
        run_neighbour()
    elif "--count" in sys.argv:
        for variant in VARIANTS:
            count(variant)
    else:
        serve()


if __name__ == "__main__":
    main()
