"""Reads CUPTI's activity records of kernels, copies and memsets; nothing but ctypes."""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from spanlite.errors import ServiceError

from spanlite_replay.targets.gpu.driver import I64, Records

MEMCPY, MEMSET, KERNEL = 1, 2, 10
#: Room for some 38,000 kernels; CUPTI asks for another buffer when one is full.
BUFFER_BYTES = 8 << 20
_FLUSH_FORCED = 1
#: Where the fields lie; later versions only append to these records.
_AT = {
    KERNEL: {"start": 16, "end": 24, "grid": 52, "name": 104, "node": 144, "graph": 156},
    MEMCPY: {"start": 16, "end": 24, "node": 64, "graph": 72},
    MEMSET: {"start": 16, "end": 24, "node": 64, "graph": 72},
}
_NAMES = ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
_REQUESTED = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
)
_COMPLETED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


@cache
def the_cupti() -> Cupti:
    """One a process: CUPTI has one set of callbacks."""
    return Cupti()


class Cupti:
    """Collects records from `start` to `stop`. Use `the_cupti`."""

    def __init__(self) -> None:
        self._library = _open()
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._kept: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self._full: list[bytes] = []
        self._dropped = 0
        # Kept here: CUPTI calls them as long as the process lives.
        self._callbacks = (_REQUESTED(self._requested), _COMPLETED(self._completed))
        self._call("cuptiActivityRegisterCallbacks", *self._callbacks)

    def start(self) -> None:
        """Begin to record."""
        self._full, self._dropped = [], 0
        for kind in _AT:
            self._call("cuptiActivityEnable", ctypes.c_int(kind))

    def take(self) -> Records:
        """What was recorded since the last time. The GPU must be idle."""
        self._call("cuptiActivityFlushAll", ctypes.c_uint32(_FLUSH_FORCED))
        with self._lock:
            full, self._full = self._full, []
            dropped, self._dropped = self._dropped, 0
        return self._records(full, dropped)

    def stop(self) -> None:
        """End it."""
        for kind in _AT:
            self._call("cuptiActivityDisable", ctypes.c_int(kind))

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise ServiceError(
                f"CUPTI cannot measure this process: {name} failed with code {code}; is another "
                "profiler attached to it?"
            )

    # CUPTI calls these two from threads of its own.
    def _requested(self, buffer: object, size: object, most: object) -> None:
        with self._lock:
            address = self._free.pop() if self._free else 0
            if not address:
                room = ctypes.create_string_buffer(BUFFER_BYTES + 64)
                address = -(-ctypes.addressof(room) // 64) * 64
                self._kept[address] = room
        buffer[0], size[0], most[0] = address, BUFFER_BYTES, 0  # type: ignore[index]

    def _completed(self, context: int, stream: int, buffer: int, size: int, valid: int) -> None:
        dropped = ctypes.c_size_t()
        self._library.cuptiActivityGetNumDroppedRecords(
            ctypes.c_void_p(context), ctypes.c_uint32(stream), ctypes.byref(dropped)
        )
        with self._lock:
            self._dropped += dropped.value
            if valid:
                self._full.append(ctypes.string_at(buffer, valid))
            self._free.append(buffer)

    def _records(self, full: list[bytes], dropped: int) -> Records:
        names: dict[int, int] = {}
        texts = [""]
        rows: list[npt.NDArray[np.int64]] = []
        for data in full:
            places = np.array(list(self._walk(data)), np.int64).reshape(-1, 2)
            rows.extend(
                _columns(data, places[places[:, 1] == kind, 0], kind, names, texts) for kind in _AT
            )
        table = np.concatenate(rows) if rows else np.empty((0, 6), np.int64)
        graph, node, start, end, blocks, name = table.T.copy()
        return Records(graph, node, start, end, blocks, dropped, texts, name)

    def _walk(self, data: bytes) -> Iterator[tuple[int, int]]:
        """(place, kind) of each record."""
        base = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
        record = ctypes.c_void_p()
        next_record = self._library.cuptiActivityGetNextRecord
        size, place = ctypes.c_size_t(len(data)), ctypes.byref(record)
        while next_record(ctypes.c_void_p(base), size, place) == 0:
            at = (record.value or 0) - base
            yield at, int.from_bytes(data[at : at + 4], "little")


def _columns(
    data: bytes, at: I64, kind: int, names: dict[int, int], texts: list[str]
) -> npt.NDArray[np.int64]:
    """(graph, node, start, end, blocks, name) of the records of one kind, shape (records, 6)."""
    out = np.zeros((len(at), 6), np.int64)
    field = _AT[kind]
    out[:, 0] = _read(data, at + field["graph"], "<u4")
    out[:, 1] = _read(data, at + field["node"], "<u8")
    out[:, 2] = _read(data, at + field["start"], "<u8")
    out[:, 3] = _read(data, at + field["end"], "<u8")
    if kind == KERNEL:
        out[:, 4] = np.prod([_read(data, at + field["grid"] + 4 * i, "<u4") for i in range(3)], 0)
        pointers = _read(data, at + field["name"], "<u8")
        for pointer in np.unique(pointers).tolist():
            if pointer not in names:
                names[pointer] = len(texts)
                text = ctypes.string_at(pointer) if pointer else b""
                texts.append(text.decode(errors="replace"))
            out[pointers == pointer, 5] = names[pointer]
    return out


def _read(data: bytes, at: I64, of: str) -> npt.NDArray[np.int64]:
    size = np.dtype(of).itemsize
    whole = np.frombuffer(data, np.uint8)
    parts = whole[at[:, None] + np.arange(size)]
    return np.ascontiguousarray(parts).view(of).reshape(-1).astype(np.int64)


def _open() -> ctypes.CDLL:
    """The CUPTI that is mapped already, else one that can be found."""
    for path in (*_mapped(), *_NAMES, *_installed()):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise ServiceError(
        "--target gpu measures with CUPTI and finds no libcupti: install "
        "nvidia-cuda-cupti (CUDA 13) or nvidia-cuda-cupti-cu12 from PyPI, or the CUDA toolkit"
    )


def _mapped() -> Iterator[str]:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if "/libcupti.so" in line:
            yield line[line.index("/") :]
            return


def _installed() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or [] if spec else []:
        for found in sorted(Path(root).glob("*/lib/libcupti.so.*")):
            yield str(found)
    for found in sorted(Path("/usr/local").glob("cuda*/extras/CUPTI/lib64/libcupti.so.*")):
        yield str(found)
