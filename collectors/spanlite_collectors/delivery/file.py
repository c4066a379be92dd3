"""The way to a file: SpanBatch messages, each after its length, as they would go to Kafka."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
from spanlite.drafts import discard, draft_of, put
from spanlite.errors import InputError, ServiceError

from spanlite_collectors.delivery.transport import Listener, Message

#: A file of such a name is compressed as a whole.
ZSTD_SUFFIX = ".zst"
#: Compression starts a new block at each flush, so not at each message.
FLUSH_EVERY_S = 1.0


class FileTransport:
    """Writes messages in protobuf's delimited form; `close` puts the file into its place.

    Until then it is `.NAME.part`, whose whole messages can be read, too: all but those of the last
    second. Raises InputError where the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._draft = path, draft_of(path)
        self._done: list[Message] = []
        self._to_flush, self._next_flush = False, 0.0
        try:
            self._raw = pa.OSFile(str(self._draft), "wb")
        except OSError as error:
            raise InputError(f"'{path}' cannot be written: {_reason(error)}") from None
        packed = path.suffix == ZSTD_SUFFIX
        self._file = pa.CompressedOutputStream(self._raw, "zstd") if packed else self._raw

    def ready(self) -> bool:
        """Always."""
        return True

    def _flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> ServiceError:
        return ServiceError(f"'{self._path}' cannot be written: {_reason(error)}")

    def send(self, message: Message) -> None:
        """Write it. Raises ServiceError where the disk is full or gone."""
        try:
            self._file.write(varint(len(message.payload)) + message.payload)
        except OSError as error:
            raise self._failed(error) from None
        self._done.append(message)

    def poll(self, listener: Listener) -> None:
        """Tell what is written."""
        done, self._done = self._done, []
        self._to_flush = self._to_flush or bool(done)
        if self._to_flush and time.monotonic() >= self._next_flush:
            self._flush()
            self._next_flush = time.monotonic() + FLUSH_EVERY_S
            self._to_flush = False
        for message in done:
            listener.delivered(message)

    def close(self) -> None:
        """Put the file into its place."""
        self._end()
        put(self._draft, self._path)

    def discard(self) -> None:
        """Leave no file, and one that was there before as it is."""
        try:
            self._end()
        finally:
            discard(self._draft, self._path)

    def _end(self) -> None:
        self._file.close()
        if not self._raw.closed:
            self._raw.close()


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def varint(value: int) -> bytes:
    """A length as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
