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
from spanlite.codec.batch import MAX_COUNTED
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

#: Places in the header's page, as the library numbers them.
_PLACES = ("control", "state", "dropped", "head", "tail", "version", "told")
_EIGHT = np.dtype([("n", "u8", (8,))])
_WORD = np.dtype("u8")
#: A `struct flock` for the one daemon that reads a ring.
_WHOLE_FILE = ("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)

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
        found = ctypes.CDLL(str(path), use_errno=True)
        version = int(found.spanlite_ring_offset(5))
        _declare(found)
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
    return found


def _declare(found: ctypes.CDLL) -> None:
    handle = ctypes.c_void_p
    found.spanlite_ring_open.restype = handle
    found.spanlite_ring_open.argtypes = [ctypes.c_char_p]
    found.spanlite_ring_drain.restype = ctypes.c_int64
    found.spanlite_ring_drain.argtypes = [handle, handle, handle, handle, ctypes.c_uint32]
    found.spanlite_ring_read_header.argtypes = [handle, handle]
    found.spanlite_ring_write_word.argtypes = [
        handle,
        ctypes.c_uint32,
        ctypes.c_uint32,
        ctypes.c_uint64,
    ]
    found.spanlite_ring_skip_torn.restype = ctypes.c_int64
    for name in ("close", "producer_alive", "skip_torn"):
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


class RingAccessError(InputError):
    """A ring that this user, or this process just now, cannot open; `errno` says why."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.errno = number


class Ring:
    """A mapped ring. Raises InputError where the file is none. Not thread-safe.

    `header` is what the agent said of itself at its begin.
    """

    _buffers: _Buffers | None = None  # made by the first drain

    def __init__(self, path: Path) -> None:
        self.path = path
        self._claim: int | None = None
        self._library = library()
        self._handle = self._library.spanlite_ring_open(os.fsencode(path))
        if not self._handle:
            raise _why_not(path, ctypes.get_errno())
        offset = self._library.spanlite_ring_offset
        self._places = {place: int(offset(i)) for i, place in enumerate(_PLACES)} | {"header": 0}
        self._page = np.zeros(HEADER_BYTES, np.uint8)
        self.header = self._read(HEADER, "header")

    def _read(self, dtype: np.dtype[Any], place: str) -> Records:
        """What the page holds now; what it held before where the file has been cut short.

        Such a file is damaged, as the next drain says.
        """
        page = np.empty_like(self._page)
        if self._library.spanlite_ring_read_header(self._handle, page.ctypes.data) == 0:
            self._page = page
        at = self._places[place]
        found: Records = self._page[at : at + dtype.itemsize].view(dtype).copy()
        found.flags.writeable = False  # `set_control` writes
        return found

    @property
    def control(self) -> Records:
        """What the agent is asked for, as it is now."""
        return self._read(CONTROL, "control")

    @property
    def state(self) -> Records:
        """What the agent says, as it is now."""
        return self._read(STATE, "state")

    def set_control(self, field: str, value: int) -> None:
        """Ask the agent for something. Raises ValueError where the value has no room."""
        fields = CONTROL.fields
        assert fields is not None
        dtype, offset = fields[field][:2]
        if not 0 <= value < 1 << 8 * dtype.itemsize:
            raise ValueError(f"{field}: {value} has no room in {dtype.itemsize} bytes")
        self._write(self._places["control"] + offset, dtype.itemsize, value)

    def _write(self, offset: int, size_bytes: int, value: int) -> None:
        self._library.spanlite_ring_write_word(self._handle, offset, size_bytes, value)

    def claim(self) -> bool:
        """Become the one daemon that reads this ring, until it is closed or the process ends.

        False where another one is. Where the file system knows no such locks nobody is kept out.
        Raises RingAccessError.
        """
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # meanwhile: it is mapped, and what it holds is ours
            return True
        except OSError as error:
            raise _why_not(self.path, error.errno or 0) from None
        # Not flock: the process itself holds one, which says that it lives.
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack(*_WHOLE_FILE))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                os.close(file)
                return False
        self._claim = file
        return True

    @property
    def has_reader(self) -> bool:
        """Whether a daemon reads this ring; True also where that cannot be told."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        try:
            answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, struct.pack(*_WHOLE_FILE))
        except OSError:
            return True
        finally:
            os.close(file)
        return bool(struct.unpack(_WHOLE_FILE[0], answer)[0] != fcntl.F_UNLCK)

    @property
    def process_id(self) -> int:
        """In the process's own PID namespace."""
        return int(self.header["process_id"][0])

    @property
    def executable(self) -> str:
        """Path of the program, fit to be printed."""
        return printable(self.header["executable"][0])

    @property
    def agent_version(self) -> str:
        """Of the agent that writes it."""
        return printable(self.header["agent_version"][0])

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
        return int(self._read(_WORD, "tail")[0]) > 0

    def ask_strings_anew(self) -> None:
        """Make the agent send all texts again: this daemon has seen none of them."""
        self._count_up("strings_epoch")

    def _count_up(self, field: str) -> None:
        self.set_control(field, (int(self.control[field][0]) + 1) % 2**32)

    def capture(self, steps: int, reason: WindowReason = WindowReason.DEMAND) -> None:
        """Ask for a window of so many whole steps, now. An agent of before `reason` says demand."""
        self.set_control("capture_steps", steps)
        self.set_control("capture_reason", reason)
        self._count_up("capture_request")

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

    def new_drops(self) -> dict[str, int] | None:
        """Records lost since the last call, by reason. None: no agent counts so, it is damage."""
        now, told = (self._read(_EIGHT, place)["n"][0] for place in ("dropped", "told"))
        if (now > MAX_COUNTED).any():
            return None
        for reason in np.flatnonzero(now != told).tolist():
            self._write(self._places["told"] + 8 * reason, 8, int(now[reason]))
        return _by_reason(now - np.minimum(told, now))

    def all_drops(self) -> dict[str, int]:
        """Records lost since the process started, by reason."""
        return _by_reason(self._read(_EIGHT, "dropped")["n"][0])

    def close(self) -> None:
        """Unmap. Nothing of this object may be used after it."""
        if self._handle:
            self._library.spanlite_ring_close(self._handle)
            self._handle = None
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None


