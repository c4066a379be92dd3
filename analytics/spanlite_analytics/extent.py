"""Which time an archive is about, for when a window holds nothing."""

from __future__ import annotations

import duckdb
from spanlite.archive.layout import Archive
from spanlite.timewindow import ALL_TIME, format_time

from spanlite_analytics.views import reading

_EXTENT = "SELECT min(start_ns), max(start_ns) FROM "


def extent(archive: Archive) -> tuple[int, int] | tuple[None, None]:
    """First and last start of what the archive holds, kept or not; None where nothing."""

    def work(con: duckdb.DuckDBPyConnection) -> tuple[int, int] | tuple[None, None]:
        for table in ("spans", "traces"):
            row = con.execute(_EXTENT + table).fetchone()
            if row and row[0] is not None:
                return int(row[0]), int(row[1])
        return None, None

    return reading(archive, ALL_TIME, work)


def extent_words(first_ns: int | None, last_ns: int | None) -> str:
    """Where to look instead, as a sentence."""
    if first_ns is None or last_ns is None:
        return "the archive is empty"
    return (
        f"the archive holds spans from {format_time(first_ns)} to {format_time(last_ns)}: "
        "choose with --from and --to"
    )
