"""The bytes that cross between Java and Python; see `MessageReader` and `Outputs` in Java."""

from __future__ import annotations

import struct
from dataclasses import dataclass

#: bucket, partition, offset, timestamp in ms; then the message as it is.
_HEAD = struct.Struct(">iiqq")

FILE, DEAD_LETTER, TABLE_ROWS = 0, 1, 2

#: (kind, bytes), as it leaves a Python function.
Output = tuple[int, bytes]


@dataclass(frozen=True)
class Message:
    """One Kafka record and where it lay; of no partition (-1): see WakeUp in Java."""

    bucket: int
    partition: int
    offset: int
    timestamp_ms: int
    value: bytes

    @property
    def is_wake_up(self) -> bool:
        """Whether it only tells a bucket that the job has started."""
        return self.partition < 0


def read_message(frame: bytes) -> Message:
    """Take a frame of the source apart."""
    bucket, partition, offset, timestamp_ms = _HEAD.unpack_from(frame)
    return Message(bucket, partition, offset, timestamp_ms, frame[_HEAD.size :])


def write_message(message: Message) -> bytes:
    """Inverse of `read_message`; the job itself has Java do it."""
    head = (message.bucket, message.partition, message.offset, message.timestamp_ms)
    return _HEAD.pack(*head) + message.value


def file_output(folder: str, content: bytes) -> Output:
    """A finished file for that folder of the archive."""
    return FILE, folder.encode() + b"\n" + content


def read_file_output(payload: bytes) -> tuple[str, bytes]:
    """(folder, content) of a file output."""
    folder, _, content = payload.partition(b"\n")
    return folder.decode(), content


#: Tells the small tables that the job has started.
WAKE_UP: Output = (TABLE_ROWS, b"\n")


def table_output(table: str, rows: bytes) -> Output:
    """Rows of a small table (Arrow IPC), to be merged with those of other buckets."""
    return TABLE_ROWS, table.encode() + b"\n" + rows
