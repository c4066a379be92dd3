"""Writes ring files as an agent does, so that the daemon can be tested without one."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

import numpy as np
from spanlite_collectors.agent import ring as ring_module
from spanlite_collectors.agent.layout import (
    HEADER,
    HEADER_BYTES,
    LAYOUT_VERSION,
    MAGIC,
    RECORDS,
    STATE,
    Level,
    RecordType,
)
from spanlite_collectors.agent.resource import start_ticks

CAPACITY = 32 << 20


def string_record(number: int, text: str) -> bytes:
    """A text by its number."""
    data = text.encode()
    size = (16 + len(data) + 7) // 8 * 8
    head = struct.pack("<IHHII", size, RecordType.STRING, 0, number, len(data))
    return (head + data).ljust(size, b"\0")


class RingWriter:
    """A process's side. `die` lets go of the lock, as the end of a process does."""

    def __init__(self, folder: Path, pid: int | None = None, capacity: int = CAPACITY) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        pid = pid or os.getpid()
        self.path = folder / f"{pid}-{time.time_ns()}.ring"
        library = ring_module.library()
        self._control, self._state, self._dropped, self._head, _ = (
            library.spanlite_ring_offset(i) for i in range(5)
        )
        self.map = np.memmap(self.path, np.uint8, "w+", shape=(HEADER_BYTES + capacity,))
        self._file = self.path.open("rb")
        fcntl.flock(self._file, fcntl.LOCK_SH)
        header = np.zeros(1, HEADER)
        header["magic"], header["layout_version"] = MAGIC, LAYOUT_VERSION
        header["header_bytes"], header["capacity_bytes"] = HEADER_BYTES, capacity
        header["process_id"], header["executable"] = pid, b"/usr/bin/server"
        header["process_start_ticks"] = start_ticks(os.getpid())
        header["agent_version"] = b"0.1.0"
        self.map[: HEADER.itemsize] = header.view(np.uint8)
        self.u32(self._control, Level.WINDOWS)
        self.at = 0
        self._texts: dict[str, int] = {"": 0}

    def u32(self, offset: int, value: int) -> None:
        self.map[offset : offset + 4] = np.frombuffer(struct.pack("<I", value), np.uint8)

    def u64(self, offset: int, value: int) -> None:
        self.map[offset : offset + 8] = np.frombuffer(struct.pack("<Q", value), np.uint8)

    def state(self, field: str, value: int) -> None:
        """What the agent says: a word of 8 bytes."""
        self.u64(self._state + STATE.fields[field][1], value)

    def level_now(self, level: Level, window_open: bool) -> None:
        """What the agent says of its level."""
        fields = STATE.fields
        self.u32(self._state + fields["level"][1], level)
        self.u32(self._state + fields["window_open"][1], window_open)

    def disable(self, reason: str) -> None:
        """The agent records no kernels from now on."""
        text = reason.encode()
        at = self._state + STATE.fields["reason"][1]
        self.map[at : at + len(text)] = np.frombuffer(text, np.uint8)
        self.u32(self._state + STATE.fields["disabled"][1], 1)

    def control_word(self, index: int) -> int:
        at = self._control + 4 * index
        return int(self.map[at : at + 4].view(np.uint32)[0])

    def raw(self, data: bytes) -> None:
        at = HEADER_BYTES + self.at
        self.map[at : at + len(data)] = np.frombuffer(data, np.uint8)
        self.at += len(data)
        self.u64(self._head, self.at)

    def text(self, text: str) -> int:
        if text not in self._texts:
            self._texts[text] = number = len(self._texts)
            self.raw(string_record(number, text))
        return self._texts[text]

    def forget(self) -> None:
        """The agent's table of texts was full."""
        self._texts = {"": 0}
        self.raw(string_record(0, ""))

    def write(self, type_: RecordType, /, **fields: int) -> None:
        record = np.zeros(1, RECORDS[type_])
        record["size_bytes"], record["type"] = record.dtype.itemsize, type_
        for name, value in fields.items():
            record[name] = value
        self.raw(record.tobytes())

    def drop(self, reason: int, count: int) -> None:
        self.u64(self._dropped + 8 * reason, count)

    def die(self) -> None:
        self._file.close()


def write_recording(writer: RingWriter, records: list[dict[str, object]]) -> None:
    """Records of ../shared/data/cupti as an agent would have written them."""
    for record in records:
        _ONE.get(str(record["t"]), lambda w, r: None)(writer, record)


def _times(record: dict) -> dict[str, int]:
    return {"start_ns": int(record["start"]), "end_ns": int(record["end"])}


def _kernel(w: RingWriter, r: dict) -> None:
    words = [f"{part}_{axis}" for part in ("grid", "block", "cluster") for axis in "xyz"]
    shape = dict(zip(words, [*r["grid"], *r["block"], *r["cluster"]], strict=True))
    w.write(
        RecordType.KERNEL,
        **_times(r),
        **shape,
        name=w.text(str(r["name"])),
        device=r["dev"],
        context=r["ctx"],
        stream=r["stream"],
        correlation_id=r["corr"],
        graph_id=r["graph_id"],
        graph_node_id=r["graph_node"],
        registers_per_thread=r["regs"],
        static_shared_bytes=r["static_smem"],
        dynamic_shared_bytes=r["dynamic_smem"],
        window=1,
    )


def _copy(w: RingWriter, r: dict) -> None:
    w.write(
        RecordType.MEMCPY,
        **_times(r),
        bytes=r["bytes"],
        device=r["dev"],
        context=r["ctx"],
        stream=r["stream"],
        correlation_id=r["corr"],
        copy_kind=r["copy_kind"],
        window=1,
    )


def _call(w: RingWriter, r: dict) -> None:
    w.write(
        RecordType.API,
        **_times(r),
        thread_id=r["tid"],
        correlation_id=r["corr"],
        call=r["cbid"],
        domain=int(r["dom"] == "runtime"),
        result=r["ret"],
        window=1,
    )


def _range(w: RingWriter, r: dict) -> None:
    w.write(
        RecordType.RANGE,
        **_times(r),
        id=r["id"],
        parent_id=r["parent"],
        thread_id=r["tid"],
        name=w.text(str(r["name"])),
        domain=w.text(str(r["domain"] or "")),
        depth=r["depth"],
    )


_ONE = {"kernel": _kernel, "memcpy": _copy, "api": _call, "nvtx": _range}
