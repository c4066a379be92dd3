"""Files of delimited SpanBatch messages, plain or compressed with zstd."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from spanlite.errors import InputError

from spanlite_collectors.importers._files import Progress, no_progress

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: A batch lies in memory whole, so one that claims more is not one of ours.
_MAX_MESSAGE_BYTES = 64 << 20


class CutOffError(InputError):
    """The file ends within a message, after so many whole ones."""

    def __init__(self, path: Path, messages: int) -> None:
        super().__init__(
            f"'{path}' is cut off after {messages} messages; copy it again"
            if messages
            else f"'{path}' is cut off, or holds no length-delimited messages"
        )


def read_messages(path: Path, progress: Progress = no_progress) -> Iterator[bytes]:
    """The messages of a file. Raises InputError where it is damaged or none of ours.

    Raises CutOffError, which is one, after the last whole message of a file that is cut off.
    """
    count = 0
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC
            raw.seek(0)
            # Read by the message and not by the buffer, whose last one would be lost at a cut.
            file = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd") if packed else raw
            while size := _read_length(file, path, count):
                if size > _MAX_MESSAGE_BYTES:
                    raise InputError(f"'{path}' is damaged, or holds no length-delimited messages")
                payload = file.read(size)
                if len(payload) != size:
                    raise CutOffError(path, count)
                count += 1
                yield payload
                progress(raw.tell())
    except OSError as error:
        if "Truncated" in str(error):  # Arrow's word, which has no number
            raise CutOffError(path, count) from None
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


def _read_length(file: BinaryIO, path: Path, count: int) -> int:
    """The length before message `count`; 0 at the end of the file."""
    value = shift = 0
    while byte := file.read(1):
        value |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            return value
        if shift > 35:
            break
    if shift:
        raise CutOffError(path, count)
    return 0