def _by_reason(counts: Records) -> dict[str, int]:
    return {word: int(n) for word, n in zip(DROP_REASONS, counts, strict=False) if n}


def printable(text: bytes) -> str:
    """Whatever a process wrote there, neither escapes nor lines of its own."""
    signs = bytes(text).decode(errors="replace")
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in signs)


def _why_not(path: Path, number: int) -> InputError:
    """What to say where the library has not opened a ring."""
    if number in (errno.EACCES, errno.EPERM):
        return RingAccessError(f"{path} cannot be opened: {_owner(path)}", number)
    if number == errno.EROFS:
        return RingAccessError(
            f"{path} cannot be opened: its file system is read-only here; mount it writable",
            number,
        )
    if number in (0, errno.EPROTO, errno.ELOOP, errno.EISDIR):
        return InputError(
            f"{path} is not a ring of layout {LAYOUT_VERSION}; if no agent of another version "
            "made it, delete it"
        )
    return RingAccessError(f"{path} cannot be opened: {os.strerror(number)}", number)


def _owner(path: Path) -> str:
    try:
        user = path.stat().st_uid
    except OSError:
        return "its folder may be listed and not searched; run this as a user who may"
    return f"it is of the user with id {user}; run this as that user or as root"


def rings_in(folder: Path) -> list[Path]:
    """The ring files of a folder, which need not exist. Raises OSError where it cannot be read."""
    return sorted(path for path in entries(folder) if path.suffix == ".ring")


def entries(folder: Path) -> list[Path]:
    """What lies in a folder, which need not exist. Raises OSError where it cannot be read."""
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
