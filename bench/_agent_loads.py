"""The programs that the agent's bench runs in its processes: decoders, a CuPy loop, a stand-in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol


class Ranges(Protocol):
    """Where a load's NVTX ranges come from."""

    def step(self, number: int) -> AbstractContextManager[Any]:
        """The range of a step."""

    def stage(self, name: str) -> AbstractContextManager[Any]:
        """The range of a layer or stage."""


class NvtxRanges:
    """Of a pair of functions. torch's and CuPy's keep Python's lock."""

    def __init__(self, push: Callable[[str], Any], pop: Callable[[], Any]) -> None:
        self.push, self.pop = push, pop

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Push and pop."""
        self.push(name)
        yield
        self.pop()

    def step(self, number: int) -> AbstractContextManager[Any]:
        """The same, with a step's name."""
        return self.stage(f"step:{number % 1000}")


class HelperRanges:
    """Of `spanlite.instrument`, whose steps let go of Python's lock at their edges, so that the
    agent can hold the threads of one process."""

    def __init__(self) -> None:
        from spanlite import instrument

        self._step, self.stage = instrument.step, instrument.stage

    def step(self, number: int) -> AbstractContextManager[Any]:
        """A step that serves nobody."""
        return self._step(number=number)


@dataclass(frozen=True)
class Shape:
    """A decoder: sizes, and how its steps are launched."""

    hidden: int
    layers: int
    batch: int
    graph: bool
    streams: int = 1
    context: int = 16
    compiled: bool = False
    #: How often the layers are gone through in a step.
    times: int = 1
    #: Whether a step ends with a copy; else with a kernel that does the same.
    copies: bool = True


#: `graphs_600us` is the worst case (some 300,000 kernels/s), `graphs` a realistic step of
#: 5 to 10 ms (some 25,000 kernels/s), `graphs_thin` and `graphs_dense` have the one's length and
#: the other's kernels a second; `eager` and `compiled` (torch.compile, so Triton's kernels)
#: are bound by their launches.
SHAPES = {
    "graphs_600us": Shape(1024, 12, 8, graph=True),
    "graphs": Shape(4096, 16, 512, graph=True),
    "graphs_thin": Shape(4096, 1, 512, graph=True),
    "graphs_dense": Shape(1024, 12, 8, graph=True, times=16),
    "eager": Shape(1024, 12, 8, graph=False),
    "compiled": Shape(1024, 12, 8, graph=False, compiled=True),
    "graphs_s4": Shape(1024, 6, 4, graph=True, streams=4),
    "graphs_s8": Shape(1024, 3, 4, graph=True, streams=8),
}


def layer(x: Any, weights: dict[str, Any], cache: Any, stage: Any) -> Any:
    """One layer of a decoder."""
    import torch.nn.functional as functional  # type: ignore[import-not-found,unused-ignore]

    width = (x.shape[-1],)
    with stage("QKV"):
        normal = functional.layer_norm(x, width)
        q, k, v = (normal @ weights["qkv"].T).view(x.shape[0], 3, -1, 128).unbind(1)
        cache[0, :, :, 0], cache[1, :, :, 0] = k, v
    with stage("attention"):
        mixed = functional.scaled_dot_product_attention(q.unsqueeze(2), cache[0], cache[1])
    with stage("output"):
        x = x + mixed.reshape(x.shape) @ weights["out"].T
    with stage("FFN"):
        inner = functional.gelu(functional.layer_norm(x, width) @ weights["up"].T)
        return functional.layer_norm(x + inner @ weights["down"].T, width)


def bare_layer(x: Any, weights: dict[str, Any], cache: Any) -> Any:
    """The same without ranges, as a compiler wants it."""
    import torch.nn.functional as functional

    width = (x.shape[-1],)
    normal = functional.layer_norm(x, width)
    q, k, v = (normal @ weights["qkv"].T).view(x.shape[0], 3, -1, 128).unbind(1)
    cache[0, :, :, 0] = k
    cache[1, :, :, 0] = v
    mixed = functional.scaled_dot_product_attention(q.unsqueeze(2), cache[0], cache[1])
    x = x + mixed.reshape(x.shape) @ weights["out"].T
    inner = functional.gelu(functional.layer_norm(x, width) @ weights["up"].T)
    return functional.layer_norm(x + inner @ weights["down"].T, width)


