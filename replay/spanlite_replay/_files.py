"""Which files of an archive a window lies in, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spanlite.archive.layout import INCOMING, NS_PER_HOUR, SPANS, Archive, hour_start_ns
from spanlite.archive.schema import SPANS as SPANS_SCHEMA
from spanlite.errors import ArchiveError
from spanlite.timewindow import TimeWindow


def hours(root: Path) -> dict[str, Path]:
    """Hour folder name -> where to read it: `spans/` where it is there, else `incoming/`."""
    found: dict[str, Path] = {}
    for table in (INCOMING, SPANS):
        for path in (root / table).glob("date=*/hour=*"):
            found[f"{path.parent.name}/{path.name}"] = path
    return dict(sorted(found.items()))


def extent(root: Path) -> tuple[int, int] | None:
    """Start of the first hour and end of the last, in Unix ns; None for an empty archive."""
    starts = [hour_start_ns(name) for name in hours(root)]
    return (min(starts), max(starts) + NS_PER_HOUR) if starts else None


def read_spans(root: Path, window: TimeWindow, columns: Sequence[str] | None) -> pa.Table:
    """Rows whose start lies in the window. All columns where `columns` is None."""
    Archive.open(root)
    schema = (
        SPANS_SCHEMA if columns is None else pa.schema([SPANS_SCHEMA.field(c) for c in columns])
    )
    parts = [schema.empty_table()]
    for name, folder in hours(root).items():
        start = hour_start_ns(name)
        if not window.overlaps(start, start + NS_PER_HOUR):
            continue
        paths = sorted(folder.glob("bucket=*/[!._]*.parquet"))
        parts.extend(_read(path, schema, window) for path in paths)
    return pa.concat_tables(parts)


def _read(path: Path, schema: pa.Schema, window: TimeWindow) -> pa.Table:
    try:
        table = pq.ParquetFile(path).read(columns=schema.names).select(schema.names).cast(schema)
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        raise ArchiveError(f"'{path}' cannot be read: {error}") from None
    start = table.column("start_ns")
    keep = pa.scalar(True)
    if window.from_ns is not None:
        keep = pc.and_(keep, pc.greater_equal(start, window.from_ns))
    if window.to_ns is not None:
        keep = pc.and_(keep, pc.less(start, window.to_ns))
    return table if isinstance(keep, pa.Scalar) else table.filter(keep)
