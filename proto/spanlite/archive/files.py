"""Which files hold what, also while a compaction moves things.

A *unit* is one bucket of one hour; its spans are the same before, during and after a
compaction, so each unit may be listed on its own. A compacted file names, in its own
Parquet metadata, the files of `incoming/` that it took in. Hence the rule:

    spans of a unit = files of spans/ + files of incoming/ that none of those took in

`incoming/` is listed first: a file goes from there only after the one that took it in is
seen in `spans/`, so no span is missed, and the names keep any from being read twice. A
file that has vanished by the time it is opened means "list that unit again".

The small tables have one folder an hour (`ledger/` one a day), compacted in place: there
the files that another file of the folder took in are left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from spanlite.archive.layout import INCOMING, NS_PER_HOUR, SPANS, Archive, hour_start_ns
from spanlite.errors import ArchiveError
from spanlite.timewindow import ALL_TIME, TimeWindow

#: Parquet metadata key of a compacted file: a JSON list of the file names it took in.
ABSORBED_KEY = b"spanlite.absorbed"
#: Compacted files start with this, so that only their footers need to be asked.
COMPACTED = "compact-"
NS_PER_DAY = 24 * NS_PER_HOUR
#: How often a listing is repeated while files vanish under it.
ATTEMPTS = 20

_HOUR = re.compile(r"date=\d{4}-\d\d-\d\d/hour=([01]\d|2[0-3])")
_DATE = re.compile(r"date=\d{4}-\d\d-\d\d")
T = TypeVar("T")


def names_in(folder: Path) -> list[str]:
    """Sorted names in a folder that are data: not hidden, not ours to skip. Empty where none."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names are all we need, often thousands
        return sorted(name for name in names if not name.startswith((".", "_")))
    except FileNotFoundError:
        return []


def parquet_in(folder: Path) -> list[str]:
    """Sorted names of the Parquet files of a folder."""
    return [name for name in names_in(folder) if name.endswith(".parquet")]


def _settled(folder: Path) -> list[str]:
    """Names in a folder that is being compacted in place.

    One listing may miss both a file that goes and the one that replaces it; two equal ones
    in a row cannot, since the replacement is there before the file goes.
    """
    before = parquet_in(folder)
    for _ in range(ATTEMPTS):
        after = parquet_in(folder)
        if after == before:
            return after
        before = after
    raise ArchiveError(f"'{folder}' keeps changing while it is listed; try again")


@lru_cache(maxsize=65_536)
def absorbed_by(path: Path) -> frozenset[str]:
    """Names of the files that a compacted file took in. Its name is never used again."""
    metadata = read_footer(path).metadata or {}
    try:
        return frozenset(json.loads(metadata.get(ABSORBED_KEY, b"[]")))
    except (ValueError, TypeError) as error:
        raise ArchiveError(f"'{path}' has damaged metadata: {error}") from None


def read_footer(path: Path) -> pq.FileMetaData:
    """A file's Parquet metadata. Raises FileNotFoundError, and ArchiveError where damaged."""
    try:
        return pq.read_metadata(path)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"'{path}' is not a readable Parquet file: {error}") from None


def absorbed_in(folder: Path, names: Iterable[str]) -> set[str]:
    """Names of the files that those of a folder which are compacted ones took in."""
    taken: set[str] = set()
    for name in names:
        if name.startswith(COMPACTED):
            taken |= absorbed_by(folder / name)
    return taken


def hours_of(root: Path, table: str, window: TimeWindow = ALL_TIME) -> list[str]:
    """Sorted hour folders (`date=.../hour=..`) of a table within a window."""
    found = []
    for date in names_in(root / table):
        if not _DATE.fullmatch(date) or not _overlaps(date, window):
            continue
        for hour in names_in(root / table / date):
            folder = f"{date}/{hour}"
            if _HOUR.fullmatch(folder) and _overlaps(folder, window):
                found.append(folder)
    return found


def hour_range(hour: str) -> tuple[int, int]:
    """Start (inclusive) and end (exclusive) of an hour folder, in ns."""
    start = hour_start_ns(hour)
    return start, start + NS_PER_HOUR


def _overlaps(folder: str, window: TimeWindow) -> bool:
    is_day = "/" not in folder
    start = hour_start_ns(f"{folder}/hour=00" if is_day else folder)
    return window.overlaps(start, start + (NS_PER_DAY if is_day else NS_PER_HOUR))


def span_hours(archive: Archive, window: TimeWindow = ALL_TIME) -> list[str]:
    """Hours with spans, compacted or not."""
    # `incoming/` first, as above.
    incoming = hours_of(archive.root, INCOMING, window)
    return sorted({*incoming, *hours_of(archive.root, SPANS, window)})


def unit_files(archive: Archive, hour: str, bucket: int) -> list[Path]:
    """The files of one bucket of one hour, each of its spans in exactly one of them.

    Raises FileNotFoundError where one has vanished: list again.
    """
    incoming = archive.root / INCOMING / hour / f"bucket={bucket}"
    spans = archive.root / SPANS / hour / f"bucket={bucket}"
    fresh = parquet_in(incoming)
    done = parquet_in(spans)
    taken = absorbed_in(spans, done) if fresh and done else set()
    return [spans / n for n in done] + [incoming / n for n in fresh if n not in taken]


def folder_files(folder: Path) -> list[Path]:
    """The files of a small table's folder, each row in exactly one of them.

    Raises FileNotFoundError where one has vanished: list again.
    """
    names = _settled(folder)
    taken = absorbed_in(folder, names)
    return [folder / name for name in names if name not in taken]


def table_folders(root: Path, table: str, window: TimeWindow = ALL_TIME) -> Iterator[Path]:
    """The folders of a small table within a window: its hours, or days where it has no hours."""
    for date in names_in(root / table):
        if not _DATE.fullmatch(date) or not _overlaps(date, window):
            continue
        folder = root / table / date
        hours = [n for n in names_in(folder) if _HOUR.fullmatch(f"{date}/{n}")]
        if not hours or parquet_in(folder):
            yield folder
        yield from (folder / n for n in hours if _overlaps(f"{date}/{n}", window))


def retry(work: Callable[[], T]) -> T:
    """Do it, again where a file vanished meanwhile. Raises ArchiveError after some attempts."""
    for _ in range(ATTEMPTS - 1):
        try:
            return work()
        except FileNotFoundError:
            continue
    try:
        return work()
    except FileNotFoundError as error:
        raise ArchiveError(f"files keep vanishing ('{error.filename or error}')") from None
