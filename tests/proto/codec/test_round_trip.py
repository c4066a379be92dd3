"""Every value comes back exactly, in both shapes of the wire."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from spanlite.codec import (
    MAX_SPANS,
    Batch,
    BatchView,
    decode_batch,
    decode_lite,
    encode_batch,
    encode_lite,
)
from spanlite.codec import _columns as col
from spanlite.errors import WireError
from spanlite.schema import LAUNCH_COLUMNS, LINK_TYPE, SPAN_SCHEMA
from spanlite.v1 import spanlite_pb2 as pb

U64_MAX = (1 << 64) - 1
I64 = np.iinfo(np.int64)


def ints(low: int, high: int) -> st.SearchStrategy[int]:
    """Any integer of a range, its ends and 0 often."""
    edges = [value for value in (low, low + 1, 0, 1, high - 1, high) if low <= value <= high]
    return st.one_of(st.sampled_from(edges), st.integers(low, high))


U64 = ints(0, U64_MAX)
U32 = ints(0, (1 << 32) - 1)
# A text that UTF-8 can carry: no lone surrogates.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)
ATTRIBUTES = st.none() | st.dictionaries(TEXT, JSON, max_size=3).map(json.dumps)

COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "span_id": U64,
    "parent_span_id": U64,
    "start_ns": ints(I64.min, I64.max),
    "duration_ns": ints(I64.min, I64.max),
    "kind": ints(0, 255),
    "name": TEXT,
    "status": ints(0, 255),
    "attributes": ATTRIBUTES,
    "device": ints(-1, (1 << 31) - 1),
    "context": ints(-1, I64.max),
    "stream": ints(-1, I64.max),
    "thread_id": U64,
    "correlation_id": U64,
    "graph_id": U32,
    "graph_node_id": U64,
    **dict.fromkeys(LAUNCH_COLUMNS, U32),
    "bytes": U64,
    "copy_kind": ints(0, 255),
    "flags": U32,
    "links": st.none()
    | st.lists(st.fixed_dictionaries({field.name: U64 for field in LINK_TYPE}), max_size=3),
}
TRACES = st.lists(st.tuples(U64, U64), min_size=1, max_size=3)


@st.composite
def batches(draw: st.DrawFn, max_spans: int = 8) -> Batch:
    """A batch of 0 to `max_spans` spans with any values; columns are often constant."""
    count = draw(st.integers(0, max_spans))
    traces = draw(TRACES)
    picks = draw(st.lists(st.sampled_from(traces), min_size=count, max_size=count))
    columns: dict[str, list[Any]] = {
        "trace_id_low": [low for low, _ in picks],
        "trace_id_high": [high for _, high in picks],
    }
    for name, values in COLUMNS.items():
        if draw(st.booleans()):
            columns[name] = [draw(values)] * count
        else:
            columns[name] = draw(st.lists(values, min_size=count, max_size=count))
    resource = draw(st.dictionaries(TEXT, JSON, max_size=3))
    header = pb.BatchHeader(bucket=0, bucket_count=1, producer=draw(TEXT), seq=draw(U64))
    return Batch(header, to_spans(columns), resource)


def to_spans(columns: dict[str, list[Any]]) -> pa.RecordBatch:
    """Columns of Python values as a record batch in SPAN_SCHEMA."""
    arrays = []
    for item in SPAN_SCHEMA:
        if isinstance(item.type, pa.DictionaryType):
            arrays.append(pa.array(columns[item.name], pa.string()).dictionary_encode())
        else:
            arrays.append(pa.array(columns[item.name], item.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)


def plain(spans: pa.RecordBatch) -> dict[str, list[Any]]:
    """Columns as Python values; no links are null, as either form may be given."""
    out = {name: spans.column(name).to_pylist() for name in SPAN_SCHEMA.names}
    out["links"] = [links or None for links in out["links"]]
    return out


def spans_of(count: int, **columns: list[Any]) -> pa.RecordBatch:
    """`count` spans whose other columns are all "none"."""
    values: dict[str, list[Any]] = {
        name: [None if field.nullable else 0] * count
        for name, field in zip(SPAN_SCHEMA.names, SPAN_SCHEMA, strict=True)
    }
    values["name"] = [""] * count
    for name in ("device", "context", "stream"):
        values[name] = [-1] * count
    return to_spans(values | columns)


def one_bucket(spans: pa.RecordBatch) -> Batch:
    return Batch(pb.BatchHeader(bucket=0, bucket_count=1), spans)


@given(batches())
@settings(max_examples=80)
def test_batch_round_trips(batch: Batch) -> None:
    back = decode_batch(encode_batch(batch))
    assert plain(back.spans) == plain(batch.spans)
    assert back.resource == batch.resource
    assert back.spans.schema.equals(SPAN_SCHEMA)
    back.spans.validate(full=True)
    assert back.header.span_count == batch.spans.num_rows
    assert (back.header.producer, back.header.seq) == (batch.header.producer, batch.header.seq)


@given(batches(), st.data())
@settings(max_examples=40)
def test_chosen_rows_are_those_of_the_whole(batch: Batch, data: st.DataObject) -> None:
    view = BatchView(encode_batch(batch))
    whole = view.to_arrow()
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=view.count, max_size=view.count)))
    mask = mask.astype(bool)
    assert plain(view.to_arrow(mask)) == plain(whole.filter(pa.array(mask)))
    rows = np.flatnonzero(mask)[::-1]
    assert plain(view.to_arrow(rows)) == plain(whole.take(pa.array(rows)))


@given(batches())
@settings(max_examples=40)
def test_columns_agree_with_arrow(batch: Batch) -> None:
    view = BatchView(encode_batch(batch))
    spans = view.to_arrow()
    words = [*view.strings.to_pylist(), None]
    for name in SPAN_SCHEMA.names:
        if name == "links":
            continue
        values = view.column(name).tolist()
        if name in ("name", "attributes"):
            values = [words[i - (name == "attributes")] for i in values]
        assert values == spans.column(name).to_pylist(), name


@given(batches())
@settings(max_examples=60)
def test_lite_round_trips(batch: Batch) -> None:
    has_id = [
        any(ids)
        for ids in zip(
            *(
                batch.spans.column(i).to_pylist()
                for i in ("trace_id_low", "trace_id_high", "span_id")
            ),
            strict=True,
        )
    ]
    decoded = decode_lite(encode_lite(batch), bucket_count=1)
    assert [place for place, _ in decoded.bad] == [i for i, ok in enumerate(has_id) if not ok]
    expected = plain(batch.spans.filter(pa.array(has_id, pa.bool_())))
    if any(has_id):
        (back,) = decoded.batches
        assert plain(back.spans) == expected
        assert back.header.span_count == sum(has_id)
    else:
        assert decoded.batches == []


@pytest.mark.parametrize("count", [0, 1, 2, 1_000, 1_000_000, MAX_SPANS])
def test_batches_of_every_size(count: int) -> None:
    ids = np.arange(count, dtype=np.uint64)
    spans = spans_of(min(count, 1), name=["x"][:count]).take(pa.array(np.zeros(count, np.int32)))
    columns = {name: spans.column(name) for name in SPAN_SCHEMA.names}
    columns["span_id"] = pa.array(ids * np.uint64(0x9E3779B97F4A7C15))
    columns["start_ns"] = pa.array((ids % np.uint64(977)).view(np.int64) - 100)
    columns["duration_ns"] = pa.array((ids * ids).view(np.int64))
    spans = pa.RecordBatch.from_arrays(list(columns.values()), schema=SPAN_SCHEMA)
    back = decode_batch(encode_batch(one_bucket(spans))).spans
    assert back.num_rows == count
    for name in ("span_id", "start_ns", "duration_ns", "trace_id_low", "device"):
        assert back.column(name).equals(spans.column(name)), name
    assert back.column("name").to_pylist()[:3] == ["x"] * min(count, 3)


def test_one_span_too_many_is_refused() -> None:
    spans = spans_of(1).take(pa.array(np.zeros(MAX_SPANS + 1, np.int32)))
    with pytest.raises(WireError, match="too_large"):
        encode_batch(one_bucket(spans))


def test_a_clock_that_steps_backwards() -> None:
    starts = [1_000_000_000_000, 999_999_999_999, 0, -5, I64.max, I64.min, 7]
    durations = [5, -5, I64.min, I64.max, 0, -1, 1]
    for kind in (1, 9):  # counted from the end before, or from the start before
        spans = spans_of(7, start_ns=starts, duration_ns=durations, kind=[kind] * 7)
        back = decode_batch(encode_batch(one_bucket(spans))).spans
        assert back.column("start_ns").to_pylist() == starts
        assert back.column("duration_ns").to_pylist() == durations


def test_operations_in_a_row_count_from_the_end_before() -> None:
    """It makes messages smaller, so it must really happen."""
    durations = [1_000, 90_000, 3, 500_000] * 50
    starts = np.cumsum([0, *[d + 2 for d in durations[:-1]]]).tolist()
    message = encode_batch(
        one_bucket(spans_of(200, start_ns=starts, duration_ns=durations, kind=[1] * 200))
    )
    assert list(pb.SpanBatch.FromString(message).sites.start_from_end) == [1]
    assert decode_batch(message).spans.column("start_ns").to_pylist() == starts


def test_noise_bits_are_kept_apart() -> None:
    durations = np.random.default_rng(3).integers(I64.min, I64.max, 500).tolist()
    message = encode_batch(one_bucket(spans_of(500, duration_ns=durations)))
    assert len(pb.SpanBatch.FromString(message).duration_low_bits) == 500
    assert decode_batch(message).spans.column("duration_ns").to_pylist() == durations


@pytest.mark.parametrize("name", ["device", "context", "stream"])
def test_numbers_below_none_are_refused(name: str) -> None:
    batch = one_bucket(spans_of(1, **{name: [-2]}))
    for encode in (encode_batch, encode_lite):
        with pytest.raises(WireError, match=name):
            encode(batch)


@pytest.mark.parametrize("half", ["\ud800", ["a", {"b\udfff": 1}]])
def test_half_a_character_is_refused(half: Any) -> None:
    """JSON can spell it, UTF-8 cannot: whoever decoded it could not write it again."""
    batch = one_bucket(spans_of(2, attributes=["{}", json.dumps({"a": half})]))
    with pytest.raises(WireError, match="half a character"):
        encode_batch(batch)
    sound = one_bucket(spans_of(1, attributes=["{}"]))
    for resource in ({"a": half}, {"a\udfff": 1}):
        with pytest.raises(WireError, match="half a character"):
            encode_batch(Batch(sound.header, sound.spans, resource))


@pytest.mark.parametrize(
    "text", ['{"a":"\\ud83d\\ude00"}', '{"a":"\\\\ud800"}', "\\ud800", '{"a":"\\ud800', ""]
)
def test_what_only_looks_like_half_a_character_is_kept(text: str) -> None:
    batch = one_bucket(spans_of(1, attributes=[text], name=["\\ud800"]))
    resource = {"pair": "\U0001f600", "spelt": "\\ud800"}
    again = decode_batch(encode_batch(Batch(batch.header, batch.spans, resource)))
    assert again.resource == resource
    assert again.spans.column("attributes").to_pylist() == [text]
    assert again.spans.column("name").to_pylist() == ["\\ud800"]


@given(st.lists(U64, max_size=20).map(lambda v: np.array(v, np.uint64)))
@example(np.array([0, U64_MAX, 0], np.uint64))
def test_delta_is_a_bijection(values: Any) -> None:
    assert (col.undelta(col.delta(values), len(values)) == values).all()


@given(st.lists(st.tuples(U64, U64), max_size=20))
@example([(5, 5), (0, 0), (7, 0), (0, 9)])
def test_parent_distance_is_a_bijection(pairs: list[tuple[int, int]]) -> None:
    own, parent = np.array(pairs, np.uint64).reshape(-1, 2).T.copy()
    assert (col.decode_parent(own, col.encode_parent(own, parent)) == parent).all()


@given(st.lists(ints(-1, (1 << 30) - 1), max_size=20))
def test_sparse_index_is_a_bijection(index: list[int]) -> None:
    codes = col.encode_sparse(np.array(index, np.int64)).astype(np.uint32)
    assert (col.decode_sparse(codes, len(index)) - 1).tolist() == index


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=30))
def test_distinct_rows_by_first_appearance(rows: list[tuple[int, int]]) -> None:
    columns = list(np.array(rows, np.int64).reshape(-1, 2).T)
    for find in (col.distinct, lambda c, n: col._sorted_distinct(c)):
        index, first = find(columns, len(rows))
        seen = list(dict.fromkeys(rows))
        if rows:
            assert [rows[i] for i in first] == seen
            assert index.tolist() == [seen.index(row) for row in rows]
