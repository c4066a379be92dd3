"""Splitting by bucket and filling batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite.bucket import bucket_of
from spanlite_collectors.batching import Batcher, Ready, hashes_of, split_by_bucket

MakeSpans = Callable[..., pa.RecordBatch]


def ids(spans: pa.RecordBatch) -> list[int]:
    return spans.column("span_id").to_pylist()


@given(count=st.integers(0, 300), per_trace=st.integers(1, 50), seed=st.integers(0, 99))
def test_split_loses_nothing_and_keeps_the_order(
    make_spans: MakeSpans, count: int, per_trace: int, seed: int
) -> None:
    spans = make_spans(count, per_trace=per_trace, seed=seed)
    buckets = (hashes_of(spans) & np.uint64(63)).astype(np.int64)
    parts = list(split_by_bucket(spans, buckets))
    assert sorted(i for _, part in parts for i in ids(part)) == ids(spans)
    assert len({bucket for bucket, _ in parts}) == len(parts)
    for bucket, part in parts:
        assert ids(part) == sorted(ids(part))
        low, high = part.column("trace_id_low"), part.column("trace_id_high")
        assert (bucket_of(low.to_numpy(), high.to_numpy()) == bucket).all()


def test_a_batch_is_sent_when_it_is_full(make_spans: MakeSpans) -> None:
    batcher = Batcher(batch_spans=100)
    batcher.add(3, make_spans(60), {"a": 1})
    assert list(batcher.take_full()) == []
    batcher.add(3, make_spans(60, first_id=61), {"a": 1})
    full = list(batcher.take_full())
    assert [ready.spans.num_rows for ready in full] == [120]
    assert [i for ready in full for i in ids(ready.spans)] == list(range(1, 121))
    assert batcher.pending_spans == 0


def test_what_is_far_more_than_a_batch_is_cut_evenly(make_spans: MakeSpans) -> None:
    batcher = Batcher(batch_spans=100)
    batcher.add(3, make_spans(180), {})
    full = list(batcher.take_full())
    assert [ready.spans.num_rows for ready in full] == [90, 90]
    assert [i for ready in full for i in ids(ready.spans)] == list(range(1, 181))


def test_text_makes_a_batch_full_too(make_spans: MakeSpans) -> None:
    batcher = Batcher(batch_bytes=10_000)
    spans = make_spans(10)
    long = pa.array(["x" * 2000 + str(i) for i in range(10)]).dictionary_encode()
    at = spans.schema.get_field_index("attributes")
    batcher.add(0, spans.set_column(at, spans.schema.field(at), long), {})
    assert len(list(batcher.take_full())) == 1


def test_resources_are_not_mixed(make_spans: MakeSpans) -> None:
    batcher = Batcher()
    batcher.add(0, make_spans(5), {"service.name": "a"})
    batcher.add(0, make_spans(5, first_id=6), {"service.name": "b"})
    batcher.add(0, make_spans(5, first_id=11), {"service.name": "a"})
    out = {r.resource["service.name"]: ids(r.spans) for r in batcher.take_all()}
    assert out == {"a": [1, 2, 3, 4, 5, 11, 12, 13, 14, 15], "b": [6, 7, 8, 9, 10]}


def test_old_batches_leave_first_and_only_while_there_is_room(make_spans: MakeSpans) -> None:
    now = [0.0]
    batcher = Batcher(batch_age_s=1, clock=lambda: now[0])
    for bucket in range(3):
        now[0] = bucket * 0.4
        batcher.add(bucket, make_spans(1), {})
    now[0] = 1.5
    room = iter([True, False])
    assert [r.bucket for r in batcher.take_aged(lambda: next(room))] == [0]
    assert [r.bucket for r in batcher.take_aged(lambda: True)] == [1]
    now[0] = 1.8
    assert [r.bucket for r in batcher.take_aged(lambda: True)] == [2]


def test_what_waits_is_bounded(make_spans: MakeSpans) -> None:
    batcher = Batcher(pending_spans=50)
    sent: list[Ready] = []
    for bucket in range(20):
        batcher.add(bucket, make_spans(10), {})
        sent += batcher.take_full()
        assert batcher.pending_spans <= 50
    assert [ready.bucket for ready in sent] == list(range(15))


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_joined_parts_hold_the_same_text(make_spans: MakeSpans, parts: int) -> None:
    batcher = Batcher()
    whole = [make_spans(9, first_id=9 * i + 1, seed=i) for i in range(parts)]
    for spans in whole:
        batcher.add(0, spans, {})
    (ready,) = batcher.take_all()
    expected = [row for spans in whole for row in spans.to_pylist()]
    assert ready.spans.to_pylist() == expected
