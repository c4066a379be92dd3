"""Other engines read the compacted spans with nothing of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import duckdb
import pandas as pd
import pytest
from spanlite.archive.compact import Policy, compact
from spanlite.archive.layout import SPANS, Archive
from spanlite.archive.reader import ArchiveReader
from spanlite.timewindow import TimeWindow

Rows = Callable[..., list[dict[str, Any]]]
HOUR_NS = 3_600_000_000_000
T0 = 1_796_108_400_000_000_000 - 48 * HOUR_NS


@pytest.fixture
def rows(archive: Archive, commit: Any, rows_of: Rows) -> list[dict[str, Any]]:
    """Two compacted hours; the rows that are in them."""
    rows = rows_of(30, 40, seed=1, start_ns=T0) + rows_of(5, 10, seed=2, start_ns=T0 + HOUR_NS)
    rows[0]["links"] = [
        {"trace_id_low": 1, "trace_id_high": 0, "span_id": 2},
        {"trace_id_low": 3, "trace_id_high": 4, "span_id": 5},
    ]
    rows[1]["attributes"] = '{"a":1}'
    commit(archive, rows, "part-0")
    compact(archive, Policy(grace_ns=0, keep_ns=0))
    return rows


def test_duckdb(archive: Archive, rows: list[dict[str, Any]]) -> None:
    pattern = str(archive.root / SPANS / "*/*/*/*.parquet")
    spans = duckdb.read_parquet(pattern, hive_partitioning=True)
    query = (
        "SELECT name, count(*), sum(duration_ns), count(grid_x), sum(grid_x) FROM spans GROUP BY 1"
    )
    found = {name: rest for name, *rest in duckdb.sql(query).fetchall()}
    for name in {row["name"] for row in rows}:
        mine = [row for row in rows if row["name"] == name]
        grids = [row["grid_x"] for row in mine if "grid_x" in row]
        total = sum(row["duration_ns"] for row in mine)
        assert found[name] == [len(mine), total, len(grids), sum(grids) if grids else None]
    hours = duckdb.sql("SELECT date, hour, count(*) FROM spans GROUP BY ALL").fetchall()
    assert sorted(count for *_, count in hours) == [50, 1200]
    linked = duckdb.sql("SELECT links FROM spans WHERE links IS NOT NULL").fetchall()
    assert [link["span_id"] for link in linked[0][0]] == [2, 5]
    assert len(spans.filter("attributes IS NOT NULL").fetchall()) == 1
    one = duckdb.sql(f"SELECT count(*) FROM spans WHERE trace_id = '{_id(rows[0])}'").fetchall()
    assert one == [(40,)]


def _id(row: dict[str, Any]) -> str:
    return f"{row['trace_id_high']:016x}{row['trace_id_low']:016x}"


def test_pandas(archive: Archive, rows: list[dict[str, Any]]) -> None:
    frame = pd.read_parquet(archive.root / SPANS)
    assert len(frame) == len(rows)
    assert Counter(frame["trace_id"]) == Counter(map(_id, rows))
    assert set(frame["span_id"]) == {row["span_id"] for row in rows}
    assert {"date", "hour", "bucket"} <= set(frame.columns)


def test_reader_windows_and_lookups(archive: Archive, rows: list[dict[str, Any]]) -> None:
    reader = ArchiveReader(archive)
    window = TimeWindow(T0 + 100_000_000, T0 + 500_000_000)
    batches = list(reader.scan(window, columns=["name", "start_ns"], by_time=True))
    starts = [t for batch in batches for t in batch.column("start_ns").to_pylist()]
    assert starts == sorted(row["start_ns"] for row in rows if row["start_ns"] in window)
    assert batches[0].schema.names == ["name", "start_ns"]
    wanted = rows[45]
    table = reader.find_trace(wanted["trace_id_low"], wanted["trace_id_high"])
    mine = [row for row in rows if _id(row) == _id(wanted)]
    assert table.column("span_id").to_pylist() == [row["span_id"] for row in mine]
    assert reader.find_trace(1, 2).num_rows == 0
    opened = ArchiveReader(archive)
    opened.find_trace(wanted["trace_id_low"], wanted["trace_id_high"], window)
    assert opened.files_opened == 1
