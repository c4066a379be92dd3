"""Runs configurations on a GPU: cubins through CuPy, Triton's kernels through Triton and torch."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from spanlite.errors import InputError, ServiceError

from spanlite_analytics.lab.scan.build import BuildError, Built, Filled, Theory, theory_of
from spanlite_analytics.lab.scan.clocks import Clocks
from spanlite_analytics.lab.scan.spec import TYPES, Spec

#: A repetition lasts about so long, so that events (0.5 us) and launch gaps are lost in it.
REPETITION_NS = 2_000_000
MOST_LAUNCHES = 1_000
WARM_UPS = 2
_NO_GPU = "no GPU can be used ({why}); --theory scans without one"


class DeviceLostError(Exception):
    """A launch has broken the GPU's context: nothing more can run in this process."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A launch's time in each repetition, launches a repetition, and the GPU's state about it."""

    times_ns: tuple[float, ...]
    launches: int
    clocks: dict[str, Any]
    theory: Theory | None


class Runner(Protocol):
    """A GPU on which configurations are timed."""

    @property
    def gpu(self) -> str:
        """Its name."""
        ...

    def measure(self, built: Built, repeats: int) -> Measured:
        """Time it. Raises BuildError where it cannot run, DeviceLostError where nothing can."""
        ...


def runner_for(spec: Spec) -> Runner:
    """Raises ServiceError where there is no GPU, or what it needs is not installed."""
    return TritonRunner() if spec.kernel.is_triton else CupyRunner()


def repeated(clock: Callable[[int], float], repeats: int) -> tuple[tuple[float, ...], int]:
    """Times of one launch in ns, and launches a repetition.

    `clock` runs so many launches and says how long they took together, ns.
    """
    clock(WARM_UPS)
    once = max(clock(1), 1.0)
    launches = max(1, min(MOST_LAUNCHES, int(REPETITION_NS / once)))
    clock(launches)
    return tuple(clock(launches) / launches for _ in range(repeats)), launches


