"""Invariant: at every hop, in = out + dropped + open; one span too many or too few is seen."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite.archive import schema
from spanlite.archive.layout import Archive
from spanlite_analytics import balance

HOUR = 1_796_108_400_000_000_000
Row = tuple[str, str, str, int]
counts = st.integers(0, 10**12)
reasons = st.dictionaries(
    st.sampled_from(["lost", "duplicate", "sampled_out", "malformed"]), counts
)


@st.composite
def balanced_hops(draw: st.DrawFn) -> list[Row]:
    """Rows of some hops that close, cut into parts as a job writes them."""
    rows: list[Row] = []
    for hop in draw(st.lists(st.sampled_from(["collector", "wire"]), unique=True, min_size=1)):
        out, drops, still_open = draw(counts), draw(reasons), draw(st.integers(-5, 5))
        total = out + sum(drops.values()) + still_open
        part = draw(st.integers(0, total)) if total > 0 else 0
        rows += [(hop, "in", "", part), (hop, "in", "", total - part), (hop, "out", "", out)]
        rows += [(hop, "dropped", reason, spans) for reason, spans in drops.items()]
        rows += [(hop, "open", "", still_open + 7), (hop, "open", "", -7)]
    return rows


def closes(rows: list[Row]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        archive = Archive.create(folder, 1)
        day = Path(folder) / "ledger" / "date=2026-12-01"
        day.mkdir(parents=True)
        items = [
            {
                "time_ns": HOUR, "hop": hop, "source": "s", "direction": direction,
                "reason": reason, "bucket": None, "spans": spans, "messages": 0,
            }
            for hop, direction, reason, spans in rows
        ]  # fmt: skip
        metadata = {schema.SCHEMA_VERSION_KEY: schema.SCHEMA_VERSION.encode()}
        columns = [pa.array([i[f.name] for i in items], f.type) for f in schema.LEDGER]
        table = pa.table(columns, schema=schema.LEDGER.with_metadata(metadata))
        pq.write_table(table, day / "part.parquet")
        return balance(archive).closes


@settings(max_examples=15, deadline=None)
@given(balanced_hops(), st.data())
def test_closes_exactly_when_every_span_is_accounted_for(
    rows: list[Row], data: st.DataObject
) -> None:
    assert closes(rows)
    at = data.draw(st.integers(0, len(rows) - 1))
    change = data.draw(st.sampled_from([-1, 1]))
    hop, direction, reason, spans = rows[at]
    assert not closes([*rows[:at], (hop, direction, reason, spans + change), *rows[at + 1 :]])
