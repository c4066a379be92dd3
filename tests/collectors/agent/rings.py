"""Reads rings through libspanlite_ring.so as NumPy arrays, for the tests."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TYPES = 16
BUFFER_BYTES = 32 << 20
HEAD = [("size", "u4"), ("type", "u2"), ("flags", "u2")]


def _layout(longs: str, words: str) -> np.dtype:
    fields = [(name, "u8") for name in longs.split()] + [(name, "u4") for name in words.split()]
    return np.dtype(HEAD + fields)


KERNEL_WORDS = (
    "device context stream correlation graph name grid_x grid_y grid_z block_x block_y block_z "
    "cluster_x cluster_y cluster_z registers static_shared dynamic_shared executed_shared local "
    "window launch_type"
)
MEMORY_WORDS = "device context stream correlation graph copy_kind window peer_device"
LAYOUTS = {
    2: ("clock", _layout("realtime monotonic monotonic_raw cupti uncertainty", "")),
    3: ("kernel", _layout("start end node", KERNEL_WORDS)),
    4: ("memcpy", _layout("start end bytes node", MEMORY_WORDS)),
    5: ("memset", _layout("start end bytes node", MEMORY_WORDS)),
    7: ("api", _layout("start end", "thread correlation call domain result window")),
    8: ("graph", _layout("start end", "device context stream correlation graph window")),
    10: (
        "range",
        _layout("start end id parent payload", "thread name domain category payload_type depth"),
    ),
    11: ("window", _layout("open close first steps since cost", "window reason level partial")),
    6: ("sync", _layout("start end", "kind context stream correlation event window")),
    9: ("overhead", _layout("start end", "kind thread correlation window")),
    13: ("external", _layout("external_id", "correlation kind")),
    12: ("step", _layout("start end number", "thread name window covered")),
}
REASONS = {"schedule": 0, "demand": 1, "slo": 2, "continuous": 3, "learn": 4, "throttle": 5}
DROPS = ("ring_full", "cupti_dropped", "budget", "unknown", "torn", "deleted")
WISHES = {"level": 0, "capture_request": 1, "capture_steps": 2, "budget_ppm": 3}
WISHES |= {"strings_epoch": 6, "detach": 7, "api_calls": 8, "capture_reason": 9}
LEVELS = {"off": 0, "ranges": 1, "windows": 2, "continuous": 3}


@dataclass
class Records:
    """Everything a ring has given so far, by type."""

    arrays: dict[str, NDArray[np.void]] = field(default_factory=dict)
    strings: dict[int, str] = field(default_factory=dict)
    forgets: int = 0

    def __getattr__(self, name: str) -> NDArray[np.void]:
        return self.arrays[name]

    def names(self, rows: NDArray[np.void]) -> list[str]:
        return [self.strings.get(int(i), "?") for i in rows["name"]]


@lru_cache(1)
def _space() -> list[NDArray[np.uint8]]:
    # Shared by all readers, and touched only as far as used.
    return [np.empty(BUFFER_BYTES, np.uint8) for _ in range(TYPES)]


class RingReader:
    """One ring, read with `spanlite_ring_drain` as the daemon does."""

    def __init__(self, library: Path, path: Path) -> None:
        lib = ctypes.CDLL(str(library))
        lib.spanlite_ring_open.restype = ctypes.c_void_p
        lib.spanlite_ring_open.argtypes = [ctypes.c_char_p]
        lib.spanlite_ring_read_header.argtypes = [ctypes.c_void_p] * 2
        lib.spanlite_ring_write_word.argtypes = [
            ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64
        ]  # fmt: skip
        lib.spanlite_ring_drain.restype = ctypes.c_int64
        lib.spanlite_ring_drain.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_uint32]
        lib.spanlite_ring_skip_torn.restype = ctypes.c_int64
        for function in ("close", "skip_torn", "producer_alive"):
            getattr(lib, f"spanlite_ring_{function}").argtypes = [ctypes.c_void_p]
        self.lib = lib
        self.path = path
        self.ring = lib.spanlite_ring_open(str(path).encode())
        if self.ring is None:
            raise OSError(f"{path} is no ring")
        self.records = Records()
        self._parts: dict[str, list[NDArray[np.void]]] = {name: [] for name, _ in LAYOUTS.values()}
        self._space = _space()
        self._buffers = (ctypes.c_void_p * TYPES)(*[space.ctypes.data for space in self._space])
        self._capacities = (ctypes.c_uint64 * TYPES)(*[BUFFER_BYTES] * TYPES)

    def close(self) -> None:
        self.lib.spanlite_ring_close(self.ring)

    @property
    def alive(self) -> bool:
        return bool(self.lib.spanlite_ring_producer_alive(self.ring))

    def skip_torn(self) -> int:
        return int(self.lib.spanlite_ring_skip_torn(self.ring))

    def drain(self) -> int:
        """Read what is there; the number of records."""
        total = 0
        while (count := self._drain_once()) > 0:
            total += count
        assert count == 0, "the ring is damaged"
        for name, dtype in LAYOUTS.values():
            parts = self._parts[name]
            self.records.arrays[name] = np.concatenate(parts) if parts else np.empty(0, dtype)
        return total

    def _drain_once(self) -> int:
        used = (ctypes.c_uint64 * TYPES)()
        count = self.lib.spanlite_ring_drain(
            self.ring, self._buffers, self._capacities, used, TYPES
        )
        for kind, (name, dtype) in LAYOUTS.items():
            if used[kind]:
                assert self.lib.spanlite_record_bytes(kind) == dtype.itemsize
                self._parts[name].append(self._space[kind][: used[kind]].view(dtype).copy())
        self._read_strings(self._space[1][: used[1]].tobytes())
        return int(count)

    def _read_strings(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            number = int.from_bytes(data[at + 8 : at + 12], "little")
            length = int.from_bytes(data[at + 12 : at + 16], "little")
            if number == 0:
                self.records.forgets += 1
            self.records.strings[number] = data[at + 16 : at + 16 + length].decode()
            at += size

    def _bytes(self, offset: int, size: int) -> bytes:
        page = ctypes.create_string_buffer(4096)
        assert self.lib.spanlite_ring_read_header(self.ring, page) == 0
        return page.raw[offset : offset + size]

    def _word(self, part: int, index: int, size: int) -> int:
        place = self.lib.spanlite_ring_offset(part) + size * index
        return int.from_bytes(self._bytes(place, size), "little")

    def _set_word(self, part: int, index: int, size: int, value: int) -> None:
        place = self.lib.spanlite_ring_offset(part) + size * index
        assert self.lib.spanlite_ring_write_word(self.ring, place, size, value) == 0

    def control(self, **values: int) -> None:
        """Set words of the control block."""
        for name, value in values.items():
            self._set_word(0, WISHES[name], 4, value)

    def wish(self, name: str) -> int:
        """A word of the control block."""
        return self._word(0, WISHES[name], 4)

    def executable(self) -> str:
        return self._bytes(48, 256).split(b"\0")[0].decode()

    def state(self) -> dict[str, int]:
        words = ["level", "attached", "window_open", "disabled"]
        longs = ["steps", "steps_covered", "windows", "cost_ppm", "records", "buffers"]
        state = {n: self._word(1, i, 4) for i, n in enumerate(words)}
        state |= {n: self._word(1, 2 + i, 8) for i, n in enumerate(longs)}
        state |= {"hw_trace": self._word(1, 58, 4), "graph_trace": self._word(1, 59, 4)}
        return state | {"detaches": self._word(1, 28, 8)}

    def reason(self) -> str:
        place = self.lib.spanlite_ring_offset(1) + 16 + 9 * 8
        return self._bytes(place, 128).split(b"\0")[0].decode()

    def drops(self) -> dict[str, int]:
        return {n: self._word(2, i, 8) for i, n in enumerate(DROPS)}

    def set_drops(self, reason: str, dropped: int, told: int) -> None:
        """As the agent counts them and a daemon tells them."""
        index = DROPS.index(reason)
        self._set_word(2, index, 8, dropped)
        self._set_word(6, index, 8, told)


def kernels_of_steps(records: Records) -> list[int]:
    """For each covered step, the kernels whose launch lies in it."""
    covered = records.step[records.step["covered"] == 1]
    calls = records.api
    counts = []
    for step in covered:
        inside = (calls["thread"] == step["thread"]) & (calls["start"] >= step["start"])
        launches = calls[inside & (calls["end"] <= step["end"])]
        counts.append(int(np.isin(records.kernel["correlation"], launches["correlation"]).sum()))
    return counts


def check_whole(records: Records, kernels: int) -> None:
    """Every covered step has all its kernels, whatever the window's edges did."""
    counts = kernels_of_steps(records)
    assert counts and set(counts) == {kernels}
    assert records.window["steps"].sum() == len(counts)
    for window in records.window:
        inside = records.step[records.step["window"] == window["window"]]
        assert window["steps"] == (inside["covered"] == 1).sum()
