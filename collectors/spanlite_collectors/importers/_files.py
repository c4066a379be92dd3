"""Reading a source file once: unpacked bytes, a digest of the packed ones, progress."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Self

from spanlite.errors import InputError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: Called with the bytes of the file read so far.
Progress = Callable[[int], None]
GZIP_MAGIC = b"\x1f\x8b"
_BLOCK = 1 << 20


def no_progress(_: int) -> None:
    """Report nothing."""


class _Hashing(io.RawIOBase):
    """The raw file; hashes what passes through."""

    def __init__(self, path: Path, progress: Progress) -> None:
        self._file = path.open("rb")
        self._hash = blake2b(digest_size=16)
        self._progress = progress
        self._done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        count = self._file.readinto(view)
        self._hash.update(view[:count])
        self._done += count
        self._progress(self._done)
        return count

    def digest(self) -> bytes:
        while block := self._file.read(_BLOCK):
            self._hash.update(block)
        return self._hash.digest()

    def close(self) -> None:
        self._file.close()
        super().close()


class SourceFile:
    """A file to import, unpacked where it is gzip."""

    def __init__(self, path: Path, progress: Progress = no_progress) -> None:
        self.path = path
        try:
            self._raw = _Hashing(path, progress)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; check the path") from None
        buffered = io.BufferedReader(self._raw, _BLOCK)
        packed = buffered.peek(2)[:2] == GZIP_MAGIC
        self._data: io.BufferedIOBase = gzip.GzipFile(fileobj=buffered) if packed else buffered
        self.position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._data.close()
        self._raw.close()

    def read(self, size: int = _BLOCK) -> bytes:
        """Up to `size` unpacked bytes; none at the end. Raises InputError on bad gzip."""
        try:
            data = self._data.read1(size)  # what is there, so that damage is met late
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{self.path}: damaged gzip after {self.position} unpacked bytes ({error}); "
                "copy the file again from where it was made"
            ) from None
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror} at {self.position}") from None
        self.position += len(data)
        return data

    def blocks(self) -> Iterator[bytes]:
        """All unpacked bytes, in blocks."""
        while block := self.read():
            yield block

    def lines(self) -> Iterator[bytes]:
        """All lines, without their ends."""
        rest = b""
        for block in self.blocks():
            *whole, rest = (rest + block).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def digest(self) -> bytes:
        """16 bytes that name the content of the file as it lies on disk."""
        return self._raw.digest()


def peek(path: Path, size: int = 1 << 16) -> bytes:
    """The first unpacked bytes. Raises InputError where the file cannot be read or is empty."""
    if path.is_dir():
        raise InputError(f"{path}: a folder; give the files in it")
    with SourceFile(path) as source:
        head = source.read(size)
    if not head.strip():
        raise InputError(f"{path}: empty; nothing to import")
    return head


def file_digest(path: Path, progress: Progress = no_progress) -> bytes:
    """The digest of a whole file, for readers that do not read it front to back."""
    with SourceFile(path, progress) as source:
        return source.digest()
