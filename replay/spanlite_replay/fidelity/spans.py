"""Spans as numpy columns, for what compares or analyses whole recordings."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.kinds import DEVICE_KINDS, KIND_WORDS, SpanKind

from spanlite_replay.recording import hex_to_halves

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
BOOL = npt.NDArray[np.bool_]

#: What `Spans.of` reads; further columns of the table are kept in `table`.
COLUMNS = (
    "trace_id",
    "span_id",
    "parent_span_id",
    "start_ns",
    "duration_ns",
    "kind",
    "name",
    "process_id",
    "thread_id",
    "device",
    "context",
    "stream",
    "correlation_id",
)


@dataclass(frozen=True)
class Spans:
    """Rows of the archive's `spans` table. Arrays have shape (rows,); -1 says "none"."""

    table: pa.Table
    trace_low: U64
    trace_high: U64
    span_id: U64
    parent_id: U64  # 0: none
    start_ns: I64
    end_ns: I64
    kind: npt.NDArray[np.int16]  # SpanKind; -1: a word this version does not know
    name: I64  # index into `names`
    process: I64
    thread: I64
    device: I64
    context: I64
    stream: I64
    correlation: I64
    names: list[str] = field(repr=False)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> I64:
        """Ends minus starts; a negative duration of the source counts as 0."""
        return self.end_ns - self.start_ns

    @classmethod
    def of(cls, table: pa.Table) -> Spans:
        """Read the columns. A duration below 0 is taken for 0: its flag says that it is odd."""
        low, high = _trace_ids(table)
        kinds, words = _codes(table, "kind")
        known = {word: number for number, word in enumerate(KIND_WORDS)}
        as_kind = np.array([known.get(word, -1) for word in words] or [0], np.int16)
        name, names = _codes(table, "name")
        start = _integers(table, "start_ns")
        return cls(
            table,
            low,
            high,
            _integers(table, "span_id").view(np.uint64),
            _integers(table, "parent_span_id", none=0).view(np.uint64),
            start,
            start + np.maximum(_integers(table, "duration_ns"), 0),
            as_kind[kinds],
            name,
            _integers(table, "process_id"),
            _integers(table, "thread_id"),
            _integers(table, "device"),
            _integers(table, "context"),
            _integers(table, "stream"),
            _integers(table, "correlation_id"),
            names,
        )

    def is_kind(self, *kinds: SpanKind) -> BOOL:
        """Which rows are of one of the kinds. Shape (rows,)."""
        return np.isin(self.kind, kinds)

    @property
    def on_device(self) -> BOOL:
        """Kernels, copies, memsets and graphs recorded as one. Shape (rows,)."""
        return self.is_kind(*DEVICE_KINDS)

    def parent_rows(self) -> I64:
        """The row of each row's parent, -1 where it has none here. Shape (rows,)."""
        keys = self.trace_low, self.trace_high
        row, _, _ = match_rows((*keys, self.parent_id), (*keys, self.span_id))
        return np.where(self.parent_id == 0, -1, row)

    def tracks(self) -> tuple[I64, I64]:
        """(track of each row, a row of each track); a track is a stream of a process."""
        return group_rows(self.process, self.device, self.context, self.stream)


def group_rows(*keys: npt.NDArray[np.generic]) -> tuple[I64, I64]:
    """(group of each row, a row of each group) of rows that agree in all keys."""
    count = len(keys[0])
    if not count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.lexsort(keys[::-1])
    new = np.zeros(count, np.bool_)
    new[0] = True
    for key in keys:
        sorted_key = key[order]
        new[1:] |= sorted_key[1:] != sorted_key[:-1]
    group = np.empty(count, np.int64)
    group[order] = np.cumsum(new) - 1
    return group, order[new]


def match_rows(left: tuple[U64, ...], right: tuple[U64, ...]) -> tuple[I64, int, int]:
    """For each left row the first right row of the same keys, or -1; repeats; strangers."""
    count = len(left[0])
    keys = [np.concatenate(both) for both in zip(left, right, strict=True)]
    order = np.lexsort(keys)
    new = np.zeros(len(order), np.bool_)
    new[:1] = True
    for key in keys:
        new[1:] |= key[order][1:] != key[order][:-1]
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(new) - 1
    first = np.full(int(new.sum()), -1, np.int64)
    theirs = group[count:]
    first[theirs[::-1]] = np.arange(len(theirs))[::-1]  # of several the first one stays
    is_first = first[theirs] == np.arange(len(theirs))
    ours = np.zeros(len(first), np.bool_)
    ours[group[:count]] = True
    return first[group[:count]], int((~is_first).sum()), int((is_first & ~ours[theirs]).sum())


def union_ns(start: I64, end: I64) -> int:
    """Length of the union of intervals."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    before = np.concatenate((start[:1], reached[:-1]))
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


def _integers(table: pa.Table, name: str, none: int = -1) -> I64:
    if name not in table.column_names:
        return np.full(len(table), none, np.int64)
    column = table.column(name)
    values = (column.fill_null(none) if column.null_count else column).to_numpy()
    return np.ascontiguousarray(values).astype(np.int64, copy=False)


def _codes(table: pa.Table, name: str) -> tuple[I64, list[str]]:
    if not len(table):
        return np.empty(0, np.int64), []
    column = table.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    return array.indices.to_numpy().astype(np.int64), array.dictionary.to_pylist()


def _trace_ids(table: pa.Table) -> tuple[U64, U64]:
    codes, words = _codes(table, "trace_id")
    if not words:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    low, high = hex_to_halves(pa.array(words, pa.string()))
    return low[codes], high[codes]
