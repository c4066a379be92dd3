"""Decoded batches to finished Parquet files of the archive.

    builder = SpanFileBuilder()
    builder.add(view, rows, weights)             # as often as needed
    for hour_folder, data, rows in builder.finish():
        ...                                      # one file an hour

Everything here is bytes in memory; who writes them where is the caller's business.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from spanlite.archive._columns import Array, constant
from spanlite.archive._parquet import FAST, Effort, write_columns
from spanlite.archive._rows import Piece, Rows
from spanlite.archive._sites import Column, rows_of
from spanlite.archive.layout import NS_PER_HOUR, hour_folder
from spanlite.archive.schema import SCHEMA_VERSION, SCHEMA_VERSION_KEY
from spanlite.codec import BatchView
from spanlite.errors import ArchiveError


class SpanFileBuilder:
    """Collects spans of one bucket and makes one sorted Parquet file for each hour."""

    def __init__(self, effort: Effort = FAST) -> None:
        self._effort = effort
        self._pieces: list[Piece] = []
        self.rows = 0

    def add(
        self,
        view: BatchView,
        rows: Array | None = None,
        weights: float | npt.NDArray[np.float64] = 1.0,
    ) -> None:
        """Add spans of a batch: those at `rows` (indexes or a mask; None: all).

        `weights`: the sampling weight of each chosen span, shape (number chosen,), or
        one for all.
        """
        if rows is not None and rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        count = view.count if rows is None else len(rows)
        if count == 0:
            return
        is_array = isinstance(weights, np.ndarray) and weights.ndim > 0
        each = np.asarray(weights, np.float64) if is_array else constant(np.float64(weights), count)
        if len(each) != count:
            raise ValueError(f"{len(each)} weights for {count} spans")
        self._pieces.append(Piece(view, rows, each))
        self.rows += count

    def finish(self) -> list[tuple[str, bytes, int]]:
        """(hour folder, Parquet bytes, rows) of each hour, in order; the builder is empty then."""
        pieces, self._pieces, self.rows = self._pieces, [], 0
        if not pieces:
            return []
        rows = Rows(pieces)
        columns = rows.columns()
        hours = rows.start_ns // NS_PER_HOUR
        first, last = int(hours.min()), int(hours.max())
        if first == last:
            return [self._file(columns, first, len(rows))]
        out = []
        for hour in np.unique(hours):
            chosen = np.flatnonzero(hours == hour)
            part = {name: rows_of(column, chosen) for name, column in columns.items()}
            out.append(self._file(part, int(hour), len(chosen)))
        return out

    def _file(self, columns: Mapping[str, Column], hour: int, count: int) -> tuple[str, bytes, int]:
        return hour_folder(hour * NS_PER_HOUR), write_columns(columns, count, self._effort), count


def write_table(
    table: pa.Table, schema: pa.Schema, metadata: Mapping[bytes, bytes] | None = None
) -> bytes:
    """A small table (traces, kernel_minutes, ledger) as Parquet bytes in that schema.

    `metadata`: further entries of the Parquet metadata. Raises ArchiveError where a column
    is missing, of another type, or null where it may not be.
    """
    columns = []
    for item in schema:
        if item.name not in table.column_names:
            raise ArchiveError(f"cannot write the table: column '{item.name}' is missing")
        column = _fit(table.column(item.name), item)
        if column.null_count and not item.nullable:
            raise ArchiveError(f"cannot write the table: column '{item.name}' holds nulls")
        columns.append(column)
    sink = pa.BufferOutputStream()
    entries = {SCHEMA_VERSION_KEY: SCHEMA_VERSION.encode(), **(metadata or {})}
    fitted = pa.Table.from_arrays(columns, schema=schema.with_metadata(entries))
    pq.write_table(fitted.combine_chunks(), sink, compression="zstd", version="2.6")
    return bytes(sink.getvalue().to_pybytes())


def _fit(column: pa.ChunkedArray, item: pa.Field) -> pa.ChunkedArray:
    if column.type == item.type:
        return column.unify_dictionaries()
    try:
        if pa.types.is_dictionary(item.type):
            plain = column.cast(item.type.value_type)
            return plain.dictionary_encode().unify_dictionaries()
        return column.cast(item.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ArchiveError(f"cannot write the table: column '{item.name}': {error}") from None
