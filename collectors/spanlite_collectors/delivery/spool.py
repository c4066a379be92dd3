"""The disk spool: messages in order, on disk, while the broker is away.

A spool is a folder of segments, `0000000000000001.spool` and so on. A segment is a
plain snappy framed stream (`python -m snappy -d` reads it); unpacked, it is records of a
32-bit little-endian length and that many bytes. A new run never appends to an old
segment, so what a crash tore is always at the end of a segment and is skipped and counted.
Records leave in the order they came in; a segment is deleted when all of its records
are delivered. After a crash the segments that are left are sent again from their
start: the messages carry (producer, epoch, seq), so the repeats are recognised.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import snappy
from spanlite.errors import ServiceError, SpanLiteError

DEFAULT_SPOOL_BYTES = 4 << 30
#: At most so much, and a quarter, is kept free for what was taken when the rest is full.
MOST_RESERVED_BYTES = 256 << 20
#: Small segments, since a crash repeats at most what is left of them.
SEGMENT_BYTES = 16 << 20
SUFFIX = ".spool"

_STREAM_START = b"\xff\x06\x00\x00sNaPpY"
_LENGTH = struct.Struct("<I")
#: A chunk of a type that the framing format tells readers to skip. It holds the size of
#: the record's frame, and that size inverted, so that a torn or flipped one shows.
_SIZE = struct.Struct("<II")
_SIZE_CHUNK = b"\x80" + _SIZE.size.to_bytes(3, "little")
_HEAD_BYTES = len(_STREAM_START) + len(_SIZE_CHUNK) + _SIZE.size


class SpoolFullError(SpanLiteError):
    """No room: the limit is reached, or the disk is full."""


class SpoolBusyError(ServiceError):
    """Another process has the folder."""


class Room(Enum):
    """What part of the spool a record may be put into."""

    #: New records: all but the reserve.
    OPEN = "open"
    #: Records of spans that were taken already: the reserve too.
    RESERVED = "reserved"
    #: The few hundred bytes that tell of spans that had no room.
    ANY = "any"


@dataclass(eq=False)
class _Segment:
    path: Path
    size: int = 0
    live: int = 0  # records not yet delivered
    #: Bytes of each record to read, below 0 of what `pop` is to skip. All that is kept of a
    #: record in memory: a spool may grow for hours.
    _lengths: array[int] = field(default_factory=lambda: array("q"))
    _next: int = 0  # the first of them that is not read
    _offset: int = 0  # and its place in the file

    def add(self, size: int, *, unread: bool) -> None:
        """What follows what was added before."""
        self._lengths.append(size if unread else -size)

    def take(self) -> Entry | None:
        """The place of the next unread record."""
        while self._next < len(self._lengths):
            size, offset = self._lengths[self._next], self._offset
            self._next, self._offset = self._next + 1, offset + abs(size)
            if size > 0:
                return Entry(self, offset, size)
        return None


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """One record's place in the spool."""

    segment: _Segment
    offset: int
    size: int


#: A disk with less than this is full for new records; those taken already may use the rest.
_FREE_BYTES = 1 << 20