class TorchLoad:
    """Decoders on the GPU; the state feeds back, so that one wrong bit shows in the end."""

    def __init__(self, name: str, ranges: Ranges | None = None) -> None:
        import torch

        torch.set_grad_enabled(False)  # of this thread
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
        self.ranges = ranges or NvtxRanges(torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)
        self.compiled = torch.compile(bare_layer, dynamic=False) if shape.compiled else None
        self.graph = self._capture() if shape.graph else None
        torch.cuda.synchronize()

    @property
    def stages_a_step(self) -> int:
        """Ranges in a step, beside its own."""
        layers = self.shape.layers * self.shape.streams * self.shape.times
        return 0 if self.graph is not None else layers * (1 if self.compiled else 5)

    def _layer(self, x: Any, number: int, cache: Any) -> Any:
        weights = self.weights[number]
        with self.ranges.stage(f"layer:{number}"):
            if self.compiled is not None:
                return self.compiled(x, weights, cache)
            return layer(x, weights, cache, self.ranges.stage)

    def _forward(self) -> None:
        torch = self.torch
        current = torch.cuda.current_stream()
        for i, stream in enumerate(self.streams):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                x = self.states[i]
                for number in list(range(self.shape.layers)) * self.shape.times:
                    x = self._layer(x, number, self.caches[i][number])
                if self.shape.copies:
                    self.states[i].copy_(x)
                else:
                    torch.mul(x, 1, out=self.states[i])
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
        """One decode step, waited for."""
        with self.ranges.step(number):
            if self.graph is None:
                self._forward()
            else:
                self.graph.replay()
            self.torch.cuda.synchronize()

    def checksum(self) -> str:
        """Every bit of the state."""
        import hashlib

        bits = [s.view(self.torch.int16).cpu().numpy().tobytes() for s in self.states]
        return hashlib.sha256(b"".join(bits)).hexdigest()[:16]


class CupyLoad:
    """A CuPy program: matrix products and element-wise kernels, its ranges CuPy's own."""

    LAYERS, WIDTH, ROWS = 16, 1024, 256
    stages_a_step = LAYERS

    def __init__(self, name: str, ranges: Ranges | None = None) -> None:
        import cupy  # type: ignore[import-not-found,unused-ignore]

        self.cupy = cupy
        draw = cupy.random.default_rng(7)
        shape = (self.WIDTH, self.WIDTH)
        scale = self.WIDTH**-0.5
        self.weights = [
            (draw.standard_normal(shape, dtype=cupy.float32) * scale).astype(cupy.float32)
            for _ in range(self.LAYERS)
        ]
        self.state = draw.standard_normal((self.ROWS, self.WIDTH), dtype=cupy.float32)
        self.ranges = ranges or NvtxRanges(cupy.cuda.nvtx.RangePush, cupy.cuda.nvtx.RangePop)

    def step(self, number: int) -> None:
        """One pass through all layers, waited for."""
        cupy = self.cupy
        with self.ranges.step(number):
            x = self.state
            for at, weight in enumerate(self.weights):
                with self.ranges.stage(f"layer:{at}"):
                    x = cupy.tanh(x @ weight) + 0.5 * x
                    x = x / (1 + cupy.abs(x))
            self.state = x
            cupy.cuda.Device().synchronize()

    def checksum(self) -> str:
        """Every bit of the state."""
        import hashlib

        return hashlib.sha256(self.state.get().tobytes()).hexdigest()[:16]


class StandInLoad:
    """The same on the tests' stand-in device: for trying the bench without a GPU."""

    KERNELS = 20
    stages_a_step = 0

    def __init__(self, name: str, ranges: Ranges | None = None) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.shim = ctypes.CDLL("libnvtx_shim.so")
        self.cuda.cuInit(0)
        self.cuda.standin_context(0)
        graph = name in SHAPES and SHAPES[name].graph
        self.graph = self.cuda.standin_graph(self.KERNELS) if graph else 0
        self.ranges = NvtxRanges(lambda text: self.shim.shim_push(text.encode()),
                                 lambda: self.shim.shim_pop())  # fmt: skip

    def step(self, number: int) -> None:
        """One step of small kernels."""
        self.cuda.standin_context(0)  # of this thread
        with self.ranges.step(number):
            if self.graph:
                self.cuda.standin_graph_launch(self.graph, 7, ctypes.c_uint64(10_000))
            else:
                for _ in range(self.KERNELS):
                    self.cuda.standin_launch(7, b"kernel", ctypes.c_uint64(10_000))
            self.cuda.cuCtxSynchronize()

    def checksum(self) -> str:
        """Nothing is computed."""
        return "0"


def make(name: str, stand_in: bool, helper: bool) -> Any:
    """The load of that name; `helper`: its ranges are those of `spanlite.instrument`."""
    ranges = HelperRanges() if helper and not stand_in else None
    kind = StandInLoad if stand_in else CupyLoad if name == "cupy" else TorchLoad
    return kind(name, ranges)
