"""What an archive holds, from file names and footers alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spanlite.archive import files
from spanlite.archive.layout import KERNEL_MINUTES, LEDGER, SPANS, TRACES, Archive
from spanlite.timewindow import ALL_TIME, TimeWindow


@dataclass(frozen=True)
class Holding:
    """One hour of spans, or one folder of another table."""

    table: str
    folder: str
    state: str  # of spans: compacted, incoming, or both
    buckets: int
    files: int
    rows: int
    bytes: int


def holdings(archive: Archive, window: TimeWindow = ALL_TIME) -> Iterator[Holding]:
    """Every hour of spans, then every folder of the other tables, in order of time."""
    for hour in files.span_hours(archive, window):
        found = files.retry(partial(_hour, archive, hour))
        if found is not None:
            yield found
    for table in (TRACES, KERNEL_MINUTES, LEDGER):
        root = archive.root / table
        for folder in files.table_folders(archive.root, table, window):
            name = folder.relative_to(root).as_posix()
            yield files.retry(partial(_folder, table, name, folder))


def _hour(archive: Archive, hour: str) -> Holding | None:
    units = [files.unit_files(archive, hour, b) for b in range(archive.bucket_count)]
    paths = [path for unit in units for path in unit]
    if not paths:
        return None
    done = sum(archive.root / SPANS in path.parents for path in paths)
    state = "compacted" if done == len(paths) else "both" if done else "incoming"
    return _holding(SPANS, hour, state, sum(map(bool, units)), paths)


def _folder(table: str, name: str, folder: Path) -> Holding:
    return _holding(table, name, "", 0, files.folder_files(folder))


def _holding(table: str, folder: str, state: str, buckets: int, paths: list[Path]) -> Holding:
    rows = sum(files.read_footer(path).num_rows for path in paths)
    size = sum(path.stat().st_size for path in paths)
    return Holding(table, folder, state, buckets, len(paths), rows, size)
