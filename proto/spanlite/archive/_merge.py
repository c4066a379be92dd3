"""Many sorted files of a unit into one, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spanlite.archive._columns import MAX_DISTINCT, Array, Coded, Numbers
from spanlite.archive._parquet import SpanFileStream
from spanlite.archive._rows import sort_rows
from spanlite.archive._sites import Column, rows_of
from spanlite.archive.layout import SPANS as SPANS_TABLE
from spanlite.archive.reader import conform, open_file
from spanlite.archive.schema import SPANS

#: Rows sorted at a time; some 300 bytes each while they are.
MERGE_ROWS = 1_000_000

#: Columns whose values nearly all differ: written as differences, never as a dictionary.
_DENSE = frozenset({"span_id", "parent_span_id", "start_ns", "duration_ns", "correlation_id"})


@dataclass(frozen=True)
class _Group:
    """One row group of a file: its rows, and its first and last trace id."""

    path: Path
    index: int
    rows: int
    first: str
    last: str


def merge_files(paths: Sequence[Path], stream: SpanFileStream) -> None:
    """Write the rows of all these files, sorted, into the stream.

    They are taken in ranges of trace ids, so that about MERGE_ROWS are in memory at once
    (more only where a single trace has more). Raises FileNotFoundError where one vanished.
    """
    groups = [group for path in paths for group in _groups(path)]
    for first, last in _ranges(groups):
        table = _read_range(groups, first, last)
        columns, count = sorted_columns(table), table.num_rows
        stream.add(columns, count)


def _groups(path: Path) -> Iterator[_Group]:
    with open_file(path, SPANS_TABLE) as file:
        for index in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(index)
            first, last = group_extremes(file, index)
            yield _Group(path, index, group.num_rows, first, last)


def group_extremes(file: pq.ParquetFile, index: int) -> tuple[str, str]:
    """First and last trace id of a row group, from its statistics."""
    statistics = file.metadata.row_group(index).column(0).statistics
    if statistics is None or not statistics.has_min_max:
        return "", "g"  # below and above all hex digits
    return statistics.min, statistics.max


def _ranges(groups: Sequence[_Group]) -> Iterator[tuple[str, str | None]]:
    """Ranges of trace ids, first inclusive, last exclusive (None: to the end)."""
    bounds, rows = [""], 0
    for group in sorted(groups, key=lambda group: group.first):
        if rows >= MERGE_ROWS and group.first > bounds[-1]:
            bounds.append(group.first)
            rows = 0
        rows += group.rows
    yield from zip(bounds, [*bounds[1:], None], strict=True)


def _read_range(groups: Sequence[_Group], first: str, last: str | None) -> pa.Table:
    by_path: dict[Path, list[int]] = {}
    for group in groups:
        if group.last >= first and (last is None or group.first < last):
            by_path.setdefault(group.path, []).append(group.index)
    parts = [SPANS.empty_table()]
    for path, indexes in by_path.items():
        with open_file(path, SPANS_TABLE) as file:
            table = conform(file.read_row_groups(indexes, use_threads=False), SPANS)
        parts.append(_between(table, first, last))
    return pa.concat_tables(parts)


def _between(table: pa.Table, first: str, last: str | None) -> pa.Table:
    if first == "" and last is None:
        return table
    condition = pc.field("trace_id").cast(pa.string()) >= first
    if last is not None:
        condition = condition & (pc.field("trace_id").cast(pa.string()) < last)
    return table.filter(condition)


def sorted_columns(table: pa.Table) -> dict[str, Column]:
    """A table in SPANS as columns for a file, sorted by trace_id, start_ns, span_id."""
    table = table.unify_dictionaries().combine_chunks()
    columns = {item.name: _column(table, item) for item in SPANS}
    order = sort_rows(
        _sorted_words(columns),
        table.column("start_ns").to_numpy(),
        table.column("span_id").to_numpy(),
    )
    return {name: rows_of(column, order) for name, column in columns.items()}


def _sorted_words(columns: dict[str, Column]) -> Array:
    """Give trace_id its words in sorted order; returns its codes."""
    ids = columns["trace_id"]
    assert isinstance(ids, Coded)
    order = pc.sort_indices(ids.words).to_numpy()
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order))
    codes = rank[ids.codes]
    columns["trace_id"] = Coded(codes, ids.words.take(pa.array(order)))
    return codes


def _column(table: pa.Table, item: pa.Field) -> Column:
    chunks = table.column(item.name).chunks
    column = chunks[0] if chunks else pa.array([], item.type)
    if pa.types.is_list(item.type):
        return column
    if item.name in _DENSE:
        return _numbers(column)
    if not pa.types.is_dictionary(item.type):
        encoded = column.dictionary_encode()
        if len(encoded.dictionary) > MAX_DISTINCT:
            return _numbers(column)
        return Coded(_codes(encoded), encoded.dictionary.to_numpy())
    return Coded(_codes(column), column.dictionary)


def _codes(column: pa.DictionaryArray) -> Array:
    codes: Array = column.indices.fill_null(-1).to_numpy()
    return codes


def _numbers(column: pa.Array) -> Numbers:
    if column.null_count == 0:
        return Numbers(column.to_numpy())
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return Numbers(pc.fill_null(column, 0).to_numpy(), valid)
