"""New ids: one to one, parents and links as before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from spanlite_replay.respan import IdMap, respan

u64 = st.integers(0, 2**64 - 1)


@given(st.text(), st.sets(st.tuples(u64, u64), max_size=50))
def test_trace_ids_are_one_to_one(replay_id: str, ids: set[tuple[int, int]]) -> None:
    pairs = np.array(sorted(ids), dtype=np.uint64).reshape(-1, 2)
    low, high = IdMap.of(replay_id).traces(pairs[:, 0], pairs[:, 1])
    assert len(set(zip(low.tolist(), high.tolist(), strict=True))) == len(ids)


@given(st.text(), st.sets(u64, min_size=1, max_size=50))
def test_span_ids_are_one_to_one_and_none_stays_none(replay_id: str, ids: set[int]) -> None:
    mapping = IdMap.of(replay_id)
    # The one id that the constant would turn into "none" is among them.
    old = np.array(sorted(ids | {0, 2**64 - mapping.span_offset}), dtype=np.uint64)
    new = mapping.spans(old)
    assert len(set(new.tolist())) == len(old)
    assert ((new == 0) == (old == 0)).all()


def test_two_replays_share_no_trace() -> None:
    low = np.arange(1_000, dtype=np.uint64)
    one, two = (set(IdMap.of(name).traces(low, low)[0].tolist()) for name in ("a", "b"))
    assert not one & two and not one & set(low.tolist())


def test_parents_and_links_lead_to_where_they_led(
    make_spans: Callable[..., pa.RecordBatch],
) -> None:
    link = [{"trace_id_low": 8, "trace_id_high": 0, "span_id": 21}]
    old = make_spans(
        trace_id_low=[7, 7, 8],
        span_id=[20, 22, 21],
        parent_span_id=[0, 20, 0],
        start_ns=[1, 2, 3],
        links=[None, link, []],
    )
    new = respan(old, IdMap.of("r"), np.array([5, 6, 7]), np.array([1, 1, 1]))
    rows = new.to_pylist()
    assert rows[0]["parent_span_id"] == 0
    assert rows[1]["parent_span_id"] == rows[0]["span_id"] != 20
    (found,) = rows[1]["links"]
    assert found["span_id"] == rows[2]["span_id"]
    assert found["trace_id_low"] == rows[2]["trace_id_low"] != 8
    assert found["trace_id_high"] == rows[2]["trace_id_high"]
    assert rows[0]["links"] is None and rows[2]["links"] == []
    assert [row["start_ns"] for row in rows] == [5, 6, 7]
    assert isinstance(new, pa.RecordBatch) and new.schema == old.schema
