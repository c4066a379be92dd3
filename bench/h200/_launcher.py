"""Launches kernels whose last argument is a record of their warps, and times them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.h200._device import Driver

#: CUfunction_attribute.
STATIC_SHARED, LOCAL, REGISTERS, MAX_DYNAMIC, CARVEOUT = 1, 3, 4, 8, 9
#: CUdevice_attribute.
SMS, CLOCK_KHZ, L2_BYTES = 16, 13, 38
#: A warp's record: the clock it began at, and in the upper bits of the other word its SM.
RECORD_BYTES, CLOCK_BITS = 16, 48
MOST_WARPS = 1 << 17


@dataclass(frozen=True)
class Record:
    """What the warps of one launch wrote, over the SMs that had any."""

    #: Mean over the SMs of the clocks from the first warp's start to the last one's end.
    span_cycles: float
    #: Longest of them.
    longest_cycles: int
    #: Clocks of a warp, on average.
    warp_cycles: float
    #: Warps on an SM on average while it had any, over 64.
    occupancy: float
    warps: int
    sms: int
    #: Fewest and most warps that an SM had in all.
    fewest: int
    most: int


def record_of(words: np.ndarray) -> Record:
    """From (warps, 2) 64-bit words as the kernels write them."""
    low = np.uint64((1 << CLOCK_BITS) - 1)
    sm = (words[:, 1] >> np.uint64(CLOCK_BITS)).astype(np.int64)
    order = np.argsort(sm, kind="stable")
    start, end = words[order, 0].astype(np.int64), (words[order, 1] & low).astype(np.int64)
    counts = np.bincount(sm)
    counts = counts[counts > 0]
    at = np.concatenate([[0], np.cumsum(counts)[:-1]])
    span = (np.maximum.reduceat(end, at) - np.minimum.reduceat(start, at)).astype(np.float64)
    inside = float((end - start).sum())
    return Record(
        float(span.mean()),
        int(span.max()),
        inside / len(sm),
        inside / float(span.sum()) / 64,
        len(sm),
        len(counts),
        int(counts.min()),
        int(counts.max()),
    )


class Launcher(Driver):
    """A context, two events, and a record for the warps."""

    def __init__(self) -> None:
        super().__init__()
        self.sms = self.attribute(SMS)
        self.events = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self.events:
            self("cuEventCreate", ctypes.byref(event), 0)
        self.record = self.allocate(MOST_WARPS * RECORD_BYTES)

    def allocate(self, size: int) -> int:
        """Device memory, never freed."""
        pointer = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def upload(self, pointer: int, values: np.ndarray) -> None:
        """Copy to the device."""
        data = np.ascontiguousarray(values)
        self(
            "cuMemcpyHtoD_v2",
            ctypes.c_uint64(pointer),
            ctypes.c_void_p(data.ctypes.data),
            ctypes.c_size_t(data.nbytes),
        )

    def wait(self) -> None:
        """Until the device has nothing to do."""
        self("cuCtxSynchronize")

    def asked(self, function: ctypes.c_void_p, attribute: int) -> int:
        """An attribute of a function."""
        value = ctypes.c_int()
        self("cuFuncGetAttribute", ctypes.byref(value), attribute, function)
        return value.value

    def blocks_per_sm(self, function: ctypes.c_void_p, block: int, dynamic: int) -> int:
        """By the occupancy API."""
        answer = ctypes.c_int()
        self(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.byref(answer),
            function,
            block,
            ctypes.c_size_t(dynamic),
        )
        return answer.value

    def read(self, warps: int) -> Record:
        """The record of the last launch that was given one."""
        got = np.zeros((warps, 2), np.uint64)
        self(
            "cuMemcpyDtoH_v2",
            ctypes.c_void_p(got.ctypes.data),
            ctypes.c_uint64(self.record),
            ctypes.c_size_t(got.nbytes),
        )
        return record_of(got)


@dataclass
class Launch:
    """A kernel with its shape and all arguments but the record."""

    launcher: Launcher
    function: ctypes.c_void_p
    grid: int
    block: int
    dynamic: int
    arguments: Sequence[ctypes._SimpleCData]  # type: ignore[type-arg]

    def __post_init__(self) -> None:
        self.record = ctypes.c_uint64(0)
        values = [*self.arguments, self.record]
        self.pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))

    def go(self) -> None:
        """Launch once."""
        self.launcher(
            "cuLaunchKernel",
            self.function,
            *(self.grid, 1, 1, self.block, 1, 1, self.dynamic),
            None,
            self.pointers,
            None,
        )

    def recorded(self) -> Record:
        """Launch once, with the record."""
        launcher = self.launcher
        self.record.value = launcher.record
        self.go()
        launcher.wait()
        self.record.value = 0
        return launcher.read(self.grid * -(-self.block // 32))

    def time_ns(self, repeats: int) -> float:
        """Of one launch among `repeats` back to back, by CUDA events."""
        launcher = self.launcher
        launcher("cuEventRecord", launcher.events[0], None)
        for _ in range(repeats):
            self.go()
        launcher("cuEventRecord", launcher.events[1], None)
        launcher.wait()
        took = ctypes.c_float()
        launcher("cuEventElapsedTime", ctypes.byref(took), *launcher.events)
        return took.value * 1e6 / repeats
