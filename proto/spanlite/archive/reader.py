"""Reading an archive: whole tables, windows of spans, one trace by its id.

    reader = ArchiveReader("archive")
    reader.find_trace(low, high)                       # all spans of a trace
    for batch in reader.scan(from_ns, to_ns): ...      # every span of a window once

Safe while a job writes and a compaction runs: see `spanlite.archive.files`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spanlite.archive import files, schema
from spanlite.archive.layout import KERNEL_MINUTES, LEDGER, SPANS, TRACES, Archive
from spanlite.bucket import bucket_of
from spanlite.errors import ArchiveError, UsageError
from spanlite.ids import format_trace_id
from spanlite.timewindow import ALL_TIME, TimeWindow

SCHEMAS: dict[str, pa.Schema] = {
    SPANS: schema.SPANS,
    TRACES: schema.TRACES,
    KERNEL_MINUTES: schema.KERNEL_MINUTES,
    LEDGER: schema.LEDGER,
}
#: The column that a window is about.
TIME_COLUMNS = {
    SPANS: "start_ns",
    TRACES: "start_ns",
    KERNEL_MINUTES: "minute_ns",
    LEDGER: "time_ns",
}
BATCH_ROWS = 65_536


@lru_cache(maxsize=4096)
def _footer(path: Path, size: int, mtime_ns: int) -> pq.FileMetaData:
    return files.read_footer(path)


def open_file(path: Path, table: str) -> pq.ParquetFile:
    """Open a file of a table, text columns as dictionaries, its footer from memory if seen.

    Raises FileNotFoundError, and ArchiveError where it is damaged or of another version.
    """
    status = path.stat()
    footer = _footer(path, status.st_size, status.st_mtime_ns)
    version = (footer.metadata or {}).get(schema.SCHEMA_VERSION_KEY, b"").decode(errors="replace")
    if version != schema.SCHEMA_VERSION:
        raise ArchiveError(
            f"'{path}' has schema version '{version}'; this spanlite reads {schema.SCHEMA_VERSION}"
        )
    text = [item.name for item in SCHEMAS[table] if pa.types.is_dictionary(item.type)]
    return pq.ParquetFile(path, metadata=footer, read_dictionary=text)


class ArchiveReader:
    """Reads one archive. Holds no file open between calls."""

    def __init__(self, root: str | os.PathLike[str] | Archive) -> None:
        self.archive = root if isinstance(root, Archive) else Archive.open(root)
        #: Files opened so far, for benches and tests.
        self.files_opened = 0

    def hours(self, window: TimeWindow = ALL_TIME) -> list[str]:
        """Hour folders with spans within the window, in order."""
        return files.span_hours(self.archive, window)

    def files(
        self, window: TimeWindow = ALL_TIME, buckets: Sequence[int] | None = None
    ) -> list[Path]:
        """The files whose spans make up the window's hours, each span in one of them."""
        chosen = range(self.archive.bucket_count) if buckets is None else buckets
        return [
            path
            for hour in self.hours(window)
            for bucket in chosen
            for path in files.retry(partial(files.unit_files, self.archive, hour, bucket))
        ]

    def table_files(self, table: str, window: TimeWindow = ALL_TIME) -> list[Path]:
        """The files that make up a table within a window's hours (or days)."""
        if table == SPANS:
            return self.files(window)
        if table not in SCHEMAS:
            raise UsageError(f"the archive has no table '{table}'; it has {', '.join(SCHEMAS)}")
        folders = files.table_folders(self.archive.root, table, window)
        return [
            path for folder in folders for path in files.retry(partial(files.folder_files, folder))
        ]

    def duckdb_sources(self, table: str, window: TimeWindow = ALL_TIME) -> list[str]:
        """Paths for DuckDB's `read_parquet([...], hive_partitioning=true)`. May be empty."""
        return [str(path) for path in self.table_files(table, window)]

    def find_trace(self, low: int, high: int, window: TimeWindow = ALL_TIME) -> pa.Table:
        """All spans of a trace in SPANS, sorted by start; no rows where it is not there.

        Opens only files of the trace's bucket.
        """
        bucket = int(bucket_of(low, high, self.archive.bucket_count)[0])
        word = format_trace_id(low, high)
        parts = []
        for hour in self.hours(window):
            parts += files.retry(partial(self._find_in_unit, hour, bucket, word))
        table = pa.concat_tables(parts) if parts else schema.SPANS.empty_table()
        # Nothing else is in the table, so ties in start keep the order of their span ids.
        table = table.sort_by([("start_ns", "ascending"), ("span_id", "ascending")])
        return in_window(table, window, "start_ns")

    def _find_in_unit(self, hour: str, bucket: int, word: str) -> list[pa.Table]:
        found = []
        for path in files.unit_files(self.archive, hour, bucket):
            with open_file(path, SPANS) as file:
                self.files_opened += 1
                found += [_rows_of(file, group, word) for group in _groups_with(file, word)]
        return [table for table in found if table.num_rows]

    def scan(
        self,
        window: TimeWindow = ALL_TIME,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        by_time: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The window's spans, each once, hour after hour.

        Within an hour they come bucket by bucket, sorted by trace and start where
        compacted. With `by_time` each hour is sorted by start_ns (then trace and span id)
        instead: that takes the memory of one hour of the chosen columns. `columns`: names
        of SPANS (None: all). `filters`: a pyarrow expression over any columns.
        """
        for hour in self.hours(window):
            batches = self._scan_hour(hour, window, columns, filters, by_time)
            if not by_time:
                yield from batches
                continue
            table = pa.Table.from_batches(list(batches), _wanted(columns, by_time))
            table = table.unify_dictionaries().combine_chunks()
            table = table.take(pa.array(_time_order(table)))
            yield from table.select(_names(columns)).to_batches(max_chunksize=BATCH_ROWS)

    def _scan_hour(
        self,
        hour: str,
        window: TimeWindow,
        columns: Sequence[str] | None,
        filters: pc.Expression | None,
        by_time: bool,
    ) -> Iterator[pa.RecordBatch]:
        wanted = _wanted(columns, by_time)
        condition = window_expression(window, "start_ns", files.hour_range(hour))
        if filters is not None:
            condition = filters if condition is None else condition & filters
        names = wanted.names if condition is None else None
        for bucket in range(self.archive.bucket_count):
            # All of a unit's files are opened before the first row goes out: what is open
            # stays readable, whatever a compaction does to its name.
            opened = files.retry(partial(self._open_unit, hour, bucket))
            for file in opened:
                with file:
                    for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                        yield from _chosen(batch, condition, wanted)

    def _open_unit(self, hour: str, bucket: int) -> list[pq.ParquetFile]:
        opened: list[pq.ParquetFile] = []
        try:
            for path in files.unit_files(self.archive, hour, bucket):
                opened.append(open_file(path, SPANS))  # noqa: PERF401 - closed below on error
        except FileNotFoundError:
            for file in opened:
                file.close()
            raise
        self.files_opened += len(opened)
        return opened

    def read_table(self, table: str, window: TimeWindow = ALL_TIME) -> pa.Table:
        """A whole small table (traces, kernel_minutes, ledger) within a window."""
        folders = files.table_folders(self.archive.root, table, window)
        parts = [SCHEMAS[table].empty_table()]
        for folder in folders:
            parts += files.retry(partial(self._read_folder, folder, table))
        return in_window(pa.concat_tables(parts).unify_dictionaries(), window, TIME_COLUMNS[table])

    def _read_folder(self, folder: Path, table: str) -> list[pa.Table]:
        parts = []
        for path in files.folder_files(folder):
            with open_file(path, table) as file:
                self.files_opened += 1
                parts.append(conform(file.read(use_threads=False), SCHEMAS[table]))
        return parts


_BY_TIME = ("start_ns", "trace_id", "span_id")


def _time_order(table: pa.Table) -> npt.NDArray[np.int64]:
    """The order by start_ns, trace_id, span_id. Shape (rows,)."""
    if table.num_rows == 0:
        return np.zeros(0, np.int64)
    ids = table.column("trace_id").chunk(0)
    rank = np.empty(len(ids.dictionary), np.int64)
    rank[pc.sort_indices(ids.dictionary).to_numpy()] = np.arange(len(rank))
    keys = table.column("span_id"), pa.array(rank[ids.indices.to_numpy()]), table.column("start_ns")
    order: npt.NDArray[np.int64] = np.lexsort([key.to_numpy() for key in keys])
    return order


def _names(columns: Sequence[str] | None) -> list[str]:
    names = list(schema.SPANS.names) if columns is None else list(columns)
    if unknown := [name for name in names if name not in schema.SPANS.names]:
        raise UsageError(f"the spans have no column {', '.join(unknown)}")
    return names


def _wanted(columns: Sequence[str] | None, by_time: bool) -> pa.Schema:
    names = _names(columns)
    more = [name for name in _BY_TIME if by_time and name not in names]
    return pa.schema([schema.SPANS.field(name) for name in (*names, *more)])


def _chosen(
    batch: pa.RecordBatch, condition: pc.Expression | None, wanted: pa.Schema
) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches([batch])
    if condition is not None:
        table = table.filter(condition)
    if table.num_rows:
        yield from conform(table.select(wanted.names), wanted).combine_chunks().to_batches()


def conform(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The same rows with exactly the wanted types and nullability."""
    columns = []
    for item in wanted:
        column = table.column(item.name)
        if column.type != item.type:
            is_text = pa.types.is_dictionary(item.type)
            if is_text and not pa.types.is_dictionary(column.type):
                column = column.cast(item.type.value_type).dictionary_encode()
            column = column.cast(item.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=wanted)


def in_window(table: pa.Table, window: TimeWindow, column: str) -> pa.Table:
    """The rows whose time lies in the window."""
    condition = window_expression(window, column)
    return table if condition is None else table.filter(condition)


def window_expression(
    window: TimeWindow, column: str, known: tuple[int, int] | None = None
) -> pc.Expression | None:
    """The window as a condition on a column; None where `known` bounds make it true."""
    start, end = window.from_ns, window.to_ns
    if known is not None:
        start = None if start is None or start <= known[0] else start
        end = None if end is None or end >= known[1] else end
    conditions = []
    if start is not None:
        conditions.append(pc.field(column) >= start)
    if end is not None:
        conditions.append(pc.field(column) < end)
    if not conditions:
        return None
    return conditions[0] if len(conditions) == 1 else conditions[0] & conditions[1]


def _groups_with(file: pq.ParquetFile, word: str) -> list[int]:
    """Row groups whose range of trace ids takes in the word."""
    groups = []
    for index in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(index).column(0).statistics
        known = statistics is not None and statistics.has_min_max
        if not known or statistics.min <= word <= statistics.max:
            groups.append(index)
    return groups


def _rows_of(file: pq.ParquetFile, group: int, word: str) -> pa.Table:
    """The trace's rows of a row group: the other columns are read only where it has some."""
    ids = file.read_row_group(group, columns=["trace_id"], use_threads=False).column("trace_id")
    mask = np.concatenate([_equals(chunk, word) for chunk in ids.chunks])
    at = np.flatnonzero(mask)
    if len(at) == 0:
        return schema.SPANS.empty_table()
    table = file.read_row_group(group, use_threads=False)
    if len(at) == at[-1] - at[0] + 1:  # sorted, as we write it
        return conform(table.slice(at[0], len(at)), schema.SPANS)
    return conform(table.filter(pa.array(mask)), schema.SPANS)


def _equals(column: pa.Array, word: str) -> npt.NDArray[np.bool_]:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    code = column.dictionary.index(word).as_py()
    return np.asarray(column.indices.to_numpy() == code)
