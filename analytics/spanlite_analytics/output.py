"""Writes a stream of Arrow batches as a table, CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

#: A terminal shows no more rows than this; the other formats show all.
TABLE_ROWS = 1_000
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def _json_value(value: Any) -> Any:
    """What JSON cannot hold: timestamps keep all their digits, decimals stay numbers."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e15 else repr(value)
    if isinstance(value, (list, dict)):
        return json.dumps(value, default=_json_value, ensure_ascii=False)
    return str(value)


def _rows(reader: pa.RecordBatchReader) -> Iterator[list[Any]]:
    for batch in reader:
        columns = [column.to_pylist() for column in batch.columns]
        yield from (list(row) for row in zip(*columns, strict=True))


def write_csv(reader: pa.RecordBatchReader, out: TextIO) -> int:
    """Header and rows; nested values as JSON text. Returns the number of rows."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(reader.schema.names)
    count = 0
    for row in _rows(reader):
        nested = (isinstance(v, (list, dict)) for v in row)
        writer.writerow([_cell(v) if n else v for v, n in zip(row, nested, strict=True)])
        count += 1
    return count


def write_json(reader: pa.RecordBatchReader, out: TextIO) -> int:
    """An array with one object a line, so that it streams. Returns the number of rows."""
    names, count = reader.schema.names, 0
    out.write("[")
    for row in _rows(reader):
        out.write("\n" if count == 0 else ",\n")
        item = dict(zip(names, row, strict=True))
        json.dump(item, out, default=_json_value, ensure_ascii=False)
        count += 1
    out.write("\n]\n" if count else "]\n")
    return count


def write_table(reader: pa.RecordBatchReader, out: TextIO) -> int:
    """For people. Returns the number of rows shown, at most TABLE_ROWS."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for field in reader.schema:
        right = any(test(field.type) for test in _NUMBERS)
        table.add_column(field.name, justify="right" if right else "left", overflow="fold")
    count, more = 0, False
    for row in _rows(reader):
        if count == TABLE_ROWS:
            more = True
            break
        table.add_row(*map(_cell, row))
        count += 1
    console = console_for(out)
    console.print(table)
    if more:
        console.print(f"... more than {TABLE_ROWS:,} rows: add LIMIT, or use --format csv")
    return count


def write_parquet(reader: pa.RecordBatchReader, path: str) -> int:
    """A Parquet file, zstd. Returns the number of rows."""
    count = 0
    with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def console_for(out: TextIO) -> Console:
    """A console that neither wraps nor colours where nobody looks at a terminal."""
    if out.isatty():
        return Console(file=out, highlight=False)
    return Console(file=out, highlight=False, width=10_000, color_system=None)


TEXT_WRITERS: dict[str, Callable[[pa.RecordBatchReader, TextIO], int]] = {
    "table": write_table,
    "csv": write_csv,
    "json": write_json,
}
