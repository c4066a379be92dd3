"""Archives as pandas data frames, for notebooks."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pandas as pd
from spanlite.archive.layout import SPANS, Archive
from spanlite.archive.reader import SCHEMAS
from spanlite.errors import UsageError
from spanlite.timewindow import TimeWindow, parse_time

from spanlite_analytics.views import reading


def _time(value: int | str | None) -> int | None:
    return parse_time(value) if isinstance(value, str) else value


def load(
    archive: str | os.PathLike[str] | Archive,
    start: int | str | None = None,
    end: int | str | None = None,
    *,
    table: str = SPANS,
    columns: Sequence[str] | None = None,
    where: str = "",
) -> pd.DataFrame:
    """Rows of a table (`spans`, `traces`, `kernel_minutes`, `ledger`) within a window.

    `start` (inclusive) and `end` (exclusive): Unix ns, or words as on the command line
    (`2026-12-01T07:15`, `-15m`). `columns`: only these; a window of a busy fleet is large.
    `where`: a SQL condition, such as `kind = 'kernel' AND duration_ns > 1e6`.

    Columns that are never null keep their integer types, so that no nanosecond is lost.
    Raises ArchiveError and UsageError.
    """
    if table not in SCHEMAS:
        raise UsageError(f"there is no table '{table}'; there are {', '.join(SCHEMAS)}")
    chosen = "*" if columns is None else ", ".join(f'"{name}"' for name in columns)
    sql = f"SELECT {chosen} FROM {table}" + (f" WHERE {where}" if where else "")
    return query(archive, sql, start, end)


def query(
    archive: str | os.PathLike[str] | Archive,
    sql: str,
    start: int | str | None = None,
    end: int | str | None = None,
) -> pd.DataFrame:
    """The rows of a statement over the views that `spanlite query` has."""
    opened = archive if isinstance(archive, Archive) else Archive.open(archive)
    window = TimeWindow(_time(start), _time(end))
    frame: pd.DataFrame = reading(opened, window, lambda con: con.sql(sql).df())
    return frame