@dataclass
class CupyRunner:
    """Any cubin."""

    gpu: str = ""
    _cupy: Any = None
    _clocks: Clocks | None = None
    _buffers: dict[int, tuple[tuple[str, int], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            why = "CuPy is not installed: pip install cupy-cuda13x"
            raise ServiceError(_NO_GPU.format(why=why)) from error
        try:
            self.gpu = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise ServiceError(_NO_GPU.format(why=error)) from error
        self._cupy, self._clocks = cupy, Clocks()

    def measure(self, built: Built, repeats: int) -> Measured:
        """As the protocol says."""
        cupy = self._cupy
        assert self._clocks is not None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(built.cubin)
            kernel = cupy.RawModule(path=str(path)).get_function(built.spec.kernel.entry)
        if built.dynamic_shared_bytes > 48 * 1024:
            kernel.max_dynamic_shared_size_bytes = built.dynamic_shared_bytes
        arguments = tuple(self._argument(i, f) for i, f in enumerate(built.arguments))
        start, end = cupy.cuda.Event(), cupy.cuda.Event()

        def clock(launches: int) -> float:
            start.record()
            for _ in range(launches):
                kernel(built.grid, built.block, arguments, shared_mem=built.dynamic_shared_bytes)
            end.record()
            end.synchronize()
            return float(cupy.cuda.get_elapsed_time(start, end)) * 1e6

        before = self._clocks.read()
        try:
            times, launches = repeated(clock, repeats)
        except (cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
            self._still_there(error)
            raise BuildError(f"cannot be launched: {error}") from None
        return Measured(times, launches, self._clocks.since(before), built.theory)

    def _still_there(self, error: Exception) -> None:
        try:
            self._cupy.cuda.runtime.deviceSynchronize()
        except Exception:
            raise DeviceLostError(str(error)) from error

    def _argument(self, place: int, filled: Filled) -> Any:
        import numpy as np

        kind = filled.argument.type
        if not filled.argument.is_buffer:
            return np.dtype({"i32": "i4", "i64": "i8", "f32": "f4", "f64": "f8"}[kind]).type(
                filled.value
            )
        wanted = (kind, int(filled.value))
        if self._buffers.get(place, (None,))[0] != wanted:
            # The old one goes first, so that both need not fit.
            self._buffers.pop(place, None)
            try:
                self._buffers[place] = (wanted, self._buffer(place, *wanted))
            except self._cupy.cuda.memory.OutOfMemoryError:
                size = wanted[1] * TYPES[kind]
                raise BuildError(f"argument {place + 1}: no room for {size:,} bytes") from None
        return self._buffers[place][1]

    def _buffer(self, place: int, kind: str, count: int) -> Any:
        """Random numbers of a normal distribution; whole ones are 0, which no index is beyond."""
        cupy = self._cupy
        if kind[0] in "iu":
            return cupy.zeros(count, {"i32": "i4", "i64": "i8", "u8": "u1"}[kind])
        made = cupy.random.RandomState(place + 1).standard_normal(count, dtype=cupy.float32)
        if kind == "bf16":
            return (made.view(cupy.uint32) >> 16).astype(cupy.uint16)
        return made.astype({"f16": "f2", "f32": "f4", "f64": "f8"}[kind])


@dataclass
class TritonRunner:
    """A function that `@triton.jit` made."""

    gpu: str = ""
    _torch: Any = None
    _clocks: Clocks | None = None
    _functions: dict[str, Any] = field(default_factory=dict)
    _buffers: dict[int, tuple[tuple[str, int], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            import torch
            import triton  # noqa: F401  # only whether it is there
        except ImportError as error:
            why = "a Triton kernel needs torch and triton: pip install torch"
            raise ServiceError(_NO_GPU.format(why=why)) from error
        if not torch.cuda.is_available():
            raise ServiceError(_NO_GPU.format(why="torch sees none"))
        self.gpu, self._torch, self._clocks = torch.cuda.get_device_name(0), torch, Clocks()

    def measure(self, built: Built, repeats: int) -> Measured:
        """As the protocol says; Triton compiles on the first launch."""
        torch = self._torch
        assert self._clocks is not None
        function = self._function(built.spec)
        options = {k: int(v) for k, v in built.config.items() if k in ("num_warps", "num_stages")}
        arguments = [self._argument(i, f) for i, f in enumerate(built.arguments)]

        def launch() -> Any:
            return function[built.grid](*arguments, **built.defines, **options)

        try:
            compiled = launch()
            torch.cuda.synchronize()
        except Exception as error:
            # Triton's errors have no common base: what it refuses is this configuration's fault.
            self._still_there(error)
            raise BuildError(f"{type(error).__name__}: {str(error)[:300]}") from None
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def clock(launches: int) -> float:
            start.record()
            for _ in range(launches):
                launch()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) * 1e6

        before = self._clocks.read()
        times, launches = repeated(clock, repeats)
        return Measured(times, launches, self._clocks.since(before), _of_triton(built, compiled))

    def _still_there(self, error: Exception) -> None:
        try:
            self._torch.cuda.synchronize()
        except Exception:
            raise DeviceLostError(str(error)) from error

    def _function(self, spec: Spec) -> Any:
        path = str(spec.kernel.path.resolve())
        if path not in self._functions:
            self._functions[path] = triton_function(spec.kernel.path, spec.kernel.entry)
        return self._functions[path]

    def _argument(self, place: int, filled: Filled) -> Any:
        torch, kind = self._torch, filled.argument.type
        if not filled.argument.is_buffer:
            return filled.value
        wanted = (kind, int(filled.value))
        if self._buffers.get(place, (None,))[0] != wanted:
            self._buffers.pop(place, None)
            types = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
            types |= {"i32": "int32", "i64": "int64", "u8": "uint8"}
            made = torch.empty(wanted[1], dtype=getattr(torch, types[kind]), device="cuda")
            self._buffers[place] = (wanted, made.zero_() if kind[0] in "iu" else made.normal_())
        return self._buffers[place][1]


def triton_function(path: Path, name: str) -> Any:
    """A function of a file. Raises InputError where the file cannot be run or has none."""
    found = importlib.util.spec_from_file_location(f"spanlite_scan_{path.stem}", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path}: cannot be imported: {error}") from error
    if not hasattr(module, name):
        raise InputError(f"{path}: has no function '{name}'")
    return getattr(module, name)


def _of_triton(built: Built, compiled: Any) -> Theory | None:
    try:
        registers, spills = int(compiled.n_regs), int(compiled.n_spills)
        shared, warps = int(compiled.metadata.shared), int(compiled.metadata.num_warps)
    except (AttributeError, TypeError):
        return None
    block = (warps * 32, 1, 1)
    named = {name: getattr(built, name) for name in Built.__slots__} | {"block": block}
    return theory_of(built.spec, Built(**named), registers, shared, spills)


__all__: Sequence[str] = (
    "CupyRunner", "DeviceLostError", "Measured", "Runner", "TritonRunner", "repeated", "runner_for",
)  # fmt: skip
