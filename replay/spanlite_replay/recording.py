"""A recording: the spans of one window of an archive, as whole traces, ready to plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from spanlite.archive import schema
from spanlite.archive.layout import NS_PER_HOUR, hour_start_ns
from spanlite.archive.reader import ArchiveReader
from spanlite.errors import ArchiveError, UsageError
from spanlite.kinds import KIND_WORDS
from spanlite.timewindow import TimeWindow, format_time

from spanlite_replay import _columns
from spanlite_replay._columns import factorise as factorise

#: Columns that every plan needs; `dry` reads no others.
PLAN_COLUMNS = ("trace_id", "span_id", "start_ns", "duration_ns", "kind", "name", "service")
#: Spans are looked for this far outside the window, so that traces at its edges are whole.
MARGIN_NS = 3_600_000_000_000
#: 146 years to either side of 1970: within it, sums and differences of times fit 64 bits.
FAR_NS = 2**62


@dataclass(frozen=True)
class Recording:
    """Whole traces. Row arrays have shape (rows,), trace arrays (traces,), sorted by id."""

    table: pa.Table
    trace_low: npt.NDArray[np.uint64]
    trace_high: npt.NDArray[np.uint64]
    trace: npt.NDArray[np.int64]
    span_id: npt.NDArray[np.uint64]
    start_ns: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]
    #: Traces that were not read, since no clock can have shown their times.
    left_out: int = 0

    @property
    def traces(self) -> int:
        """How many traces."""
        return len(self.trace_low)

    @classmethod
    def from_table(cls, table: pa.Table) -> Recording:
        """From rows of the archive's `spans` table; every row is taken."""
        column = table.column("trace_id")
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        column = column.unify_dictionaries().combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # no chunk at all
            column = pa.array([], pa.string()).dictionary_encode()
        low, high, rank = _parse_ids(column.dictionary)
        return cls(
            table,
            low,
            high,
            rank[column.indices.to_numpy()] if len(table) else np.empty(0, np.int64),
            _numpy(table, "span_id").view(np.uint64),
            _numpy(table, "start_ns"),
            _numpy(table, "duration_ns"),
        ).only_used_traces()

    def only_used_traces(self) -> Recording:
        """The same without traces that no row has."""
        used = np.bincount(self.trace, minlength=self.traces) > 0
        if used.all():
            return self
        index = np.cumsum(used) - 1
        return Recording(
            self.table,
            self.trace_low[used],
            self.trace_high[used],
            index[self.trace],
            self.span_id,
            self.start_ns,
            self.duration_ns,
        )

    def take(self, keep: npt.NDArray[np.bool_]) -> Recording:
        """The rows of the traces in `keep`, shape (traces,)."""
        rows = keep[self.trace]
        return Recording(
            self.table.filter(pa.array(rows)),
            self.trace_low,
            self.trace_high,
            self.trace[rows],
            self.span_id[rows],
            self.start_ns[rows],
            self.duration_ns[rows],
        ).only_used_traces()

    def trace_starts(self) -> npt.NDArray[np.int64]:
        """The first start of each trace, shape (traces,)."""
        first = np.full(self.traces, np.iinfo(np.int64).max, dtype=np.int64)
        np.minimum.at(first, self.trace, self.start_ns)
        return first

    def beyond_time(self) -> npt.NDArray[np.bool_]:
        """Which traces hold a span whose start, end or duration is centuries away. (traces,)."""
        start, duration = self.start_ns, self.duration_ns
        far = (start <= -FAR_NS) | (start >= FAR_NS) | (duration <= -FAR_NS) | (duration >= FAR_NS)
        end = np.where(far, 0, start) + np.where(far, 0, duration)
        far |= (end <= -FAR_NS) | (end >= FAR_NS)
        return np.bincount(self.trace[far], minlength=self.traces) > 0

    def dictionary(self, name: str) -> tuple[_columns.AnyInt, list[str]]:
        """A text column as (code of each row, words); null is a word of its own, ""."""
        codes, words = _columns.dictionary(self.table.column(name))
        return codes, [word or "" for word in words.to_pylist()]

    def kinds(self) -> npt.NDArray[np.uint8]:
        """`SpanKind` of each row; 0 for a word that this version does not know."""
        codes, words = self.dictionary("kind")
        known = {word: number for number, word in enumerate(KIND_WORDS)}
        return np.array([known.get(word, 0) for word in words], dtype=np.uint8)[codes]

    def integers(
        self, name: str, rows: npt.NDArray[np.int64], null: int = -1
    ) -> npt.NDArray[np.int64]:
        """A column of numbers at `rows`, same shape."""
        values, valid = _columns.numbers(self.table.column(name))
        picked = values[rows].astype(np.int64)
        if valid is not None:
            picked[~valid[rows]] = null
        return picked

    def is_null(
        self, name: str, rows: npt.NDArray[np.int64] | slice = slice(None)
    ) -> npt.NDArray[np.bool_]:
        """Where a column says "none" at `rows`, same shape."""
        column = self.table.column(name)
        if not column.null_count:
            return np.zeros(len(column), dtype=np.bool_)[rows]
        if pa.types.is_integer(column.type):
            valid = _columns.numbers(column)[1]
            assert valid is not None
            return ~valid[rows]
        return np.asarray(column.is_null().to_numpy(), dtype=np.bool_)[rows]

    def is_kind(self, word: str) -> npt.NDArray[np.bool_]:
        """Which rows are of a kind, such as `request`. Shape (rows,)."""
        mask = pc.equal(self.table.column("kind").cast(pa.string()), word)
        return np.asarray(mask.to_numpy(), dtype=np.bool_)


