"""OTLP files in each of their shapes, and files that only look like one."""

import gzip
import json

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from spanlite.errors import InputError
from spanlite_collectors.importers import import_file
from spanlite_collectors.sinks import MemorySink


def _request(first, count, service="s"):
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = service
    spans = group.scope_spans.add().spans
    for i in range(first, first + count):
        spans.add(
            trace_id=(i + 1).to_bytes(16, "big"), span_id=(i + 1).to_bytes(8, "big"),
            name=f"n{i}", start_time_unix_nano=10**18 + i, end_time_unix_nano=10**18 + 2 * i,
        )  # fmt: skip
    return request


def _varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _as_json(request):
    out = MessageToDict(request)
    for group in out["resourceSpans"]:
        for scope in group["scopeSpans"]:
            for at, span in enumerate(scope["spans"]):
                source = request.resource_spans[0].scope_spans[0].spans[at]
                span["traceId"], span["spanId"] = source.trace_id.hex(), source.span_id.hex()
    return json.dumps(out)


def _varints(requests):
    raw = [request.SerializeToString() for request in requests]
    return b"".join(_varint(len(data)) + data for data in raw)


def _fours(requests):
    raw = [request.SerializeToString() for request in requests]
    return b"".join(len(data).to_bytes(4, "big") + data for data in raw)


SHAPES = {
    "one_message": lambda r: b"".join(request.SerializeToString() for request in r),
    "varints": _varints,
    "big_endian": _fours,
    "json_lines": lambda r: "\n".join(_as_json(request) for request in r).encode(),
    "pretty": lambda r: (
        json.dumps(json.loads(_as_json(r[0])), indent=1).encode()
        + b"\n"
        + "".join(_as_json(request) for request in r[1:]).encode()
    ),
    "gzip": lambda r: gzip.compress(_varints(r)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_spans(tmp_path, shape):
    requests = [_request(0, 3), _request(3, 200, "other"), _request(203, 1)]
    path = tmp_path / "spans.bin"
    path.write_bytes(SHAPES[shape](requests))
    sink = MemorySink()
    report = import_file(path, sink)
    names = [row["name"] for spans, _ in sink.written for row in spans.to_pylist()]
    assert names == [f"n{i}" for i in range(204)]
    assert [resource["service.name"] for _, resource in sink.written] == ["s", "other", "s"]
    assert (report.format, report.spans, report.traces) == ("otlp", 204, 204)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_any_sizes_of_delimited_messages(tmp_path_factory, sizes):
    folder = tmp_path_factory.mktemp("otlp")
    requests, at = [], 0
    for size in sizes:
        requests.append(_request(at, size))
        at += size
    for shape in ("varints", "big_endian"):
        path = folder / shape
        path.write_bytes(SHAPES[shape](requests))
        assert import_file(path, MemorySink(), source_format="otlp").spans == sum(sizes)


def test_only_exact_repeats_are_duplicates(tmp_path):
    request, again = _request(0, 2), _request(0, 3)
    again.resource_spans[0].scope_spans[0].spans[1].name = "changed"
    path = tmp_path / "spans.bin"
    path.write_bytes(_varints([request, again]))
    sink = MemorySink()
    report = import_file(path, sink)
    names = [row["name"] for spans, _ in sink.written for row in spans.to_pylist()]
    assert sorted(names) == ["changed", "n0", "n1", "n2"]
    assert report.reasons == {"duplicate": 1} == sink.dropped
    assert (report.kinds["span"].read, report.kinds["span"].kept) == (5, 4)


def test_spans_that_cannot_be_kept_are_counted_and_told_to_the_ledger(tmp_path):
    request = _request(0, 2)
    request.resource_spans[0].scope_spans[0].spans[0].trace_id = b""
    path = tmp_path / "spans.bin"
    path.write_bytes(request.SerializeToString())
    sink = MemorySink()
    report = import_file(path, sink)
    assert report.reasons == {"invalid_id": 1} == sink.dropped


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (_varints([_request(0, 50)])[:-5], "cut off"),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}', "not OTLP"),
        (b'{"resourceSpans": [{"scopeSpans": 7}]}', "not OTLP"),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [', "cut off"),
        (b'{"resourceMetrics": []}', "no resourceSpans"),
        (b"\x0a\x03\x0a\x05x", "neither|no ExportTraceServiceRequest"),
    ],
)
def test_bad_files_say_what_is_wrong_and_send_nothing(tmp_path, content, says):
    path = tmp_path / "bad"
    path.write_bytes(content)
    sink = MemorySink()
    with pytest.raises(InputError, match=says):
        import_file(path, sink, source_format="otlp")
    assert sink.written == []


def test_spans_before_the_damage_are_not_sent_either(tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(_as_json(_request(0, 3)) + "\n" + _as_json(_request(3, 3))[:-40])
    sink = MemorySink()
    with pytest.raises(InputError, match="cut off"):
        import_file(path, sink)
    assert sink.written == []
