"""One ring file, opened: records out, control in. All reading goes through the C library."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from spanlite.errors import InputError, ServiceError

from spanlite_collectors.agent.layout import (
    CONTROL,
    DROP_REASONS,
    HEADER,
    HEADER_BYTES,
    LAYOUT_VERSION,
    RECORDS,
    STATE,
    TYPES,
    Level,
    RecordType,
    WindowReason,
)

LIBRARY_VARIABLE = "SPANLITE_RING_LIBRARY"
#: Room for one drain: some 30,000 kernels. More of them follow at once where more is there, so
#: what a daemon that was late once has touched stays small.
_LARGE_BYTES = 4 << 20
_SMALL_BYTES = 1 << 20
_LARGE = (RecordType.KERNEL, RecordType.API, RecordType.RANGE)

_EIGHT = np.dtype([("n", "u8", (8,))])

Records: TypeAlias = npt.NDArray[Any]


def library_path() -> Path:
    """Where the library lies; it need not exist."""
    named = os.environ.get(LIBRARY_VARIABLE)
    return Path(named) if named else Path(__file__).parents[1] / "lib" / "libspanlite_ring.so"


@lru_cache(1)
def library() -> ctypes.CDLL:
    """The C library. Raises ServiceError where it is not there or is of another layout."""
    path = library_path()
    try:
        found = ctypes.CDLL(str(path))
        version = int(found.spanlite_ring_offset(5))
    except (OSError, AttributeError) as error:
        raise ServiceError(
            f"{path} cannot be loaded ({error}); build it with `make agent` or set "
            f"${LIBRARY_VARIABLE}"
        ) from None
    if version != LAYOUT_VERSION:
        raise ServiceError(
            f"{path} reads layout {version}, this daemon {LAYOUT_VERSION}; install both from one "
            "version"
        )
    _declare(found)
    return found


def _declare(found: ctypes.CDLL) -> None:
    handle = ctypes.c_void_p
    found.spanlite_ring_open.restype = handle
    found.spanlite_ring_open.argtypes = [ctypes.c_char_p]
    found.spanlite_ring_header.restype = handle
    found.spanlite_ring_drain.restype = ctypes.c_int64
    found.spanlite_ring_drain.argtypes = [handle, handle, handle, handle, ctypes.c_uint32]
    found.spanlite_ring_skip_torn.restype = ctypes.c_int64
    for name in ("close", "header", "producer_alive", "skip_torn"):
        getattr(found, f"spanlite_ring_{name}").argtypes = [handle]


class _Buffers(threading.local):
    """One set of buffers that all rings of a thread drain into; each thread has its own."""

    def __init__(self) -> None:
        self.arrays = [np.empty(0, np.uint8)] * TYPES
        for kind in RecordType:
            size = _LARGE_BYTES if kind in _LARGE else _SMALL_BYTES
            self.arrays[kind] = np.empty(size, np.uint8)  # touched only as far as used
        addresses = [array.ctypes.data if len(array) else None for array in self.arrays]
        self.pointers = (ctypes.c_void_p * TYPES)(*addresses)
        self.capacities = (ctypes.c_uint64 * TYPES)(*[len(array) for array in self.arrays])
        self.used = (ctypes.c_uint64 * TYPES)()


class Ring:
    """A mapped ring. Raises InputError where the file is none. Not thread-safe."""

    _buffers: _Buffers | None = None  # made by the first drain

    def __init__(self, path: Path) -> None:
        self.path = path
        self._claim: int | None = None
        self._library = library()
        self._handle = self._library.spanlite_ring_open(os.fsencode(path))
        if not self._handle:
            if path.exists() and not os.access(path, os.R_OK | os.W_OK):
                raise InputError(
                    f"{path} cannot be opened: it is of the user with id {path.stat().st_uid}; run "
                    "this as that user or as root"
                )
            raise InputError(
                f"{path} is not a ring of layout {LAYOUT_VERSION}; if no agent of another "
                "version made it, delete it"
            )
        address = self._library.spanlite_ring_header(self._handle)
        self.header = _view(address, HEADER)
        self.control = _view(address + self._offset(0), CONTROL)
        self.state = _view(address + self._offset(1), STATE)
        self._dropped = _view(address + self._offset(2), _EIGHT)
        self._tail = _view(address + self._offset(4), np.dtype("u8"))
        # The end of the header's page is ours: a daemon that starts anew goes on from there.
        self._told = _view(address + HEADER_BYTES - 64, _EIGHT)

    def claim(self) -> bool:
        """Become the one daemon that reads this ring, until it is closed or the process ends.

        False where another one is. Where the file system knows no such locks nobody is kept out.
        """
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # deleted meanwhile: it is mapped, and what it holds is ours
            return True
        # Not flock: the process itself holds one, which says that it lives.
        lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                os.close(file)
                return False
        self._claim = file
        return True

    def _offset(self, field: int) -> int:
        return int(self._library.spanlite_ring_offset(field))

    @property
    def process_id(self) -> int:
        """In the process's own PID namespace."""
        return int(self.header["process_id"][0])

    @property
    def executable(self) -> str:
        """Path of the program."""
        return bytes(self.header["executable"][0]).decode(errors="replace")

    @property
    def level(self) -> Level:
        """What the agent is asked to record."""
        value = int(self.control["level"][0])
        return Level(value) if value in list(Level) else Level.OFF

    @property
    def alive(self) -> bool:
        """Whether the process still holds the ring, in whatever PID namespace."""
        return bool(self._library.spanlite_ring_producer_alive(self._handle))

    @property
    def was_read_before(self) -> bool:
        """Whether a daemon has already taken something out of it."""
        return int(self._tail[0]) > 0

    def ask_strings_anew(self) -> None:
        """Make the agent send all texts again: this daemon has seen none of them."""
        self.control["strings_epoch"][0] += 1

    def capture(self, steps: int, reason: WindowReason = WindowReason.DEMAND) -> None:
        """Ask for a window of so many whole steps, now. An agent of before `reason` says demand."""
        self.control["capture_steps"][0] = steps
        self.control["capture_reason"][0] = reason
        self.control["capture_request"][0] += 1

    def drain(self) -> tuple[int, dict[RecordType, Records], bytes]:
        """(records or -1 where the file is damaged, arrays by type, raw strings).

        The arrays are copies.
        """
        buffers = Ring._buffers = Ring._buffers or _Buffers()
        count = self._library.spanlite_ring_drain(
            self._handle,
            ctypes.addressof(buffers.pointers),
            ctypes.addressof(buffers.capacities),
            ctypes.addressof(buffers.used),
            TYPES,
        )
        found = {}
        for kind, dtype in RECORDS.items():
            used = int(buffers.used[kind])
            if used and count > 0:
                found[kind] = buffers.arrays[kind][:used].view(dtype).copy()
        texts = buffers.arrays[RecordType.STRING][: int(buffers.used[RecordType.STRING])]
        return int(count), found, texts.tobytes() if count > 0 else b""

    def skip_torn(self) -> bool:
        """Step over a record that a dead process never finished. False: there is none."""
        return int(self._library.spanlite_ring_skip_torn(self._handle)) > 0

    def new_drops(self) -> dict[str, int]:
        """Records lost since the last call, by reason."""
        now = self._dropped["n"][0].copy()
        fresh = now - np.minimum(self._told["n"][0], now)
        self._told["n"][0] = now
        return _by_reason(fresh)

    def all_drops(self) -> dict[str, int]:
        """Records lost since the process started, by reason."""
        return _by_reason(self._dropped["n"][0])

    def close(self) -> None:
        """Unmap. Nothing of this object may be used after it."""
        if self._handle:
            del self.header, self.control, self.state, self._dropped, self._tail, self._told
            self._library.spanlite_ring_close(self._handle)
            self._handle = None
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None


def _by_reason(counts: Records) -> dict[str, int]:
    return {word: int(n) for word, n in zip(DROP_REASONS, counts, strict=False) if n}


def _view(address: int, dtype: np.dtype[Any]) -> Records:
    raw = (ctypes.c_uint8 * dtype.itemsize).from_address(address)
    found: Records = np.ctypeslib.as_array(raw).view(dtype)
    return found
