"""Which time an archive is about, for when a window holds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import duckdb
from spanlite.archive.layout import Archive
from spanlite.timewindow import ALL_TIME, TimeWindow, format_time

from spanlite_analytics.views import reading

Extent: TypeAlias = tuple[int, int] | tuple[None, None]


def _extent(archive: Archive, columns: Sequence[tuple[str, str]]) -> Extent:
    """Least and largest of the first (table, column) that has any."""

    def work(con: duckdb.DuckDBPyConnection) -> Extent:
        for table, column in columns:
            row = con.execute(f"SELECT min({column}), max({column}) FROM {table}").fetchone()
            if row and row[0] is not None:
                return int(row[0]), int(row[1])
        return None, None

    return reading(archive, ALL_TIME, work)


def extent(archive: Archive) -> Extent:
    """First and last start of what the archive holds, kept or not; None where nothing."""
    return _extent(archive, (("spans", "start_ns"), ("traces", "start_ns")))


def counted_extent(archive: Archive) -> Extent:
    """When the first and the last of the ledger's rows were counted; None where there is none."""
    return _extent(archive, (("ledger", "time_ns"),))


def window_words(archive: Archive, window: TimeWindow) -> str:
    """What follows "there is none": in which window, and which time there is; empty without one."""
    return "" if window == ALL_TIME else f" in {window}; {extent_words(*extent(archive))}"


def extent_words(first_ns: int | None, last_ns: int | None) -> str:
    """Where to look instead, as a sentence."""
    if first_ns is None or last_ns is None:
        return "the archive is empty"
    return (
        f"the archive holds spans from {format_time(first_ns)} to {format_time(last_ns)}: "
        "choose with --from and --to"
    )