class Spool:
    """A first-in, first-out queue of byte strings on disk. Not thread-safe.

    Opening it takes the folder for this process alone; ServiceError where another has it
    (`SpoolBusyError`) or it cannot be used. `reserved_bytes` of `max_bytes` are free for
    records with `Room.RESERVED`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = DEFAULT_SPOOL_BYTES,
        reserved_bytes: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.folder = folder
        self._max_bytes, self._segment_bytes = max_bytes, segment_bytes
        self._reserved_bytes = reserved_bytes
        self.torn_records = 0  # records that a crash or the disk has damaged
        self.torn_bytes = 0
        self._lock = _lock(folder)
        self._unread = 0
        self._segments: dict[Path, _Segment] = {}
        # Those that may hold unread records, in order.
        self._to_read: deque[_Segment] = deque()
        self._writer: int | None = None
        self._tail: _Segment | None = None
        self._dirty = False
        try:
            self._scan()
        except OSError as error:
            os.close(self._lock)
            raise _unusable(error, folder) from None

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(segment.size for segment in self._segments.values())

    @property
    def unread(self) -> int:
        """Records not yet taken by `pop`."""
        return self._unread

    @property
    def live(self) -> int:
        """Records not yet delivered."""
        return sum(segment.live for segment in self._segments.values())

    @property
    def has_room(self) -> bool:
        """Whether one more new record may be appended."""
        return self.has(Room.OPEN)

    def has(self, room: Room, more_bytes: int = 0) -> bool:
        """Whether one more record may be appended there, after so many bytes of others."""
        if room is Room.ANY:
            return True
        is_open = room is Room.OPEN
        kept_free = more_bytes + (self._reserved_bytes if is_open else 0)
        return self.size_bytes < self._max_bytes - kept_free and self._disk_has(
            more_bytes + (_FREE_BYTES if is_open else 0)
        )

    def _disk_has(self, size_bytes: int) -> bool:
        try:
            disk = os.fstatvfs(self._lock)
        except OSError:
            return True
        blocks = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
        return blocks * disk.f_frsize > size_bytes

    @property
    def cure(self) -> str:
        """What to do where it has no room."""
        if self._disk_has(_FREE_BYTES):
            return "give the spool more with --spool-bytes"
        return f"make room on the disk of {self.folder}"

    def append(self, record: bytes, *, unread: bool = True, room: Room = Room.OPEN) -> Entry:
        """Write a record at the end. Raises SpoolFullError; then nothing was written.

        `unread=False` is for a record that is on its way already: it will not be popped
        in this run, but is there for the next one until `done`.
        """
        if not self.has(room):
            raise SpoolFullError(f"the spool {self.folder} has no room; {self.cure}")
        framed = _frame(record)
        segment, writer = self._open_tail()
        self._write(writer, segment, framed)
        entry = Entry(segment, segment.size, len(framed))
        segment.size += len(framed)
        segment.live += 1
        segment.add(entry.size, unread=unread)
        self._unread += unread
        return entry

    def sync(self) -> None:
        """Return when all that was appended would survive a power cut."""
        if self._dirty and self._writer is not None:
            os.fsync(self._writer)
        self._dirty = False

    def pop(self) -> tuple[Entry, bytes] | None:
        """The oldest record not popped yet; damaged ones are counted and skipped."""
        while (entry := self._take()) is not None:
            record = _read(entry)
            if record is not None:
                return entry, record
            self._count_torn(entry.size)
            self.done(entry)
        return None

    def done(self, entry: Entry) -> None:
        """A record is delivered; its segment goes when it was the last one in it."""
        segment = entry.segment
        segment.live -= 1
        if segment.live == 0:
            if segment is self._tail:
                self._close_tail()
            self._delete(segment)

    def close(self) -> None:
        """Sync and let go of the folder."""
        self._close_tail()
        os.close(self._lock)

    def _take(self) -> Entry | None:
        while self._to_read:
            segment = self._to_read[0]
            entry = segment.take()
            if entry is not None:
                self._unread -= 1
                return entry
            if segment is self._tail:  # more may follow in it
                return None
            self._to_read.popleft()
        return None

    def _count_torn(self, size: int) -> None:
        self.torn_records += 1
        self.torn_bytes += size

    def _scan(self) -> None:
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            segment = _Segment(path, path.stat().st_size)
            self._add(segment)
            for _, size, whole in _frames(path.read_bytes()):
                segment.add(size, unread=whole)
                segment.live += whole
                if not whole:
                    self._count_torn(size)
            self._unread += segment.live
            if segment.live == 0:
                self._delete(segment)

    def _add(self, segment: _Segment) -> None:
        self._segments[segment.path] = segment
        self._to_read.append(segment)

    def _open_tail(self) -> tuple[_Segment, int]:
        if self._tail is not None and self._tail.size >= self._segment_bytes:
            self._close_tail()
        if self._tail is None or self._writer is None:
            last = max((int(path.name.split(".")[0]) for path in self._segments), default=0)
            path = self.folder / f"{last + 1:016d}{SUFFIX}"
            try:
                self._writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            except OSError as error:
                raise _as_full(error, self.folder) from None
            self._tail = _Segment(path)
            self._add(self._tail)
            _sync_folder(self.folder)
        return self._tail, self._writer

    def _write(self, writer: int, segment: _Segment, framed: bytes) -> None:
        self._dirty = True
        left = memoryview(framed)
        try:
            while left:
                left = left[os.write(writer, left) :]
        except OSError as error:
            # Take back the half record, so that the next one can be found.
            os.ftruncate(writer, segment.size)
            os.lseek(writer, segment.size, os.SEEK_SET)
            raise _as_full(error, self.folder) from None

    def _close_tail(self) -> None:
        self.sync()
        if self._writer is not None:
            os.close(self._writer)
        tail, self._writer, self._tail = self._tail, None, None
        if tail is not None and tail.live == 0:
            self._delete(tail)

    def _delete(self, segment: _Segment) -> None:
        if self._segments.pop(segment.path, None) is not None:
            segment.path.unlink(missing_ok=True)


def _as_full(error: OSError, folder: Path) -> SpanLiteError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SpoolFullError(f"the disk that holds the spool {folder} is full")
    return _unusable(error, folder)


def _unusable(error: OSError, folder: Path) -> ServiceError:
    return ServiceError(
        f"the spool {folder} cannot be used: {error.strerror}; give --spool a folder that can be "
        "written, or --no-spool"
    )


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unusable(error, folder) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise SpoolBusyError(f"another process uses the spool {folder}") from None
    return lock


def _frame(record: bytes) -> bytes:
    """Stream start, the frame's size in a chunk that readers skip, then the record's chunks."""
    whole = bytes(snappy.StreamCompressor().compress(_LENGTH.pack(len(record)) + record))
    chunks = whole[len(_STREAM_START) :]
    size = _HEAD_BYTES + len(chunks)
    return _STREAM_START + _SIZE_CHUNK + _SIZE.pack(size, ~size & 0xFFFFFFFF) + chunks


def _read(entry: Entry) -> bytes | None:
    """The record; None where it is damaged or was deleted under us."""
    try:
        with entry.segment.path.open("rb") as file:
            file.seek(entry.offset)
            plain = bytes(snappy.StreamDecompressor().decompress(file.read(entry.size)))
    except (OSError, snappy.UncompressError):
        return None
    if len(plain) < _LENGTH.size or _LENGTH.unpack_from(plain)[0] != len(plain) - _LENGTH.size:
        return None
    return plain[_LENGTH.size :]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _frames(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """(offset, size, whole) of each record; what lies between is damaged, `whole` False.

    The chunks' checksums are left to `pop`.
    """
    at = 0
    while at < len(data):
        size = _frame_size(data, at)
        if size is None:
            following = data.find(_STREAM_START + _SIZE_CHUNK, at + 1)
            size = (len(data) if following < 0 else following) - at
            yield at, size, False
        else:
            yield at, size, True
        at += size


def _frame_size(data: bytes, at: int) -> int | None:
    """Size of the record that starts there; None where none does, or not all of it is there."""
    numbers = at + _HEAD_BYTES - _SIZE.size
    if len(data) < at + _HEAD_BYTES or data[at:numbers] != _STREAM_START + _SIZE_CHUNK:
        return None
    size, inverse = _SIZE.unpack_from(data, numbers)
    whole = size == ~inverse & 0xFFFFFFFF and _HEAD_BYTES < size <= len(data) - at
    return int(size) if whole else None
