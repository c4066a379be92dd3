"""DuckDB views over an archive: `spans`, `traces`, `kernel_minutes`, `ledger`.

The database lives in memory and only ever reads the archive. Each view holds the columns of
`spanlite.archive.schema` and, where a table has them, `start_time` and `end_time`
(TIMESTAMP_NS, UTC), `end_ns`, and the folder's `date`, `hour` and `bucket`. `traces` has one
row a trace; `trace_rows` has them as written, with further rows for spans that came late.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
from spanlite.archive.layout import KERNEL_MINUTES, LEDGER, SPANS, TRACES, Archive
from spanlite.archive.reader import SCHEMAS, TIME_COLUMNS, ArchiveReader
from spanlite.errors import ArchiveError, UsageError
from spanlite.timewindow import ALL_TIME, TimeWindow

from spanlite_analytics.interrupts import interruptible

#: Rows a batch when results leave DuckDB.
BATCH_ROWS = 65_536
NS_PER_MINUTE = 60_000_000_000
#: How often files are listed anew before giving up; a compaction moves few at a time.
ATTEMPTS = 5
T = TypeVar("T")

_HIVE = {
    SPANS: {"date": "DATE", "hour": "INTEGER", "bucket": "INTEGER"},
    TRACES: {"date": "DATE", "hour": "INTEGER"},
    KERNEL_MINUTES: {"date": "DATE", "hour": "INTEGER"},
    LEDGER: {"date": "DATE"},
}
_INT64 = 2**63
#: Wrong times in recorded spans must not stop a query: sums stay within 64 bits, and points
#: in time within what DuckDB has (the very ends of 64 bits mean infinity there).
_MACROS = (
    f"saturated(ns) AS greatest(least(ns, {_INT64 - 1}), -{_INT64})::BIGINT",
    f"point_of(ns) AS make_timestamp_ns(greatest(least(ns, {_INT64 - 2}), -{_INT64 - 2})::BIGINT)",
)
_END = "saturated(start_ns::HUGEINT + duration_ns)"
#: The columns that each view adds.
_ADDED = {
    SPANS: f"{_END} AS end_ns, point_of(start_ns) AS start_time, point_of({_END}) AS end_time",
    TRACES: "point_of(start_ns) AS start_time, point_of(end_ns) AS end_time, "
    "saturated(end_ns::HUGEINT - start_ns) AS duration_ns",
    KERNEL_MINUTES: "point_of(minute_ns) AS start_time",
    LEDGER: "point_of(time_ns) AS start_time",
}
#: Few traces have spans that came late, so few rows are grouped.
_ONE_ROW_A_TRACE = """
WITH late_ids AS (SELECT DISTINCT trace_id FROM trace_rows WHERE late)
SELECT * FROM trace_rows WHERE trace_id NOT IN (FROM late_ids)
UNION ALL BY NAME
SELECT trace_id, min(start_ns) AS start_ns, max(end_ns) AS end_ns,
    saturated(sum(spans)) AS spans, saturated(sum(errors)) AS errors,
    saturated(sum(device_spans)) AS device_spans, saturated(sum(device_ns)) AS device_ns,
    saturated(sum(bytes)) AS bytes, arg_min(root_name, late) AS root_name,
    arg_min(root_kind, late) AS root_kind, arg_min(service, late) AS service,
    arg_min(host, late) AS host, bool_or(kept) AS kept, arg_min(policy, late) AS policy,
    arg_min(sampling_weight, late) AS sampling_weight, true AS late,
    any_value(bucket) AS bucket, min(date) AS date, arg_min(hour, start_ns) AS hour
FROM trace_rows WHERE trace_id IN (FROM late_ids) GROUP BY trace_id
"""


def check_is_text(text: str) -> None:
    """Raises UsageError where bytes of the command line or a file were not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = text[:60].encode(errors="backslashreplace").decode()
        raise UsageError(f"'{shown}' is not UTF-8 text") from None


def quote(text: str | os.PathLike[str]) -> str:
    """A SQL string literal. Raises UsageError where the text is not UTF-8."""
    check_is_text(os.fspath(text))
    return "'" + os.fspath(text).replace("'", "''") + "'"


def _plain(table: pa.Schema) -> pa.Table:
    """No rows, dictionary columns as plain strings."""
    fields = [
        pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type)
        for f in table
    ]
    return pa.schema(fields).empty_table()


def _where(table: str, window: TimeWindow) -> str:
    column, start = TIME_COLUMNS[table], window.from_ns
    if table == KERNEL_MINUTES and start is not None:
        start = start // NS_PER_MINUTE * NS_PER_MINUTE  # the minute that holds it
    bounds = [] if start is None else [f"{column} >= {start}"]
    if window.to_ns is not None:
        bounds.append(f"{column} < {window.to_ns}")
    return " AND ".join(bounds) or "true"


