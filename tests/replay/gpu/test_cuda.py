"""The driver's structures, and CUPTI's records, byte by byte."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest
from spanlite.errors import ServiceError
from spanlite_replay.targets.gpu import clocks, compiling, cupti, structs
from spanlite_replay.targets.gpu.build import way_of


def test_structures_have_the_sizes_of_cudas_headers() -> None:
    sizes = {
        structs.KernelNode: 72,
        structs.Copy: 200,
        structs.Memset: 40,
        structs.LaunchAttribute: 64,
    }
    for structure, size in sizes.items():
        assert ctypes.sizeof(structure) == size
    assert (
        structs.KernelNode.arguments.offset == 40 and structs.KernelNode.shared_bytes.offset == 32
    )
    assert structs.Copy.target.offset == 88 and structs.Copy.width.offset == 176
    assert structs.End.kind.offset == 32 and structs.End.device.offset == 48
    assert ctypes.sizeof(structs.Work) == 96


SIZES = {cupti.KERNEL: 216, cupti.MEMCPY: 96, cupti.MEMSET: 88}


class Walker:
    """cuptiActivityGetNextRecord over records of known sizes."""

    def cuptiActivityGetNextRecord(self, base: Any, size: Any, place: Any) -> int:  # noqa: N802
        record = place._obj
        data = ctypes.string_at(base.value, size.value)
        at = 0
        if record.value:
            at = record.value - base.value
            at += SIZES[int.from_bytes(data[at : at + 4], "little")]
        if at >= len(data):
            return 21
        record.value = base.value + at
        return 0


def kernel(name: Any, node: int, start: int) -> bytes:
    data = bytearray(216)
    struct.pack_into("<I", data, 0, cupti.KERNEL)
    struct.pack_into("<QQ", data, 16, start, start + 5)
    struct.pack_into("<III", data, 52, 2, 3, 4)
    struct.pack_into("<Q", data, 104, ctypes.addressof(name))
    struct.pack_into("<Q", data, 144, node)
    struct.pack_into("<I", data, 156, 77)
    return bytes(data)


def memory(kind: int, node: int, start: int) -> bytes:
    data = bytearray(SIZES[kind])
    struct.pack_into("<I", data, 0, kind)
    struct.pack_into("<QQ", data, 16, start, start + 9)
    struct.pack_into("<QI", data, 64, node, 77)
    return bytes(data)


def test_records_are_read_where_cupti_puts_them() -> None:
    reader = object.__new__(cupti.Cupti)
    reader._library = Walker()  # type: ignore[assignment]
    name = ctypes.create_string_buffer(b"spanlite_wall")
    big = 1 << 40
    first = kernel(name, big, 100) + memory(cupti.MEMCPY, big + 1, 200) + kernel(name, big + 2, 300)
    records = reader._records([first, memory(cupti.MEMSET, big + 3, 400)], 4)
    by_start = records.start_ns.argsort()
    assert records.node[by_start].tolist() == [big, big + 1, big + 2, big + 3]
    assert records.start_ns[by_start].tolist() == [100, 200, 300, 400]
    assert (records.end_ns - records.start_ns)[by_start].tolist() == [5, 9, 5, 9]
    assert records.blocks[by_start].tolist() == [24, 0, 24, 0]
    assert set(records.graph.tolist()) == {77} and records.dropped == 4
    assert [records.names[i] for i in records.name[by_start]] == [
        "spanlite_wall", "", "spanlite_wall", "",
    ]  # fmt: skip


def test_no_compiler_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> bytes:
        raise ImportError("no module named cupy")

    monkeypatch.setattr(compiling, "_with_cupy", missing)
    monkeypatch.setattr(compiling, "_with_core", missing)
    with pytest.raises(ServiceError, match=r"spanlite-replay\[cuda13\]"):
        compiling.compiled(40, (9, 0))


def test_no_cupti_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(cupti.ctypes, "CDLL", missing)
    with pytest.raises(ServiceError, match="nvidia-cuda-cupti"):
        cupti._open()


def test_ways_of_copies() -> None:
    assert [way_of(kind) for kind in range(11)] == [
        "dtod", "htod", "dtoh", "htod", "dtoh", "dtod", "dtod", "dtod", "dtod", "htoh", "dtod",
    ]  # fmt: skip


def test_throttling_is_named() -> None:
    assert clocks.reasons(0) == "none" and clocks.reasons(1) == "none"
    assert clocks.reasons(0x24) == "power cap, thermal, software"
