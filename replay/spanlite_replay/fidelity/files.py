"""Recorded and observed spans from archives and files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from spanlite.archive import schema
from spanlite.archive.layout import FORMAT_FILE
from spanlite.archive.reader import ArchiveReader
from spanlite.errors import InputError
from spanlite.timewindow import ALL_TIME, TimeWindow

from spanlite_replay.fidelity.spans import COLUMNS, Spans, match_rows
from spanlite_replay.targets.base import OBSERVED_SCHEMA


def read_recorded(path: Path, window: TimeWindow = ALL_TIME) -> pa.Table:
    """Rows of the archive's `spans`, from an archive or a Parquet file of them."""
    if not path.is_file():
        reader = ArchiveReader(path)
        wanted = pa.schema([schema.SPANS.field(name) for name in COLUMNS])
        return pa.Table.from_batches(list(reader.scan(window, COLUMNS)), wanted)
    table = _parquet(path)
    missing = [name for name in COLUMNS[:7] if name not in table.column_names]
    if missing:
        raise InputError(
            f"'{path}' has no column {', '.join(missing)}: RECORDED is an archive, or a Parquet "
            "file of its spans"
        )
    return table


def read_observed(path: Path, recorded: pa.Table) -> pa.Table:
    """An observed table: what a target wrote, or spans that carry the recording's ids.

    Spans of an archive have no planned times: the recording's are taken, moved so that both
    begin at once.
    """
    if path.is_file():
        table = _parquet(path)
        if set(OBSERVED_SCHEMA.names) <= set(table.column_names):
            return table
    elif not (path / FORMAT_FILE).exists():
        raise InputError(
            f"'{path}' is neither a Parquet file of observed spans nor an archive: a replay "
            "writes the first"
        )
    return observed_from_spans(recorded, read_recorded(path))


def observed_from_spans(recorded: pa.Table, spans: pa.Table) -> pa.Table:
    """Spans with the ids of a recording, as an observed table; strangers plan themselves."""
    plan, seen = Spans.of(recorded), Spans.of(spans)
    keys = [(one.trace_low, one.trace_high, one.span_id) for one in (seen, plan)]
    row, _, _ = match_rows(*keys)
    found = row >= 0
    begin, end = seen.start_ns.copy(), seen.end_ns.copy()
    if found.any():
        begin[found], end[found] = plan.start_ns[row[found]], plan.end_ns[row[found]]
        moved = int(seen.start_ns[found].min() - begin[found].min())
        begin[found] += moved
        end[found] += moved
    columns = [
        seen.trace_low,
        seen.trace_high,
        seen.span_id,
        begin,
        end,
        seen.start_ns,
        seen.end_ns,
    ]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=OBSERVED_SCHEMA)


def _parquet(path: Path) -> pa.Table:
    try:
        return pq.read_table(path, use_threads=False)
    except FileNotFoundError:
        raise InputError(f"'{path}' is not there") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"'{path}' is no Parquet file that can be read: {error}") from None
