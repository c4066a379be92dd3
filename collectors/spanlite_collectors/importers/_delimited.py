"""Files of delimited SpanBatch messages, plain or compressed with zstd."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from spanlite.errors import InputError

from spanlite_collectors.importers._files import Progress, no_progress

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: A batch lies in memory whole, so one that claims more is not one of ours.
_MAX_MESSAGE_BYTES = 64 << 20


def read_messages(path: Path, progress: Progress = no_progress) -> Iterator[bytes]:
    """The messages of a file. Raises InputError where it is cut off, damaged or none of ours."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC
            raw.seek(0)
            source = pa.PythonFile(raw, "r")
            stream = pa.CompressedInputStream(source, "zstd") if packed else source
            file = io.BufferedReader(stream)
            while size := _read_length(file, path):
                payload = file.read(size) if size <= _MAX_MESSAGE_BYTES else b""
                if len(payload) != size:
                    raise _cut_off(path)
                yield payload
                progress(raw.tell())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; copy it again") from None


def first_message(head: bytes) -> bytes:
    """What follows the first length, maybe cut; nothing where there is none."""
    value = shift = 0
    for at, byte in enumerate(head[:5]):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return head[at + 1 : at + 1 + value]
    return b""


def _cut_off(path: Path) -> InputError:
    return InputError(f"'{path}' is cut off, or holds no length-delimited messages")


def _read_length(file: BinaryIO, path: Path) -> int:
    """The length before a message; 0 at the end of the file."""
    value = shift = 0
    while byte := file.read(1):
        value |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            return value
        if shift > 35:
            break
    if shift:
        raise _cut_off(path)
    return 0