def read_recording(
    reader: ArchiveReader, window: TimeWindow, columns: Sequence[str] | None = PLAN_COLUMNS
) -> Recording:
    """The traces whose first span starts in the window, each whole.

    A trace that started more than an hour before the window, and still runs in it, is not
    told from one that starts in it. `columns` None: all. Raises UsageError where the window
    is empty, naming what the archive holds.
    """
    wide = TimeWindow(
        None if window.from_ns is None else window.from_ns - MARGIN_NS,
        None if window.to_ns is None else window.to_ns + MARGIN_NS,
    )
    names = schema.SPANS.names if columns is None else list(columns)
    wanted = pa.schema([schema.SPANS.field(name) for name in names])
    table = pa.Table.from_batches(list(reader.scan(wide, names)), wanted)
    found = Recording.from_table(table)
    far = found.beyond_time()
    left_out = int(far.sum())
    found = found.take(~far) if left_out else found
    starts = found.trace_starts()
    inside = np.ones(found.traces, dtype=np.bool_)
    if window.from_ns is not None:
        inside &= starts >= window.from_ns
    if window.to_ns is not None:
        inside &= starts < window.to_ns
    if not inside.any():
        raise UsageError(f"no trace starts in {window}; {_extent(reader)}")
    found = found if inside.all() else found.take(inside)
    return replace(found, left_out=left_out) if left_out else found


def _extent(reader: ArchiveReader) -> str:
    root, hours = reader.archive.root, reader.hours()
    if not hours:
        return f"'{root}' holds no spans at all"
    first = format_time(hour_start_ns(hours[0]))
    last = format_time(hour_start_ns(hours[-1]) + NS_PER_HOUR)
    return f"'{root}' has spans from {first} to {last}: choose --from and --to within"


def _numpy(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    values = table.column(name).to_numpy()
    return np.ascontiguousarray(values, dtype=np.int64)


def _parse_ids(
    texts: pa.Array,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """(low, high) sorted by id, and for each text its place there."""
    low, high = hex_to_halves(texts)
    order = np.lexsort((low, high))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return low[order], high[order], rank


def hex_to_halves(texts: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """(low, high) of trace ids of 32 hex digits each, shape (n,)."""
    try:
        raw = bytes.fromhex(_joined(texts))
        halves = np.frombuffer(raw, dtype=">u8").reshape(len(texts), 2).astype(np.uint64)
    except ValueError:
        raise ArchiveError("a trace_id of the archive is not 32 hex digits") from None
    return halves[:, 1].copy(), halves[:, 0].copy()


def _joined(texts: pa.Array) -> str:
    """All in one, as they lie in the buffer; without that, one by one."""
    if pa.types.is_string(texts.type) and not texts.null_count and texts.offset == 0 and len(texts):
        _, offsets, data = texts.buffers()
        first, last = np.frombuffer(offsets, np.int32)[[0, len(texts)]].tolist()
        if data is not None:
            return str(data[first:last].to_pybytes(), "ascii", "replace")
    return "".join(texts.to_pylist())
