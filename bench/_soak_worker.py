"""The server of the soak: decodes for a while, and keeps the time of each step for the judge.

    python -m bench._soak_worker FOLDER SECONDS [--stand-in]

An ordinary program with `spanlite.instrument`; only its environment says whether an agent is
loaded. Requests come and go, 8 at a time; most steps replay a CUDA graph of short contexts, some
one of long contexts, some run eagerly. Where a file `slow` or `queue` appears in FOLDER, five steps
are slow, or a queue is long for 3 s. FOLDER gets `steps.npz` (start, duration, kind of each step)
and `events.json` at the end.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from spanlite import instrument
from spanlite.instrument import metrics

SHORT, LONG, EAGER = 0, 1, 2
KINDS = ("graph, short contexts", "graph, long contexts", "eager")
#: Shares of the steps.
SHARES = (0.88, 0.10, 0.02)
REQUESTS, STEPS_A_REQUEST = 8, 400
SLOW_MS, SLOW_STEPS = 60, 5
QUEUE_USUAL, QUEUE_LENGTH, QUEUE_S = 4, 64, 3
#: The queue's length is told, and wishes are looked for, once in so many steps.
LOOK_EVERY = 50
MOST_STEPS = 2_000_000
#: Kernels of the stand-in by stage; the names must stay where they are.
NAMES = {stage: stage.encode() for stage in ("QKV", "attention", "output", "FFN")}


class Decoder:
    """Decodes on the GPU with bf16 weights shared by all; 8 sequences, of `context` tokens each."""

    HIDDEN, LAYERS, BATCH, HEADS = 1024, 12, 8, 8

    def __init__(self, context: int, weights: list[dict[str, Any]] | None = None) -> None:
        import torch

        self.torch, h = torch, self.HIDDEN
        options = {"device": "cuda", "dtype": torch.bfloat16}
        sizes = {"qkv": (3 * h, h), "out": (h, h), "up": (4 * h, h), "down": (h, 4 * h)}
        self.weights = weights or [
            {key: torch.randn(size, **options) * h**-0.5 for key, size in sizes.items()}
            for _ in range(self.LAYERS)
        ]
        cache = (2, self.BATCH, self.HEADS, context, h // self.HEADS)
        self.caches = [torch.randn(cache, **options) for _ in range(self.LAYERS)]
        self.state = torch.randn((self.BATCH, h), **options)
        for _ in range(3):
            self.forward()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.forward()

    def _layer(self, x: Any, weights: dict[str, Any], cache: Any) -> Any:
        functional, width = self.torch.nn.functional, (x.shape[-1],)
        with instrument.stage("QKV"):
            normal = functional.layer_norm(x, width)
            q, k, v = (normal @ weights["qkv"].T).view(x.shape[0], 3, self.HEADS, -1).unbind(1)
            cache[0, :, :, 0], cache[1, :, :, 0] = k, v
        with instrument.stage("attention"):
            mixed = functional.scaled_dot_product_attention(q.unsqueeze(2), cache[0], cache[1])
        with instrument.stage("output"):
            x = x + mixed.reshape(x.shape) @ weights["out"].T
        with instrument.stage("FFN"):
            inner = functional.gelu(functional.layer_norm(x, width) @ weights["up"].T)
            return functional.layer_norm(x + inner @ weights["down"].T, width)

    def forward(self) -> None:
        """Launch a step's kernels."""
        x = self.state
        for number, (weights, cache) in enumerate(zip(self.weights, self.caches, strict=True)):
            with instrument.stage(f"layer:{number}"):
                x = self._layer(x, weights, cache)
        self.state.copy_(x)


class Model:
    """The decoder with short contexts, as a graph and eager, and with long ones."""

    SHORT_CONTEXT, LONG_CONTEXT = 16, 4096

    def __init__(self) -> None:
        import torch

        torch.set_grad_enabled(False)
        torch.manual_seed(7)
        self._synchronize = torch.cuda.synchronize
        self._short = Decoder(self.SHORT_CONTEXT)
        self._long = Decoder(self.LONG_CONTEXT, self._short.weights)

    def step(self, kind: int) -> None:
        """One step, waited for."""
        if kind == EAGER:
            self._short.forward()
        else:
            (self._long if kind == LONG else self._short).graph.replay()
        self._synchronize()


