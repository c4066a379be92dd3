"""Retention: drop whole hours by age, and say in the ledger what went.

What goes is moved under a hidden name, then its count is written to the ledger, then it is
deleted. A run that was killed in between is finished by the next one; the ledger's file is
named after the hidden folder, so nothing is counted twice. A compacted hour is moved as a
whole. Where a job may be writing, only committed files are: those it has not committed yet
stay with their folder, and the next run drops them.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from spanlite.archive import files
from spanlite.archive.disk import maintenance_lock, put_file, sync_folder, unique
from spanlite.archive.layout import INCOMING, KERNEL_MINUTES, LEDGER, SPANS, TRACES, Archive
from spanlite.archive.schema import LEDGER as LEDGER_SCHEMA
from spanlite.archive.writer import write_table

EXPIRED = ".expired"
#: An empty folder this old is no job's any more.
_IDLE_S = 3600.0
#: Tables that can be dropped by age. The ledger stays: it is small, and it is the proof.
TABLES = (SPANS, TRACES, KERNEL_MINUTES)


@dataclass(frozen=True)
class Expired:
    """What one hour of one table holds."""

    table: str
    hour: str
    files: int
    rows: int
    bytes: int


def expired(archive: Archive, table: str, before_ns: int) -> list[Expired]:
    """Hours of a table that end at or before that time, and what they hold."""
    found = (_measure(archive, table, hour) for hour in _old_hours(archive, table, before_ns))
    return [item for item in found if item.files]


def _parts(table: str) -> tuple[str, ...]:
    return (INCOMING, SPANS) if table == SPANS else (table,)


def _old_hours(archive: Archive, table: str, before_ns: int) -> list[str]:
    hours = {hour for part in _parts(table) for hour in files.hours_of(archive.root, part)}
    return [hour for hour in sorted(hours) if files.hour_range(hour)[1] <= before_ns]


def _measure(archive: Archive, table: str, hour: str) -> Expired:
    if table != SPANS:
        paths = files.folder_files(archive.root / table / hour)
    else:
        buckets = range(archive.bucket_count)
        paths = [path for b in buckets for path in files.unit_files(archive, hour, b)]
    rows = sum(files.read_footer(path).num_rows for path in paths)
    return Expired(table, hour, len(paths), rows, sum(path.stat().st_size for path in paths))


def retain(
    archive: Archive, table: str, before_ns: int, now_ns: int | None = None
) -> list[Expired]:
    """Drop the hours of a table that end at or before that time; returns what went.

    Raises ArchiveError where another run is at work or a file is damaged.
    """
    gone = []
    with maintenance_lock(archive.root):
        now = time.time_ns() if now_ns is None else now_ns
        _finish_killed(archive, now)
        for hour in _old_hours(archive, table, before_ns):
            holds = _measure(archive, table, hour)
            gone += [holds] if holds.files else []
            if table == SPANS:
                _drop_absorbed(archive, hour)
            for part in _parts(table):
                _drop(archive, part, hour, now)
    return gone


def _drop_absorbed(archive: Archive, hour: str) -> None:
    """Delete files of `incoming/` that a compacted file took in, lest they be counted."""
    for bucket in range(archive.bucket_count):
        folder = f"{hour}/bucket={bucket}"
        done = archive.root / SPANS / folder
        taken = files.absorbed_in(done, files.parquet_in(done))
        for name in taken.intersection(files.parquet_in(archive.root / INCOMING / folder)):
            (archive.root / INCOMING / folder / name).unlink()


def _drop(archive: Archive, part: str, hour: str, now_ns: int) -> None:
    folder = archive.root / part / hour
    if not folder.exists():
        return
    hidden = folder.with_name(f".{folder.name}.{unique()}{EXPIRED}")
    if part == SPANS:
        folder.rename(hidden)
    else:
        _move_committed(folder, hidden)
    if hidden.exists():
        sync_folder(folder.parent)
        _finish(archive, part, hidden, now_ns)
    if folder.exists():
        _remove_idle(folder)


def _move_committed(folder: Path, hidden: Path) -> None:
    """Move the files that readers see."""
    for path in sorted(folder.rglob("*.parquet")):
        if path.name.startswith("."):
            continue
        target = hidden / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)


def _remove_idle(folder: Path) -> None:
    """Remove the empty folders in it that nothing has come into for long, and it too."""
    inside = sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)
    idle = time.time() - _IDLE_S
    for empty in (*inside, folder, folder.parent):
        if empty.stat().st_mtime < idle:
            with contextlib.suppress(OSError):  # it holds something
                empty.rmdir()


def _finish_killed(archive: Archive, now_ns: int) -> None:
    for part in (INCOMING, *TABLES):
        for hidden in (archive.root / part).glob(f"date=*/.hour=*{EXPIRED}"):
            _finish(archive, part, hidden, now_ns)


def _finish(archive: Archive, part: str, hidden: Path, now_ns: int) -> None:
    """Count a hidden folder in the ledger, once, and delete it."""
    if part in (INCOMING, SPANS):
        counted = f"retain-{hidden.name.split('.')[2]}.parquet"
        ledger = archive.root / LEDGER
        if not any(ledger.glob(f"date=*/{counted}")):
            rows = list(_ledger_rows(hidden, now_ns))
            date = time.strftime("date=%Y-%m-%d", time.gmtime(now_ns // 1_000_000_000))
            table = pa.Table.from_pylist(rows, _plain(LEDGER_SCHEMA))
            put_file(ledger / date, counted, write_table(table, LEDGER_SCHEMA))
    shutil.rmtree(hidden)
    with contextlib.suppress(OSError):  # it holds other hours
        hidden.parent.rmdir()


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [
            pa.field(item.name, getattr(item.type, "value_type", item.type), item.nullable)
            for item in schema
        ]
    )


def _ledger_rows(hidden: Path, now_ns: int) -> Iterator[dict[str, object]]:
    for folder in sorted(hidden.glob("bucket=*")):
        names = files.parquet_in(folder)
        yield {
            "time_ns": now_ns,
            "hop": "archive",
            "source": "spanlite archive retain",
            "direction": "dropped",
            "reason": "expired",
            "bucket": int(folder.name.removeprefix("bucket=")),
            "spans": sum(files.read_footer(folder / name).num_rows for name in names),
            "messages": len(names),
        }
