"""OTLP requests to spans: exact ids, attributes, events, links and refusals."""

import json

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind
from spanlite.schema import SPAN_SCHEMA
from spanlite_collectors.importers.otlp import convert_request, request_to_spans

TRACE = bytes(range(1, 17))
SPAN = bytes(range(0xF0, 0xF8))


def _request() -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add(schema_url="https://example.org/1")
    pair = group.resource.attributes.add(key="service.name")
    pair.value.string_value = "café"
    scope_spans = group.scope_spans.add()
    scope_spans.scope.name = "lib"
    span = scope_spans.spans.add(
        trace_id=TRACE,
        span_id=SPAN,
        name="décode",
        kind=2,
        start_time_unix_nano=1_700_000_000_123_456_789,
        end_time_unix_nano=1_700_000_000_123_456_790,
    )
    span.status.code, span.status.message = 2, "boom"
    return request


def test_every_field_survives():
    request = _request()
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.parent_span_id = b"\xff" * 8
    pair = span.attributes.add(key="a")
    pair.value.array_value.values.add().int_value = 2**62
    pair.value.array_value.values.add().double_value = float("nan")
    pair.value.array_value.values.add().bytes_value = b"\x00\xff"
    pair.value.array_value.values.add()
    event = span.events.add(name="exception", time_unix_nano=5)
    event.attributes.add(key="k").value.bool_value = True
    link = span.links.add(trace_id=b"\x80" + bytes(15), span_id=b"\x01" * 8)
    link.attributes.add(key="why").value.kvlist_value.values.add(key="x").value.string_value = "y"

    [(batch, resource)] = request_to_spans(request)

    assert batch.schema.equals(SPAN_SCHEMA)
    assert resource == {"service.name": "café", "otel.schema_url": "https://example.org/1"}
    [row] = batch.to_pylist()
    assert row["trace_id_high"] == 0x0102030405060708
    assert row["trace_id_low"] == 0x090A0B0C0D0E0F10
    assert row["span_id"] == 0xF0F1F2F3F4F5F6F7
    assert row["parent_span_id"] == 2**64 - 1
    assert (row["start_ns"], row["duration_ns"]) == (1_700_000_000_123_456_789, 1)
    assert (row["name"], row["status"], row["kind"]) == ("décode", 2, SpanKind.HOST)
    assert row["links"] == [
        {"trace_id_low": 0, "trace_id_high": 1 << 63, "span_id": 0x0101010101010101}
    ]
    assert json.loads(row["attributes"]) == {
        "a": [2**62, "NaN", "AP8=", None],
        "otel.scope.name": "lib",
        "span.kind": "server",
        "otel.status_description": "boom",
        "otel.events": [{"name": "exception", "time_unix_nano": 5, "attributes": {"k": True}}],
        "otel.links": [
            {
                "trace_id": "80" + "00" * 15,
                "span_id": "01" * 8,
                "attributes": {"why": {"x": "y"}},
            }
        ],
    }


def test_odd_times_are_flagged_not_hidden():
    request = _request()
    span = request.resource_spans[0].scope_spans[0].spans[0]
    span.start_time_unix_nano, span.end_time_unix_nano = 10, 4
    later = request.resource_spans[0].scope_spans[0].spans.add()
    later.CopyFrom(span)
    later.start_time_unix_nano = 0
    [(batch, _)] = request_to_spans(request)
    assert batch.column("duration_ns").to_pylist() == [-6, 4]
    assert batch.column("flags").to_pylist() == [
        SpanFlag.NEGATIVE_DURATION,
        SpanFlag.ZERO_TIMESTAMP,
    ]


def test_what_cannot_be_kept_is_counted():
    request = _request()
    spans = request.resource_spans[0].scope_spans[0].spans
    good = spans[0]
    for change in (
        {"trace_id": b"short"},
        {"trace_id": bytes(16)},
        {"span_id": bytes(8)},
        {"parent_span_id": b"x"},
        {"end_time_unix_nano": 2**63},
    ):
        bad = spans.add()
        bad.CopyFrom(good)
        for name, value in change.items():
            setattr(bad, name, value)
    result = convert_request(request)
    assert result.span_count == 1
    assert result.refused == {"invalid_id": 4, "invalid_time": 1}


def test_a_request_without_spans_gives_nothing():
    assert request_to_spans(ExportTraceServiceRequest()) == []
    request = ExportTraceServiceRequest()
    request.resource_spans.add()
    assert request_to_spans(request) == []
