"""Reading every file of an archive and checking what must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spanlite.archive import files
from spanlite.archive._columns import Array
from spanlite.archive.convert import trace_id_halves
from spanlite.archive.layout import KERNEL_MINUTES, LEDGER, SPANS, TRACES, Archive
from spanlite.archive.reader import SCHEMAS, ArchiveReader, open_file
from spanlite.bucket import bucket_of
from spanlite.errors import ArchiveError

_COLUMNS = ["trace_id", "start_ns", "span_id"]
_IDS = np.dtype([("high", "u8"), ("low", "u8"), ("span", "i8")])
Progress = Callable[[str], None]


@dataclass
class Findings:
    """What was read and what is wrong. `problems`: one line each."""

    files: int = 0
    spans: int = 0
    traces: int = 0
    problems: list[str] = field(default_factory=list)
    ledger: str = "the ledger has no rows for the archive"

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def _silent(_: str) -> None:
    return None


def verify(archive: Archive, progress: Progress = _silent) -> Findings:
    """Read every file: schema, order, bucket and hour of each span, duplicates, ledger."""
    found = Findings()
    for hour in files.span_hours(archive):
        progress(f"reading {hour}")
        for bucket in range(archive.bucket_count):
            files.retry(partial(_unit, archive, hour, bucket, found))
    reader = ArchiveReader(archive)
    for table in (TRACES, KERNEL_MINUTES, LEDGER):
        for path in reader.table_files(table):
            _small_file(path, table, found)
    _ledger(reader, found)
    return found


def _unit(archive: Archive, hour: str, bucket: int, found: Findings) -> None:
    """One bucket of one hour; counts only when all of it could be read."""
    unit, ids = Findings(), []
    for path in files.unit_files(archive, hour, bucket):
        try:
            with open_file(path, SPANS) as file:
                ids.append(_span_file(archive, path, file, hour, bucket, unit))
        except (ArchiveError, pa.ArrowException, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            unit.problems.append(f"{path}: {error}" if str(path) not in str(error) else str(error))
        unit.files += 1
    if ids:
        _duplicates(np.concatenate(ids), f"{hour}/bucket={bucket}", unit)
    found.files += unit.files
    found.spans += unit.spans
    found.traces += unit.traces
    found.problems += unit.problems


def _span_file(
    archive: Archive, path: Path, file: pq.ParquetFile, hour: str, bucket: int, unit: Findings
) -> Array:
    problems = [*_schema_problems(file, SPANS)]
    first, end = files.hour_range(hour)
    parts, last = [np.zeros(0, _IDS)], None
    for group in range(file.num_row_groups) if not problems else ():
        table = file.read_row_group(group, use_threads=False)
        ids, starts = _ids(table), table.column("start_ns").to_numpy()
        outside = int(((starts < first) | (starts >= end)).sum())
        if outside:
            problems.append(f"{outside:,} of its spans do not start in {hour}")
        wrong = int((bucket_of(ids["low"], ids["high"], archive.bucket_count) != bucket).sum())
        if wrong:
            problems.append(f"{wrong:,} of its spans do not belong to bucket {bucket}")
        if not _in_order(ids, starts, last):
            problems.append("spans are not sorted by trace_id, start_ns, span_id")
        if len(ids):
            last = (ids[-1], starts[-1])
        parts.append(ids)
    unit.problems += [f"{path}: {problem}" for problem in dict.fromkeys(problems)]
    unit.spans += sum(map(len, parts))
    return np.concatenate(parts)


def _schema_problems(file: pq.ParquetFile, table: str) -> Iterator[str]:
    """What differs from the table's schema; Arrow's view of text is left open."""
    there = file.schema_arrow
    for item in SCHEMAS[table]:
        if item.name not in there.names:
            yield f"column {item.name} is missing"
        elif not _same_type(there.field(item.name).type, item.type):
            yield f"column {item.name} is {there.field(item.name).type}, not {item.type}"


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_list(wanted):
        return bool(pa.types.is_list(found))
    return bool(_plain(found) == _plain(wanted))


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _ids(table: pa.Table) -> Array:
    ids = np.empty(table.num_rows, _IDS)
    ids["low"], ids["high"] = trace_id_halves(table.column("trace_id"))
    ids["span"] = table.column("span_id").to_numpy()
    return ids


def _in_order(ids: Array, starts: Array, last: tuple[Array, Array] | None) -> bool:
    if last is not None:
        ids = np.concatenate((np.array([last[0]], _IDS), ids))
        starts = np.concatenate(([last[1]], starts))
    less = np.zeros(max(len(ids) - 1, 0), bool)
    equal = ~less
    for column in (ids["high"], ids["low"], starts, ids["span"]):
        less |= equal & (column[:-1] < column[1:])
        equal &= column[:-1] == column[1:]
    return bool((less | equal).all())


def _duplicates(ids: Array, where: str, unit: Findings) -> None:
    ids = ids[np.lexsort((ids["span"], ids["low"], ids["high"]))]
    same_trace = (ids["high"][1:] == ids["high"][:-1]) & (ids["low"][1:] == ids["low"][:-1])
    twice = int((same_trace & (ids["span"][1:] == ids["span"][:-1])).sum())
    if twice:
        unit.problems.append(f"{where}: {twice:,} spans are there more than once")
    unit.traces += int(len(ids) > 0) + int((~same_trace).sum())


def _small_file(path: Path, table: str, found: Findings) -> None:
    try:
        with open_file(path, table) as file:
            problems = list(_schema_problems(file, table))
            file.read(use_threads=False)
    except FileNotFoundError:
        return  # compacted away meanwhile
    except (ArchiveError, pa.ArrowException, OSError) as error:
        problems = [str(error)]
    found.files += 1
    found.problems += [f"{path}: {problem}" for problem in problems]


def _ledger(reader: ArchiveReader, found: Findings) -> None:
    """Spans in the files = what the job committed - what retention dropped."""
    try:
        rows = reader.read_table(LEDGER).to_pylist()
    except ArchiveError:
        return  # said already, with the file
    mine = [row for row in rows if row["hop"] == "archive"]
    if not any(row["direction"] == "out" for row in mine):
        return
    sums = {
        direction: sum(row["spans"] for row in mine if row["direction"] == direction)
        for direction in ("out", "dropped")
    }
    expected = sums["out"] - sums["dropped"]
    found.ledger = (
        f"the ledger says {sums['out']:,} spans committed, {sums['dropped']:,} dropped: "
        f"{expected:,} should be there, {found.spans:,} are"
    )
    if expected != found.spans:
        found.problems.append(found.ledger)
