"""The way to a file: SpanBatch messages, each after its length, as they would go to Kafka."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from spanlite.drafts import Draft, FileBusyError, unused
from spanlite.errors import InputError, ServiceError

from spanlite_collectors.delivery.transport import Listener, Message

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

#: A file of such a name is compressed as a whole.
ZSTD_SUFFIX = ".zst"
#: Compression starts a new block at each flush, so not at each message.
FLUSH_EVERY_S = 0.2
_FLUSH_BYTES = 16 << 20


class _Disk(io.RawIOBase):
    """The file. After an error it takes everything and writes nothing more.

    Arrow's stream writes once more when it is let go of, and would print what that meets.
    """

    def __init__(self, path: Path, *, patient: bool) -> None:
        # Opening a pipe waits for its reader, and no signal ends that in a daemon.
        wait = 0 if patient or not path.is_fifo() else os.O_NONBLOCK
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | wait, 0o666)
        os.set_blocking(number, True)
        self._file = os.fdopen(number, "wb", buffering=0)
        self._failed = False

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view) and not self._failed:
            try:
                done += self._file.write(view[done:]) or 0
            except OSError:
                self._failed = True
                raise
        return len(view)

    def close(self) -> None:
        if not self._file.closed:
            self._file.close()
        super().close()


class FileTransport:
    """Writes messages in protobuf's delimited form; `close` puts the file into its place.

    Until then it is `.NAME.part`, whose whole messages can be read, too: all that were told as
    delivered. `keep`: no earlier file is replaced, nor what a killed process left of one; this
    one gets the next free name. Raises InputError where the file cannot be written.
    """

    def __init__(
        self, path: Path, *, keep: bool = False, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._keep, self._say = keep, say
        self._broken: ServiceError | None = None
        self._written: list[Message] = []
        self._written_bytes = 0
        self._next_flush = 0.0
        try:
            self.path, self._draft = _begin(path, keep)
            self._disk = _Disk(self._draft.path, patient=not keep)
        except OSError as error:
            raise InputError(f"'{path}' cannot be written: {_reason(error)}") from None
        if self.path != path:
            say(f"'{path}' is there already, or being written; this goes into '{self.path}'")
        self._file: Any = self._disk
        if path.suffix == ZSTD_SUFFIX:
            self._file = pa.CompressedOutputStream(pa.PythonFile(self._disk, "w"), "zstd")

    def ready(self) -> bool:
        """Always."""
        return True

    def send(self, message: Message) -> None:
        """Write it. Raises ServiceError where the disk is full or gone."""
        self._do(lambda: self._file.write(varint(len(message.payload)) + message.payload))
        self._written.append(message)
        self._written_bytes += len(message.payload)

    def poll(self, listener: Listener) -> None:
        """Tell what is on the disk."""
        early = time.monotonic() < self._next_flush and self._written_bytes < _FLUSH_BYTES
        if early or not self._written:
            return
        self._do(self._file.flush)
        self._next_flush = time.monotonic() + FLUSH_EVERY_S
        done, self._written, self._written_bytes = self._written, [], 0
        for message in done:
            listener.delivered(message)

    def close(self) -> None:
        """Put the file into its place; after an error it stays a draft.

        Raises ServiceError where the error is a new one.
        """
        try:
            if self._broken is None:
                self._do(self._end)
                self._do(self._put)
        finally:
            with contextlib.suppress(OSError):
                self._end()
            self._draft.release()

    def _put(self) -> None:
        if not self._keep:
            self._draft.put()
            return
        name = self._draft.put_beside()
        if name != self.path:
            self._say(f"'{self.path}' has come meanwhile; this is '{name}'")

    def discard(self) -> None:
        """Leave no file, and one that was there before as it is."""
        with contextlib.suppress(OSError):
            self._end()
        self._draft.discard()

    def _end(self) -> None:
        try:
            self._file.close()
        finally:
            self._disk.close()

    def _do(self, work: Callable[[], object]) -> None:
        """After an error nothing more is written: behind a torn message nothing can be read."""
        if self._broken is not None:
            raise self._broken
        try:
            work()
        except OSError as error:
            left = ""
            if self._keep and self._draft.path != self.path and self._draft.path.exists():
                left = f"; `spanlite import` takes what was written, in '{self._draft.path}'"
            self._broken = ServiceError(f"'{self.path}' cannot be written: {_reason(error)}{left}")
            raise self._broken from None


def _begin(path: Path, keep: bool) -> tuple[Path, Draft]:
    while keep:
        chosen = unused(path)
        try:
            return chosen, Draft(chosen)
        except FileBusyError:
            continue  # another one was faster
    return path, Draft(path)


def _reason(error: OSError) -> str:
    if error.errno == errno.ENXIO:
        return "it is a pipe that nobody reads; start its reader first"
    return os.strerror(error.errno) if error.errno else str(error)


def varint(value: int) -> bytes:
    """A length as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