class StandIn:
    """The same on the tests' stand-in device."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.cuda.cuInit(0)
        self.cuda.standin_context(0)
        self._eager()  # the warm-up, from which the graph's stages are known
        self.graph = self.cuda.standin_graph(len(NAMES) * 6)

    def _eager(self) -> None:
        for stage, name in NAMES.items():
            with instrument.stage(stage):
                for _ in range(6):
                    self.cuda.standin_launch(7, name, ctypes.c_uint64(10_000))

    def step(self, kind: int) -> None:
        """One step, waited for."""
        if kind == EAGER:
            self._eager()
        else:
            length = 10_000 * (1 + (kind == LONG))
            self.cuda.standin_graph_launch(self.graph, 7, ctypes.c_uint64(length))
        self.cuda.cuCtxSynchronize()


class Requests:
    """So many at once; each is served by so many steps."""

    def __init__(self) -> None:
        self._open = [self._new() for _ in range(REQUESTS)]
        self.begun = REQUESTS

    def _new(self) -> Any:
        request = instrument.request(name="chat")
        request.begin()
        return request

    def serving(self, step: int) -> list[Any]:
        """The requests of a step; one ends and one begins each so many steps."""
        if step % (STEPS_A_REQUEST // REQUESTS) == 0:
            self._open.pop(0).end()
            self._open.append(self._new())
            self.begun += 1
        return self._open

    def end(self) -> None:
        """All of them."""
        for request in self._open:
            request.end()


class Log:
    """Steps, in memory that is there from the start, so that none grows."""

    def __init__(self) -> None:
        self.start = np.full(MOST_STEPS, -1, np.int64)
        self.duration = np.full(MOST_STEPS, -1, np.int32)
        self.kind = np.full(MOST_STEPS, 255, np.uint8)
        self.count = 0
        self.events: list[dict[str, Any]] = []

    def step(self, start: int, duration: int, kind: int) -> None:
        """One step."""
        at = self.count
        self.start[at], self.duration[at], self.kind[at] = start, duration, kind
        self.count += 1

    def write(self, folder: Path, **more: Any) -> None:
        """To the judge."""
        kept = slice(0, self.count)
        np.savez(folder / "steps.npz", start=self.start[kept], duration=self.duration[kept],
                 kind=self.kind[kept])  # fmt: skip
        (folder / "events.json").write_text(json.dumps({"events": self.events, **more}))


class Wishes:
    """What the judge wants to happen now, by files."""

    def __init__(self, folder: Path, log: Log) -> None:
        self._folder, self._log = folder, log
        self.slow_steps, self._queue_until = 0, 0.0

    def look(self) -> None:
        """Look for files; tell the queue's length."""
        if self._asked("slow"):
            self.slow_steps = SLOW_STEPS
        if self._asked("queue"):
            self._queue_until = time.monotonic() + QUEUE_S
            self._log.events.append({"what": "queue", "at_ns": time.time_ns()})
        grown = time.monotonic() < self._queue_until
        metrics.QUEUE_LENGTH.set(QUEUE_LENGTH if grown else QUEUE_USUAL)

    def _asked(self, what: str) -> bool:
        path = self._folder / what
        if not path.exists():
            return False
        path.unlink()
        return True


def serve(model: Any, seconds: float, log: Log, wishes: Wishes, requests: Requests) -> None:
    """Decode until then."""
    kinds = np.random.default_rng(11).choice(len(KINDS), 1 << 16, p=SHARES).tolist()
    end_at = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end_at and number < MOST_STEPS:
        kind = kinds[number % len(kinds)]
        serving = requests.serving(number)
        start = time.time_ns()  # a window opens in the step's begin
        with instrument.step(serving, number=number):
            if number % LOOK_EVERY == 0:
                wishes.look()
            model.step(kind)
            if wishes.slow_steps:
                time.sleep(SLOW_MS / 1e3)
        end = time.time_ns()
        if wishes.slow_steps:
            wishes.slow_steps -= 1
            log.events.append({"what": "slow step", "end_ns": end, "number": number})
        log.step(start, end - start, kind)
        number += 1
    requests.end()


def main() -> None:
    """Serve."""
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    log = Log()
    model = StandIn() if "--stand-in" in sys.argv else Model()
    for number in range(60):
        model.step((SHORT, LONG, EAGER)[number % 3])
    (folder / "ready").touch()
    requests = Requests()
    try:
        serve(model, seconds, log, Wishes(folder, log), requests)
    finally:  # where the GPU fails too
        log.write(folder, requests=requests.begun)


if __name__ == "__main__":
    main()
