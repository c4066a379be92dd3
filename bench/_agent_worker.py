"""One process of the agent's bench: builds its workloads, then runs steps as it is told.

Reads one JSON object a line (`{"run": NAME, "steps": N, "profile": false}`), answers with one:
step times in ns and a checksum of the model's state. The process is an ordinary server: only its
environment says whether an agent is loaded.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A decoder: sizes, and how its steps are launched."""

    hidden: int
    layers: int
    batch: int
    graph: bool
    streams: int = 1
    context: int = 16


#: `graphs_600us` is the worst case (some 250,000 kernels/s), `graphs` a realistic step of
#: 5 to 10 ms, `eager` bound by its launches.
SHAPES = {
    "graphs_600us": Shape(1024, 12, 8, graph=True),
    "graphs": Shape(4096, 16, 512, graph=True),
    "eager": Shape(1024, 12, 8, graph=False),
    "graphs_s4": Shape(1024, 6, 4, graph=True, streams=4),
    "graphs_s8": Shape(1024, 3, 4, graph=True, streams=8),
}


class TorchLoad:
    """Decoders on the GPU; the state feeds back, so that one wrong bit shows in the end."""

    def __init__(self, name: str) -> None:
        import torch

        self.torch, self.shape = torch, SHAPES[name]
        torch.manual_seed(7)
        shape, options = self.shape, {"device": "cuda", "dtype": torch.bfloat16}
        h = shape.hidden
        self.streams = [torch.cuda.Stream() for _ in range(shape.streams)]
        scale = h**-0.5
        sizes = {"qkv": (3 * h, h), "out": (h, h), "up": (4 * h, h), "down": (h, 4 * h)}
        self.weights = [
            {key: torch.randn(size, **options) * scale for key, size in sizes.items()}
            for _ in range(shape.layers)
        ]
        heads = h // 128
        cache = (2, shape.batch, heads, shape.context, 128)
        self.caches = [
            [torch.randn(cache, **options) for _ in range(shape.layers)] for _ in self.streams
        ]
        self.states = [torch.randn((shape.batch, h), **options) for _ in self.streams]
        self.push, self.pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
        self.graph = self._capture() if shape.graph else None
        torch.cuda.synchronize()

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self.push(name)
        yield
        self.pop()

    def _layer(self, x: Any, weights: dict[str, Any], cache: Any) -> Any:
        functional = self.torch.nn.functional
        width = (x.shape[-1],)
        with self._stage("QKV"):
            normal = functional.layer_norm(x, width)
            q, k, v = (normal @ weights["qkv"].T).view(x.shape[0], 3, -1, 128).unbind(1)
            cache[0, :, :, 0], cache[1, :, :, 0] = k, v
        with self._stage("attention"):
            mixed = functional.scaled_dot_product_attention(q.unsqueeze(2), cache[0], cache[1])
        with self._stage("output"):
            x = x + mixed.reshape(x.shape) @ weights["out"].T
        with self._stage("FFN"):
            inner = functional.gelu(functional.layer_norm(x, width) @ weights["up"].T)
            return functional.layer_norm(x + inner @ weights["down"].T, width)

    def _forward(self) -> None:
        torch = self.torch
        current = torch.cuda.current_stream()
        for i, stream in enumerate(self.streams):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                x = self.states[i]
                for number, weights in enumerate(self.weights):
                    with self._stage(f"layer:{number}"):
                        x = self._layer(x, weights, self.caches[i][number])
                self.states[i].copy_(x)
            current.wait_stream(stream)

    def _capture(self) -> Any:
        torch = self.torch
        for _ in range(3):
            self._forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._forward()
        return graph

    def step(self, number: int) -> None:
        """One decode step, waited for; under no_grad."""
        with self.around(number):
            if self.graph is None:
                self._forward()
            else:
                self.graph.replay()
            self.torch.cuda.synchronize()

    @contextmanager
    def around(self, number: int) -> Iterator[None]:
        """The step's range, of torch's NVTX: it keeps Python's lock."""
        self.push(f"step:{number % 1000}")
        yield
        self.pop()

    def checksum(self) -> str:
        """Every bit of the state."""
        import hashlib

        bits = [s.view(self.torch.int16).cpu().numpy().tobytes() for s in self.states]
        return hashlib.sha256(b"".join(bits)).hexdigest()[:16]


class HelperLoad(TorchLoad):
    """Its steps are those of `spanlite.instrument`, which let go of Python's lock at their edges,
    so that the agent can hold the threads of one process."""

    @contextmanager
    def around(self, number: int) -> Iterator[None]:
        from spanlite import instrument

        with instrument.step(number=number):
            yield


class StandInLoad:
    """The same on the tests' stand-in device: for trying the bench without a GPU."""

    KERNELS = 20

    def __init__(self, name: str) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.shim = ctypes.CDLL("libnvtx_shim.so")
        self.cuda.cuInit(0)
        self.cuda.standin_context(0)
        self.graph = self.cuda.standin_graph(self.KERNELS) if SHAPES[name].graph else 0

    def step(self, number: int) -> None:
        """One step of small kernels."""
        self.cuda.standin_context(0)  # of this thread
        self.shim.shim_push(f"step:{number % 1000}".encode())
        if self.graph:
            self.cuda.standin_graph_launch(self.graph, 7, ctypes.c_uint64(10_000))
        else:
            for _ in range(self.KERNELS):
                self.cuda.standin_launch(7, b"kernel", ctypes.c_uint64(10_000))
        self.cuda.cuCtxSynchronize()
        self.shim.shim_pop()

    def checksum(self) -> str:
        """Nothing is computed."""
        return "0"


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


def profiled(load: Any, steps: int, first: int) -> list[int]:
    """The same under torch.profiler (CUDA activities only: its cheapest setting)."""
    from torch.profiler import ProfilerActivity, profile

    profiler = profile(activities=[ProfilerActivity.CUDA])
    profiler.start()
    times = timed(load, steps, first)
    profiler.stop()
    return times


class Threads:
    """A thread for each decoder, for as long as the process lives, as a server has them."""

    def __init__(self) -> None:
        self._pools: list[ThreadPoolExecutor] = []

    def run(self, loads: list[Any], steps: int, first: int) -> list[int]:
        """All at once; the times of all."""
        while len(self._pools) < len(loads):
            self._pools.append(ThreadPoolExecutor(1))
        pairs = zip(self._pools, loads, strict=False)
        futures = [pool.submit(timed, load, steps, first) for pool, load in pairs]
        return [time for future in futures for time in future.result()]


def main() -> None:
    """Answer requests until stdin closes."""
    stand_in = "--stand-in" in sys.argv
    torch_load = HelperLoad if "--helper" in sys.argv else TorchLoad
    make: Callable[[str], Any] = StandInLoad if stand_in else torch_load
    loads: dict[str, Any] = {}
    threads = Threads()
    if not stand_in:
        import torch

        torch.set_grad_enabled(False)
    taken = 0
    for line in sys.stdin:
        request = json.loads(line)
        names = request["run"].split("+")
        for position, name in enumerate(names):
            if f"{name}/{position}" not in loads:
                loads[f"{name}/{position}"] = make(name)
        mine = [loads[f"{name}/{position}"] for position, name in enumerate(names)]
        run = profiled if request.get("profile") else timed
        steps = request["steps"]
        one = len(mine) == 1
        times = run(mine[0], steps, taken) if one else threads.run(mine, steps, taken)
        taken += steps
        print(json.dumps({"ns": times, "sum": [load.checksum() for load in mine]}), flush=True)


if __name__ == "__main__":
    main()
