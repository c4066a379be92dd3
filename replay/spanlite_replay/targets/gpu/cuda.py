"""`driver.Driver` on the CUDA driver API, through ctypes: the same for CUDA 12 and 13."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spanlite.errors import ServiceError

from spanlite_replay.targets.gpu.compiling import compiled
from spanlite_replay.targets.gpu.cupti import the_cupti
from spanlite_replay.targets.gpu.driver import (
    NO_DIM,
    Captured,
    Device,
    Launch,
    Records,
    StandIn,
)
from spanlite_replay.targets.gpu.source import LEAST_REGISTERS
from spanlite_replay.targets.gpu.structs import Copy, KernelNode, LaunchAttribute, Memset, Work

_P, _U32, _U64, _SIZE = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t
#: Numbers of the driver API.
_NUM_REGS, _MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 4, 8, 14
_SM_COUNT, _MAJOR, _MINOR = 16, 75, 76
_HOST, _DEVICE = 1, 2
_CLUSTER = 4
_PORTABLE_CLUSTER = 8
#: What the memory movers read and write; several times an L2.
SCRATCH_BYTES = 512 << 20
#: Nothing waits for the host longer than this, whatever `cuGraphLaunch` is waiting for.
GO_ANYWAY_S = 2.0
#: Queues between host and GPU: the most there can be.
MOST_QUEUES = "32"
#: Shared memory that needs an opt-in.
_PLAIN_SHARED_BYTES = 48 << 10


@dataclass
class _Memory:
    """Addresses; 0: not there yet."""

    origin: int = 0
    stamps: int = 0
    stamp_count: int = 0
    copy_bytes: int = 0
    copy_source: int = 0
    copy_target: int = 0
    host_source: int = 0
    host_target: int = 0
    scratch: int = 0
    go: int = 0
    device: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)


class CudaDriver:
    """Device 0 as CUDA_VISIBLE_DEVICES numbers them, in its primary context."""

    def __init__(self) -> None:
        self._library = load_driver()
        self._retain()
        self.device = self._describe()
        self._modules: dict[int, ctypes.c_void_p] = {}
        self._functions: dict[tuple[str, int], int] = {}
        self._shared: dict[int, int] = {}
        compiled(LEAST_REGISTERS, self.device.compute_capability)  # or say what is missing
        self._cupti = the_cupti()
        self._memory = _Memory()
        self._graphs: list[int] = []
        self._ready: list[int] = []
        self._went = threading.Event()
        stream = _P()
        self._call("cuStreamCreate", ctypes.byref(stream), _U32(1))
        self._stream = stream
        # Before graphs are made, so that each of their nodes is measured.
        self._cupti.start()

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            why = (text.value or b"unknown").decode()
            raise ServiceError(f"the GPU refused: {name}: {why} ({code})")

    def _retain(self) -> None:
        self._call("cuInit", _U32(0))
        device, context = ctypes.c_int(), _P()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._number = device

    def _describe(self) -> Device:
        def attribute(number: int) -> int:
            value = ctypes.c_int()
            self._call("cuDeviceGetAttribute", ctypes.byref(value), number, self._number)
            return value.value

        name = ctypes.create_string_buffer(100)
        self._call("cuDeviceGetName", name, 100, self._number)
        version, memory = ctypes.c_int(), _SIZE()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        self._call("cuDeviceTotalMem_v2", ctypes.byref(memory), self._number)
        text = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        capability = attribute(_MAJOR), attribute(_MINOR)
        return Device(name.value.decode(), capability, attribute(_SM_COUNT), text, memory.value)

    # ---- kernels ---------------------------------------------------------------------

    def registers_of(self, launch: Launch) -> int:
        """What the compiler gave the variant."""
        return self._attribute(self._function(launch), _NUM_REGS)

    def _attribute(self, function: int, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuFuncGetAttribute", ctypes.byref(value), number, _P(function))
        return value.value

    def _function(self, launch: Launch) -> int:
        registers = launch.registers or LEAST_REGISTERS
        key = launch.name, registers
        if key not in self._functions:
            module = self._modules.get(registers)
            if module is None:
                module = _P()
                data = compiled(registers, self.device.compute_capability)
                self._call("cuModuleLoadData", ctypes.byref(module), data)
                self._modules[registers] = module
            found = _P()
            name = f"spanlite_{launch.name}".encode()
            self._call("cuModuleGetFunction", ctypes.byref(found), module, name)
            self._functions[key] = found.value or 0
        function = self._functions[key]
        self._allow(function, launch)
        return function

    def _allow(self, function: int, launch: Launch) -> None:
        """Opt in to what this launch needs."""
        if launch.shared_bytes > max(self._shared.get(function, 0), _PLAIN_SHARED_BYTES):
            self._call("cuFuncSetAttribute", _P(function), _MAX_DYNAMIC_SHARED, launch.shared_bytes)
            self._shared[function] = launch.shared_bytes
        x, y, z = launch.cluster
        if x * y * z > _PORTABLE_CLUSTER:
            self._call("cuFuncSetAttribute", _P(function), _NON_PORTABLE_CLUSTER, 1)

    # ---- memory ----------------------------------------------------------------------

    def reserve(self, stamps: int, copy_bytes: int) -> None:
        """Allocate; what was there before is given back."""
        self._free()
        memory = self._memory
        memory.origin, memory.go = self._device_room(8), self._host_room(8)
        memory.stamp_count, memory.stamps = stamps, self._device_room(8 * max(stamps, 1))
        memory.scratch = self._device_room(SCRATCH_BYTES)
        memory.copy_bytes = max(copy_bytes, 1)
        memory.copy_source = self._device_room(memory.copy_bytes)
        memory.copy_target = self._device_room(memory.copy_bytes)
        memory.host_source = self._host_room(memory.copy_bytes)
        memory.host_target = self._host_room(memory.copy_bytes)

    def _device_room(self, size_bytes: int) -> int:
        address = _U64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), _SIZE(size_bytes))
        self._memory.device.append(address.value)
        return address.value

    def _host_room(self, size_bytes: int) -> int:
        address = _P()
        self._call("cuMemHostAlloc", ctypes.byref(address), _SIZE(size_bytes), _U32(3))
        self._memory.host.append(address.value or 0)
        return address.value or 0

    def _free(self) -> None:
        for device in self._memory.device:
            self._call("cuMemFree_v2", _U64(device))
        for host in self._memory.host:
            self._call("cuMemFreeHost", _P(host))
        self._memory = _Memory()

    # ---- graphs ----------------------------------------------------------------------

    def new_graph(self) -> int:
        """An empty graph."""
        graph = _P()
        self._call("cuGraphCreate", ctypes.byref(graph), _U32(0))
        self._graphs.append(graph.value or 0)
        return graph.value or 0

    def _add(self, name: str, graph: int, after: Sequence[int], *parameters: Any) -> int:
        node = _P()
        before = (_P * max(len(after), 1))(*after)
        self._call(name, ctypes.byref(node), _P(graph), before, _SIZE(len(after)), *parameters)
        return node.value or 0

    def _add_kernel(self, graph: int, after: Sequence[int], launch: Launch, *arguments: Any) -> int:
        pointers = (_P * len(arguments))(*(ctypes.cast(ctypes.byref(one), _P) for one in arguments))
        node = KernelNode(
            self._function(launch),
            (_U32 * 3)(*launch.grid),
            (_U32 * 3)(*launch.block),
            launch.shared_bytes,
            pointers,
        )
        added = self._add("cuGraphAddKernelNode_v2", graph, after, ctypes.byref(node))
        if launch.cluster != NO_DIM:
            value = LaunchAttribute(cluster=(_U32 * 3)(*launch.cluster))
            self._call("cuGraphKernelNodeSetAttribute", _P(added), _CLUSTER, ctypes.byref(value))
        return added

    def add_start(self, graph: int, lead_ns: int) -> int:
        """See `Driver`."""
        return self._add_kernel(
            graph,
            (),
            Launch("start", block=(1, 1, 1)),
            _U64(self._memory.go),
            _U64(self._memory.origin),
            _U64(lead_ns),
        )

    def add_gate(self, graph: int, after: Sequence[int], offset_ns: int) -> int:
        """See `Driver`."""
        launch = Launch("gate", block=(1, 1, 1))
        return self._add_kernel(
            graph, after, launch, _U64(self._memory.origin), _U64(max(offset_ns, 0))
        )

    def add_stand_in(self, graph: int, after: Sequence[int], launch: Launch, work: StandIn) -> int:
        """See `Driver`."""
        memory = self._memory
        told = Work(
            memory.stamps + 8 * work.stamp if work.stamp >= 0 else 0,
            work.length,
            work.hold,
            memory.origin,
            max(work.due_ns, 0),
            work.steer_ns,
            round(1024 * work.cycles_per_ns),
            memory.scratch,
            work.moved_bytes // 16,
            SCRATCH_BYTES // 16,
            work.blocks_per_wave,
            work.waves,
            0,
        )
        return self._add_kernel(graph, after, launch, told)

    def add_copy(self, graph: int, after: Sequence[int], way: str, size_bytes: int) -> int:
        """See `Driver`."""
        memory = self._memory
        copy = Copy(width=size_bytes, rows=1, depth=1)
        for end, letter, host, device in (
            (copy.source, way[0], memory.host_source, memory.copy_source),
            (copy.target, way[-1], memory.host_target, memory.copy_target),
        ):
            end.kind = _HOST if letter == "h" else _DEVICE
            end.host, end.device = (host, 0) if letter == "h" else (0, device)
            end.pitch, end.height = size_bytes, 1
        context = _P()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        return self._add("cuGraphAddMemcpyNode", graph, after, ctypes.byref(copy), context)

    def add_memset(self, graph: int, after: Sequence[int], size_bytes: int) -> int:
        """See `Driver`."""
        memset = Memset(self._memory.copy_target, 0, 0, 1, size_bytes, 1)
        context = _P()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        return self._add("cuGraphAddMemsetNode", graph, after, ctypes.byref(memset), context)

    def add_captured(self, graph: int, after: Sequence[int], captured: Captured) -> int:
        """See `Driver`. The node's own graph must still be there."""
        source = _P(captured.node)
        if not captured.is_kernel:
            memset, context = Memset(), _P()
            self._call("cuGraphMemsetNodeGetParams", source, ctypes.byref(memset))
            self._call("cuCtxGetCurrent", ctypes.byref(context))
            return self._add("cuGraphAddMemsetNode", graph, after, ctypes.byref(memset), context)
        node = KernelNode()
        self._call("cuGraphKernelNodeGetParams_v2", source, ctypes.byref(node))
        added = self._add("cuGraphAddKernelNode_v2", graph, after, ctypes.byref(node))
        self._call("cuGraphKernelNodeCopyAttributes", _P(added), source)
        return added

    def instantiate(self, graph: int) -> int:
        """See `Driver`."""
        ready = _P()
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), _P(graph), _U64(0))
        self._call("cuGraphUpload", ready, self._stream)
        self._ready.append(ready.value or 0)
        return ready.value or 0

    # ---- running ---------------------------------------------------------------------

    def rewind(self) -> None:
        """See `Driver`."""
        memory = self._memory
        self._call("cuStreamSynchronize", self._stream)
        ctypes.memset(memory.go, 0, 8)
        self._went = threading.Event()
        self._call("cuMemsetD8_v2", _U64(memory.origin), ctypes.c_ubyte(0), _SIZE(8))
        size = _SIZE(8 * max(memory.stamp_count, 1))
        self._call("cuMemsetD8_v2", _U64(memory.stamps), ctypes.c_ubyte(0xFF), size)
        self._call("cuCtxSynchronize")
        self._cupti.take()

    def launch(self, ready: int) -> None:
        """See `Driver`. A launch that finds no room waits for the start node: hence the timer."""
        timer = threading.Timer(GO_ANYWAY_S, self.go)
        timer.start()
        try:
            self._call("cuGraphLaunch", _P(ready), self._stream)
        finally:
            timer.cancel()

    def go(self) -> None:
        """See `Driver`."""
        if not self._went.is_set():
            self._went.set()
            ctypes.memset(self._memory.go, 1, 1)

    def finish(self) -> Records:
        """See `Driver`."""
        self.go()
        self._call("cuStreamSynchronize", self._stream)
        self._call("cuCtxSynchronize")
        return self._cupti.take()

    def close(self) -> None:
        """See `Driver`."""
        self.go()
        self._call("cuCtxSynchronize")
        self._cupti.take()
        self._cupti.stop()
        for ready in self._ready:
            self._call("cuGraphExecDestroy", _P(ready))
        for graph in self._graphs:
            self._call("cuGraphDestroy", _P(graph))
        self._graphs, self._ready = [], []
        self._free()


def load_driver() -> ctypes.CDLL:
    """libcuda, ready. Raises ServiceError where there is none, or no GPU."""
    # Branches that share one of the GPU's queues wait for each other's gates.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", MOST_QUEUES)
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise ServiceError(
            "--target gpu needs an NVIDIA GPU and finds no driver (libcuda.so.1): run it on a "
            "machine with one, or use --target sim"
        ) from None
    count = ctypes.c_int()
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise ServiceError(
            "--target gpu finds a driver but no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES, "
            "or use --target sim"
        )
    return library
