"""Bad bytes give a WireError: never another exception, a crash, a hang or much memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite.bucket import bucket_of
from spanlite.codec import MAX_SPANS, BatchView, decode_batch, decode_lite, is_batch, read_header
from spanlite.errors import WireError
from spanlite.v1 import spanlite_pb2 as pb

REASONS = {"malformed", "unsupported_version", "too_large", "wrong_bucket", "empty"}


def message() -> pb.SpanBatch:
    """A sound batch of 40 spans that uses every part of the format."""
    batch = pb.SpanBatch(
        header=pb.BatchHeader(schema_version=1, bucket_count=1, span_count=40, producer="p"),
        resource=pb.Resource(keys=["service.name"], values_json=['"s"']),
        strings=["kernel", "step", '{"a":1}'],
        trace_id_low=[1, 2],
        trace_id_high=[0, 3],
        trace_delta=[0] * 20 + [1] + [0] * 19,
        span_id_delta=[1 << 60] + [1] * 39,
        parent_distance_delta=[0, 1, *[1] * 38],
        start_delta=[1_000, *[10] * 39],
        duration_ns=list(range(40)),
        site_delta=[1, -1, *[0] * 38],
        attributes=[5, *[0] * 39],
        correlation_delta=[9, *[0] * 39],
        start_low_bits=bytes(40),
        duration_low_bits=bytes(40),
        link_row_delta=[0, 3],
        link_target=[0, 0],
        linked_trace_id_low=[7],
        linked_trace_id_high=[8],
        linked_span_id_delta=[9],
        launches=pb.LaunchTable(grid_x=[3], block_x=[128]),
    )
    batch.sites.CopyFrom(
        pb.SiteTable(name_delta=[0, 1], kind=[1, 9], launch=[1, 0], start_from_end=[1, 0])
    )
    return batch


def decode_all(data: bytes) -> None:
    """Everything a reader can do with a message."""
    decode_batch(data).spans.validate(full=True)


def check(data: bytes) -> None:
    """It decodes, or is refused with one of the known reasons."""
    try:
        decode_all(data)
    except WireError as error:
        assert error.reason in REASONS


def test_the_message_itself_is_sound() -> None:
    decode_all(message().SerializeToString())


def test_every_truncation() -> None:
    data = message().SerializeToString()
    for size in range(len(data)):
        check(data[:size])
    with pytest.raises(WireError, match="empty"):
        read_header(b"")


def test_flipped_bits() -> None:
    data = message().SerializeToString()
    for at in range(len(data)):
        for bit in (0, 6):
            check(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])


@given(st.binary(max_size=64), st.integers(0, 200), st.integers(0, 40))
@settings(max_examples=150)
def test_bytes_put_in_anywhere(noise: bytes, at: int, cut: int) -> None:
    data = message().SerializeToString()
    check(data[:at] + noise + data[at + cut :])


@given(st.lists(st.binary(max_size=40), max_size=6))
@settings(max_examples=150)
def test_any_bytes_as_lite(messages: list[bytes]) -> None:
    decoded = decode_lite(messages)
    kept = sum(batch.spans.num_rows for batch in decoded.batches)
    assert kept + len(decoded.bad) == len(messages)
    assert all(error.reason in REASONS for _, error in decoded.bad)


HEADER = b"\x0a\x06\x08\x01\x18\x01\x38\x01"  # version 1, one bucket, one span


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\xff\xff\xff\xff\x0f" + bytes(10),  # a header of 4 GiB
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        HEADER + b"\x1a\xff\xff\xff\xff\x07abc",  # a string of 2 GiB
        HEADER + b"\x8a\x01\xff\xff\xff\xff\x0f\x01",  # a packed column of 4 GiB
        HEADER + b"\x1a\x02\xff\xfe",  # a string that is not UTF-8
        HEADER + b"\x8a\x01\x0b" + b"\xff" * 11,  # a varint that never ends
        HEADER + b"\x22\x03abc",  # 8-byte numbers in 3 bytes
        HEADER + b"\x0b" * 100_000,  # groups in groups in groups
    ],
    ids=lambda data: data[:24].hex(),
)
def test_lengths_that_lie(data: bytes) -> None:
    with pytest.raises(WireError):
        decode_all(data)


Change = Callable[[pb.SpanBatch], object]
BAD: dict[str, tuple[str, Change]] = {
    "unknown version": ("unsupported_version", lambda m: setattr(m.header, "schema_version", 2)),
    "too many spans": ("too_large", lambda m: setattr(m.header, "span_count", MAX_SPANS + 1)),
    "count too small": ("malformed", lambda m: setattr(m.header, "span_count", 39)),
    "no buckets": ("malformed", lambda m: setattr(m.header, "bucket_count", 0)),
    "three buckets": ("malformed", lambda m: setattr(m.header, "bucket_count", 3)),
    "bucket out of range": ("malformed", lambda m: setattr(m.header, "bucket", 1)),
    "a trace of another bucket": ("wrong_bucket", lambda m: setattr(m.header, "bucket_count", 64)),
    "trace index": ("malformed", lambda m: m.trace_delta.__setitem__(0, 2)),
    "trace index below 0": ("malformed", lambda m: m.trace_delta.__setitem__(0, -1)),
    "no traces": ("malformed", lambda m: m.ClearField("trace_id_low")),
    "high halves": ("malformed", lambda m: m.trace_id_high.append(1)),
    "site index": ("malformed", lambda m: m.site_delta.__setitem__(0, 5)),
    "no sites": ("malformed", lambda m: m.ClearField("sites")),
    "site column": ("malformed", lambda m: m.sites.bytes.extend([1, 2, 3])),
    "name": ("malformed", lambda m: m.sites.name_delta.__setitem__(0, 9)),
    "name below 0": ("malformed", lambda m: m.sites.name_delta.__setitem__(0, -9)),
    "kind": ("malformed", lambda m: m.sites.kind.__setitem__(0, 256)),
    "device": ("malformed", lambda m: m.sites.device_plus_1.append((1 << 31) + 1)),
    "stream": ("malformed", lambda m: m.sites.stream_plus_1.append((1 << 63) + 1)),
    "start_from_end": ("malformed", lambda m: m.sites.start_from_end.__setitem__(0, 2)),
    "launch": ("malformed", lambda m: m.sites.launch.__setitem__(0, 2)),
    "launch table": ("malformed", lambda m: m.launches.grid_y.extend([1, 2])),
    "attributes": ("malformed", lambda m: m.attributes.__setitem__(0, 99)),
    "attributes below 0": ("malformed", lambda m: m.attributes.__setitem__(0, 4)),
    "attributes' length": ("malformed", lambda m: m.attributes.pop()),
    "low bits": ("malformed", lambda m: setattr(m, "start_low_bits", b"123")),
    "link row": ("malformed", lambda m: m.link_row_delta.__setitem__(1, 40)),
    "link rows that wrap": ("malformed", lambda m: _many_links(m)),
    "link target": ("malformed", lambda m: m.link_target.__setitem__(0, 1)),
    "link columns": ("malformed", lambda m: m.link_target.pop()),
    "linked spans": ("malformed", lambda m: m.linked_span_id_delta.pop()),
    "resource values": ("malformed", lambda m: m.resource.keys.append("b")),
    "resource JSON": ("malformed", lambda m: m.resource.values_json.__setitem__(0, "{")),
    "resource depth": ("malformed", lambda m: m.resource.values_json.__setitem__(0, "[" * 99_999)),
}


def _many_links(batch: pb.SpanBatch) -> None:
    """Rows whose sum is 0 again if counted in 32 bits."""
    del batch.link_row_delta[:], batch.link_target[:]
    batch.link_row_delta.extend([(1 << 32) - 1, 1])
    batch.link_target.extend([0, 0])


@pytest.mark.parametrize("what", BAD)
def test_each_lie_is_told(what: str) -> None:
    reason, change = BAD[what]
    batch = message()
    change(batch)
    with pytest.raises(WireError) as caught:
        decode_all(batch.SerializeToString())
    assert caught.value.reason == reason


def test_few_bytes_cannot_claim_much_memory() -> None:
    """A column of one value stands for all spans: 100 bytes, a million spans."""
    batch = pb.SpanBatch(strings=["x"], trace_id_low=[1], span_id_delta=[1], duration_ns=[7])
    batch.header.CopyFrom(pb.BatchHeader(schema_version=1, bucket_count=1, span_count=MAX_SPANS))
    batch.sites.name_delta.append(0)
    data = batch.SerializeToString()
    assert len(data) < 100
    tracemalloc.start()
    view = BatchView(data)
    checked = tracemalloc.get_traced_memory()[1]
    view.to_arrow()
    made = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert checked < 64 << 20
    assert made < 512 << 20


LITE_BAD: dict[str, bytes] = {
    "cut off": b"\x08",
    "no ids": b"",
    "not UTF-8": b"\x08\x01\x2a\x02\xff\xfe",
    "a start beyond 64 bits": pb.SpanLite(span_id=1, start_time_ms=1 << 62).SerializeToString(),
    "a kind beyond a byte": pb.SpanLite(span_id=1, kind=256).SerializeToString(),  # type: ignore[arg-type]
    "a device": pb.SpanLite(span_id=1, device_plus_1=(1 << 31) + 1).SerializeToString(),
    "a probability": pb.SpanLite(span_id=1, sampling_probability=1.5).SerializeToString(),
    "no number": pb.SpanLite(span_id=1, sampling_probability=float("nan")).SerializeToString(),
    "a list of attributes": pb.SpanLite(span_id=1, attributes_json="[1]").SerializeToString(),
    "no JSON": pb.SpanLite(span_id=1, attributes_json="{").SerializeToString(),
}


def test_bad_lite_messages_are_named_and_the_rest_kept() -> None:
    good = pb.SpanLite(trace_id=5, span_id=6, service="s").SerializeToString()
    messages = [good]
    for bad in LITE_BAD.values():
        messages += [bad, good]
    decoded = decode_lite(messages)
    assert [place for place, _ in decoded.bad] == list(range(1, len(messages), 2))
    (batch,) = decoded.batches
    assert batch.spans.num_rows == len(LITE_BAD) + 1


def test_the_five_published_fields_are_enough() -> None:
    """As any protobuf library in any language writes them: the bytes are written out here."""
    data = bytes.fromhex("0807 1009 18 f8bfd1dfb033 20 2a 2a 05") + b"spans"
    assert not is_batch(data)
    decoded = decode_lite([data])
    assert decoded.bad == []
    (batch,) = decoded.batches
    (span,) = batch.spans.to_pylist()
    assert (span["trace_id_low"], span["trace_id_high"], span["span_id"]) == (7, 0, 9)
    assert span["start_ns"] == 1_765_432_123_384 * 1_000_000
    assert span["duration_ns"] == 42_000_000
    assert batch.resource == {"service.name": "spans"}
    assert batch.header.bucket == bucket_of([7], [0])[0]


def test_lite_messages_are_grouped_by_resource_and_bucket() -> None:
    spans = [
        pb.SpanLite(trace_id=trace, span_id=i + 1, service=service, host="h", process_id=3)
        for i, (trace, service) in enumerate([(1, "a"), (2, "a"), (1, "b"), (1, "a"), (2, "a")])
    ]
    decoded = decode_lite([span.SerializeToString() for span in spans])
    found = {
        (batch.resource["service.name"], batch.header.bucket): batch.spans["span_id"].to_pylist()
        for batch in decoded.batches
    }
    one, two = bucket_of([1, 2], [0, 0]).tolist()
    assert found == {("a", one): [1, 4], ("a", two): [2, 5], ("b", one): [3]}
    assert json.dumps(decoded.batches[0].resource["process.pid"]) == "3"


@pytest.mark.parametrize(
    "header",
    [
        pb.BatchHeader(spans_before=(1 << 64) - 1),
        pb.BatchHeader(spans_before=(1 << 53) + 1),
        pb.BatchHeader(drops=[pb.DropCount(reason="r", spans=(1 << 64) - 1)]),
        pb.BatchHeader(sampling_probability=-0.5),
        pb.BatchHeader(sampling_probability=float("nan")),
        pb.BatchHeader(sampling_probability=5e-324),
        pb.BatchHeader(sampling_probability=1.5),
    ],
)
def test_counts_and_probabilities_that_no_sum_can_hold(header: pb.BatchHeader) -> None:
    batch = message()
    batch.header.MergeFrom(header)
    with pytest.raises(WireError, match="malformed"):
        read_header(batch.SerializeToString())


@pytest.mark.parametrize("text", [r'"\ud800"', r'["a", {"b": "\udfff x"}]', r'{"\ud83d": 1}'])
def test_half_a_character_in_a_resource(text: str) -> None:
    batch = message()
    batch.resource.CopyFrom(pb.Resource(keys=["host.name"], values_json=[text]))
    with pytest.raises(WireError, match="malformed"):
        BatchView(batch.SerializeToString())


def test_whole_characters_spelt_in_json_are_read() -> None:
    batch = message()
    batch.resource.CopyFrom(pb.Resource(keys=["k"], values_json=[r'"\ud83d\ude00 \u00e9"']))
    assert BatchView(batch.SerializeToString()).resource == {"k": "\U0001f600 \u00e9"}