def _source(con: duckdb.DuckDBPyConnection, table: str, files: list[str]) -> str:
    hive = ", ".join(f"'{name}': {kind}" for name, kind in _HIVE[table].items())
    if files:
        listed = ", ".join(map(quote, files))
        return f"read_parquet([{listed}], hive_partitioning=true, hive_types={{{hive}}})"
    # An archive without this table yet: the same columns, no rows.
    con.register(f"no_{table}", _plain(SCHEMAS[table]))
    nulls = ", ".join(f"NULL::{kind} AS {name}" for name, kind in _HIVE[table].items())
    return f"(SELECT *, {nulls} FROM no_{table})"


#: What DuckDB says of a Parquet file that is not what it should be, if it does not name it.
_DAMAGE = ("ecompress", "TProtocol", "Parquet", "parquet", "IO Error")

#: What it says of a file that was there when the files were listed.
_VANISHED = ("No files found", "No such file")
_ABOUT_THE_SQL = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)


class FilesMovedError(ArchiveError):
    """A compaction replaced files between listing and reading them: list them anew."""


@contextmanager
def plain_errors(archive: Archive) -> Iterator[None]:
    """Turn DuckDB's errors into ours: damage names the archive, all else is the user's SQL."""
    try:
        yield
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except (duckdb.Error, pa.ArrowException) as error:
        # Once rows stream, DuckDB's errors arrive as Arrow's, so only the text tells.
        text = str(error).strip()
        if any(word in text for word in _VANISHED) and str(archive.root) in text:
            raise FilesMovedError(
                f"files of '{archive.root}' were compacted while they were read; run it again"
            ) from None
        if not isinstance(error, _ABOUT_THE_SQL) and _is_damage(archive, text):
            raise ArchiveError(
                f"cannot read '{archive.root}': {text.splitlines()[0]}; "
                "`spanlite archive verify` names damaged files"
            ) from None
        raise UsageError(text) from None


def _is_damage(archive: Archive, text: str) -> bool:
    return any(word in text for word in (*_DAMAGE, str(archive.root)))


def connect(archive: Archive, window: TimeWindow = ALL_TIME) -> duckdb.DuckDBPyConnection:
    """A new in-memory database with the views. Close it when done.

    Raises ArchiveError where a file cannot be read.
    """
    con = duckdb.connect(":memory:")
    # DuckDB would spill into the current folder and fetch extensions from the net.
    spill = Path(tempfile.gettempdir()) / f"spanlite-duckdb-{os.getpid()}"
    con.execute(f"SET temp_directory = {quote(spill)}")
    con.execute("SET autoinstall_known_extensions = false")
    con.execute("SET allow_persistent_secrets = false")
    reader = ArchiveReader(archive)
    with plain_errors(archive):
        for macro in _MACROS:
            con.execute(f"CREATE MACRO {macro}")
        for table in SCHEMAS:
            source = _source(con, table, reader.duckdb_sources(table, window))
            rows = f"SELECT * FROM {source} WHERE {_where(table, window)}"
            if table == TRACES:
                con.execute(f"CREATE VIEW trace_rows AS {rows}")
                rows = _ONE_ROW_A_TRACE
            con.execute(f"CREATE VIEW {table} AS SELECT *, {_ADDED[table]} FROM ({rows})")
    return con


def reading(
    archive: Archive, window: TimeWindow, work: Callable[[duckdb.DuckDBPyConnection], T]
) -> T:
    """Do the work on a database with the views, again where files moved meanwhile.

    `work` must not have shown anything yet when it fails. DuckDB's errors become ours.
    """
    for attempt in range(ATTEMPTS):
        con = connect(archive, window)
        try:
            with plain_errors(archive), interruptible(con):
                return work(con)
        except FilesMovedError:
            if attempt == ATTEMPTS - 1:
                raise
        finally:
            con.close()
    raise AssertionError("unreachable")


def arrow_batches(
    con: duckdb.DuckDBPyConnection, sql: str, params: list[Any] | None = None
) -> pa.RecordBatchReader | None:
    """The rows of a statement as a stream of Arrow batches; None where it has no rows."""
    relation = con.sql(sql, params=params) if params else con.sql(sql)
    return None if relation is None else batches_of(relation)


def batches_of(relation: duckdb.DuckDBPyRelation) -> pa.RecordBatchReader:
    """The rows of a relation as a stream of Arrow batches."""
    # DuckDB 2 renamed what 1.x calls fetch_arrow_reader.
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
    reader: pa.RecordBatchReader = read(BATCH_ROWS)
    return reader
