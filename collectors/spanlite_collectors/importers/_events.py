"""What every reader of recorded traces hands to the assembler: rows and interned text.

A reader turns each record of its file into one tuple; chunks of them become
numpy arrays of `EVENT` rows. Text is interned, so a row holds small numbers only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind
from spanlite.schema import LAUNCH_COLUMNS

Rows: TypeAlias = npt.NDArray[Any]
I64: TypeAlias = npt.NDArray[np.int64]
U64: TypeAlias = npt.NDArray[np.uint64]

#: Rows kept as Python tuples before they become numpy.
CHUNK = 1 << 14
NO_LAUNCH = (0,) * len(LAUNCH_COLUMNS)


class BadRecordError(Exception):
    """A record that cannot become a span; the rest of its file can. `reason` is for the ledger."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


#: What reading a record of the wrong shape raises, and an attribute nested too deeply.
SHAPE_ERRORS = (
    BadRecordError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError,
    RecursionError,
)  # fmt: skip


def reason_of(error: Exception) -> str:
    """Why a record is refused whose reading raised one of SHAPE_ERRORS."""
    return error.reason if isinstance(error, BadRecordError) else "unreadable_record"


#: One row as a reader makes it: the fields of EVENT in order, `scope` last.
Row: TypeAlias = tuple[int | bool, ...]

EVENT = np.dtype(
    [
        ("kind", "u1"),
        ("start", "i8"),
        ("duration", "i8"),
        ("name", "i4"),
        ("process", "i4"),
        ("thread", "u8"),
        ("on_device", "?"),
        ("free_range", "?"),
        ("attributes", "i4"),
        ("status", "u1"),
        ("device", "i4"),
        ("context", "i8"),
        ("stream", "i8"),
        ("correlation", "u8"),
        ("external", "u8"),
        ("graph_id", "u4"),
        ("graph_node", "u8"),
        ("launch", "i4"),
        ("bytes", "u8"),
        ("copy_kind", "u1"),
        ("flags", "u4"),
        ("scope", "i4"),
    ]
)
_INT64 = 1 << 63
#: Packing a row checks all its numbers at once; the letters are numpy's, but for 64 bits.
_CHECK = struct.Struct("=" + "".join(EVENT[name].char for name in EVENT.names or ())
                       .replace("l", "q").replace("L", "Q"))  # fmt: skip
#: Where the archive holds less than the row: -1 is "none" and is stored as 0.
_MOST_DEVICE, _MOST_CONTEXT, _MOST_STREAM = (1 << 31) - 2, (1 << 32) - 2, (1 << 63) - 2


def event_row(
    kind: int,
    start: int,
    duration: int,
    name: int,
    process: int = -1,
    thread: int = 0,
    on_device: bool = False,
    free_range: bool = False,
    attributes: int = -1,
    status: int = 0,
    device: int = -1,
    context: int = -1,
    stream: int = -1,
    correlation: int = 0,
    external: int = 0,
    graph_id: int = 0,
    graph_node: int = 0,
    launch: int = 0,
    bytes: int = 0,
    copy_kind: int = 0,
    flags: int = 0,
    base_ns: int = 0,
) -> Row:
    """One row. The defaults mean "none"; `start` and `duration` are ns after `base_ns`.

    `name`, `attributes` and `launch` are numbers in Strings and Launches; `process` is the
    reader's own count (-1 on a device row: that of its launch). A device row is joined to
    its launch by `correlation`, or to an operator by `external`; any other row is nested in
    its thread. A `free_range` may overlap others of its thread (NVTX start/end), so it
    gets no children.

    Raises BadRecordError where a value is no whole number or its column cannot hold it.
    """
    check_times(start, duration, base_ns)
    row = (
        kind, start, duration, name, process, thread, on_device, free_range, attributes, status,
        device, context, stream, correlation, external, graph_id, graph_node, launch, bytes,
        copy_kind, flags, -1,
    )  # fmt: skip
    try:
        _CHECK.pack(*row)
    except struct.error:
        raise BadRecordError("unreadable_record") from None
    if not (
        -1 <= device <= _MOST_DEVICE
        and -1 <= context <= _MOST_CONTEXT
        and -1 <= stream <= _MOST_STREAM
    ):
        raise BadRecordError("unreadable_record")
    return row


def check_times(start: int, duration: int, base_ns: int) -> None:
    """Raise BadRecordError unless start, end and duration in Unix ns fit 64 bits with sign."""
    if type(start) is not int or type(duration) is not int:
        raise BadRecordError("unreadable_time")
    end = start + duration
    if not fits_int64(start, duration, end, start + base_ns, end + base_ns):
        raise BadRecordError("invalid_time")


def fits_int64(*values: int) -> bool:
    """Whether each of the numbers fits 64 bits with sign."""
    return min(values) >= -_INT64 and max(values) < _INT64


#: Kinds that open a trace of their own.
SCOPE_KINDS = (SpanKind.STEP, SpanKind.REQUEST)


def is_u32(value: Any) -> bool:
    """Whether it is a whole number that 32 bits hold."""
    return type(value) is int and 0 <= value < 1 << 32


class Strings:
    """Each distinct text once, numbered in order of first appearance."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """The number of a text. Raises BadRecordError where it is none."""
        if type(text) is not str:
            raise BadRecordError("unreadable_record")
        return self._codes.setdefault(text, len(self._codes))

    def texts(self) -> list[str]:
        """All texts; position is number."""
        return list(self._codes)


class Launches:
    """Each distinct launch configuration once; number 0 is "none"."""

    def __init__(self) -> None:
        self._codes: dict[tuple[int, ...], int] = {NO_LAUNCH: 0}

    def code(self, config: tuple[int, ...]) -> int:
        """The number of a configuration, in the order of LAUNCH_COLUMNS.

        Raises BadRecordError where it is not twelve whole numbers of 32 bits.
        """
        code = self._codes.get(config)
        if code is None:
            if len(config) != len(NO_LAUNCH) or not all(map(is_u32, config)):
                raise BadRecordError("unreadable_record")
            code = self._codes[config] = len(self._codes)
        return code

    def table(self) -> npt.NDArray[np.uint32]:
        """All configurations, shape (n, 12)."""
        return np.array(list(self._codes), dtype=np.uint32)


class EventBuffer:
    """Collects tuples and hands on numpy chunks."""

    def __init__(self, take: Callable[[Rows], None]) -> None:
        self._take = take
        self._rows: list[Row] = []

    def append(self, row: Row) -> None:
        """Add one row."""
        self._rows.append(row)
        if len(self._rows) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Hand on what is pending."""
        if self._rows:
            self._take(np.array(self._rows, dtype=EVENT))
            self._rows.clear()
