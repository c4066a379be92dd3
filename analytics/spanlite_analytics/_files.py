"""Which Parquet files hold a table within a window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from spanlite.archive.layout import (
    INCOMING,
    NS_PER_HOUR,
    SPANS,
    Archive,
    hour_start_ns,
)
from spanlite.errors import ArchiveError
from spanlite.timewindow import ALL_TIME, TimeWindow


def _folders(parent: Path, prefix: str) -> Iterator[Path]:
    if parent.is_dir():
        yield from sorted(p for p in parent.iterdir() if p.name.startswith(prefix) and p.is_dir())


def _hours(table: Path) -> dict[str, Path]:
    """`date=/hour=` below a table, by name. A table by date only has hour 00 to 23 in one."""
    return {
        f"{date.name}/{hour.name}": hour
        for date in _folders(table, "date=")
        for hour in _folders(date, "hour=")
    }


def _parquet_below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):
            continue
        if path.is_dir():
            yield from _parquet_below(path)
        elif path.suffix == ".parquet":
            yield path


def _in_window(hour: str, window: TimeWindow) -> bool:
    try:
        start_ns = hour_start_ns(hour)
    except ValueError:
        raise ArchiveError(f"'{hour}' is not the name of an hour's folder: move it away") from None
    return window.overlaps(start_ns, start_ns + NS_PER_HOUR)


def span_hours(archive: Archive, window: TimeWindow = ALL_TIME) -> dict[str, Path]:
    """The folder to read each hour's spans from: `spans/` where it exists, else `incoming/`."""
    # `incoming` first: an hour that is compacted in between is then seen at least once,
    # and the update below keeps it from being seen twice.
    hours = _hours(archive.root / INCOMING)
    hours.update(_hours(archive.root / SPANS))
    return {hour: path for hour, path in sorted(hours.items()) if _in_window(hour, window)}


def span_files(archive: Archive, window: TimeWindow = ALL_TIME) -> list[Path]:
    """Files with spans that start within the window's hours."""
    return [f for folder in span_hours(archive, window).values() for f in _parquet_below(folder)]


def table_files(archive: Archive, table: str, window: TimeWindow = ALL_TIME) -> list[Path]:
    """Files of a table other than the spans (`traces`, `kernel_minutes`, `ledger`)."""
    root = archive.root / table
    if any(_folders(root, "date=")) and not _hours(root):
        return list(_parquet_below(root))  # by date only, and small
    hours = _hours(root)
    return [
        f
        for h, path in sorted(hours.items())
        if _in_window(h, window)
        for f in _parquet_below(path)
    ]
