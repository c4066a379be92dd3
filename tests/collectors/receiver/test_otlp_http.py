"""The OTLP/HTTP receiver: with the real SDK, and with everything a sender can do wrong."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode
from spanlite.errors import ServiceError
from spanlite_collectors.receiver import OtlpHttpServer
from spanlite_collectors.sinks import MemorySink

PROTOBUF, JSON = "application/x-protobuf", "application/json"
LIMIT = 100_000


class Receiver:
    def __init__(self) -> None:
        self.sink = MemorySink()
        self.busy = False
        self.server = OtlpHttpServer(
            self.sink,
            ("127.0.0.1", 0),
            overloaded=lambda: self.busy,
            max_body_bytes=LIMIT,
        )
        self.server.start()

    def send(
        self,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
        path: str = "/v1/traces",
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_address[1])
        connection.request(method, path, body, {"Content-Type": PROTOBUF, **(headers or {})})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer, data


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.stop()


def request(trace_id: bytes = b"\1" * 16, spans: int = 1) -> ExportTraceServiceRequest:
    out = ExportTraceServiceRequest()
    group = out.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "svc"
    scope = group.scope_spans.add()
    for i in range(spans):
        scope.spans.add(
            trace_id=trace_id,
            span_id=(i + 1).to_bytes(8, "big"),
            name="work",
            start_time_unix_nano=1_700_000_000_000_000_000,
            end_time_unix_nano=1_700_000_000_000_000_500,
        )
    return out


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_real_sdk(receiver: Receiver, compression: Compression) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "llm"}))
    exporter = OTLPSpanExporter(receiver.server.url, compression=compression)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("test", "1.2")
    made = {}
    for i in range(300):
        with tracer.start_as_current_span("request", attributes={"tokens": i}) as outer:
            with tracer.start_as_current_span("decode") as inner:
                inner.set_status(Status(StatusCode.ERROR, "out of memory"))
            made[inner.get_span_context().span_id] = outer.get_span_context()
    provider.shutdown()
    rows = [row for spans, _ in receiver.sink.written for row in spans.to_pylist()]
    assert len(rows) == 600
    inner_rows = [row for row in rows if row["name"] == "decode"]
    assert {row["span_id"] for row in inner_rows} == set(made)
    for row in inner_rows:
        parent = made[row["span_id"]]
        assert row["parent_span_id"] == parent.span_id
        assert (row["trace_id_high"] << 64) + row["trace_id_low"] == parent.trace_id
        assert row["status"] == 2
    tokens = [json.loads(r["attributes"])["tokens"] for r in rows if r["name"] == "request"]
    assert sorted(tokens) == list(range(300))
    assert all(resource["service.name"] == "llm" for _, resource in receiver.sink.written)


def test_protobuf_and_json_say_the_same(receiver: Receiver) -> None:
    answer, data = receiver.send(request().SerializeToString())
    assert answer.status == 200 and answer.getheader("Content-Type") == PROTOBUF
    assert ExportTraceServiceResponse.FromString(data) == ExportTraceServiceResponse()
    document = {
        "resourceSpans": [
            {
                "resource": {
                    "attributes": [{"key": "service.name", "value": {"stringValue": "svc"}}]
                },
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "01" * 16,
                                "spanId": "0000000000000001",
                                "name": "work",
                                "startTimeUnixNano": "1700000000000000000",
                                "endTimeUnixNano": "1700000000000000500",
                            }
                        ]
                    }
                ],
            }
        ]
    }
    kind = {"Content-Type": "application/json; charset=utf-8"}
    answer, data = receiver.send(json.dumps(document).encode(), kind)
    assert (answer.status, json.loads(data)) == (200, {})
    (first, resource), (second, again) = receiver.sink.written
    assert first.to_pylist() == second.to_pylist()
    assert resource == again == {"service.name": "svc"}


def test_refused_spans_are_told_and_counted(receiver: Receiver) -> None:
    body = request(spans=2)
    body.resource_spans[0].scope_spans[0].spans[1].trace_id = bytes(16)
    answer, data = receiver.send(body.SerializeToString())
    told = ExportTraceServiceResponse.FromString(data).partial_success
    assert answer.status == 200
    assert told.rejected_spans == 1 and "1 invalid_id" in told.error_message
    assert receiver.sink.dropped == {"invalid_id": 1}
    assert receiver.sink.span_count == 1


GZIP = {"Content-Encoding": "gzip"}


@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (b"\xff\xff", {}, 400, "not an ExportTraceServiceRequest"),
        (b"{", {"Content-Type": JSON}, 400, "not OTLP/JSON"),
        (b"[" * 50_000, {"Content-Type": JSON}, 400, "not OTLP/JSON"),
        (b"[1]", {"Content-Type": JSON}, 400, "not OTLP/JSON"),
        (b'{"resourceSpans": [7]}', {"Content-Type": JSON}, 400, "not OTLP/JSON"),
        (b"x", {"Content-Type": "text/plain"}, 415, "text/plain"),
        (b"x", {"Content-Encoding": "br"}, 415, "'br'"),
        (b"plain text", GZIP, 400, "not gzip"),
        (gzip.compress(b"x" * 99)[:-9], GZIP, 400, "cut off"),
        (gzip.compress(bytes(LIMIT * 5)), GZIP, 413, "unpacked"),
        (gzip.compress(bytes(LIMIT * 2)) * 3, GZIP, 413, "unpacked"),
        (gzip.compress(b"") + b"junk", GZIP, 400, "to its end"),
        (gzip.compress(b"") + gzip.compress(b"x" * 99)[:-9], GZIP, 400, "cut off"),
        (gzip.compress(b"x" * 99)[:-8] + bytes(8), GZIP, 400, "not gzip"),
        (bytes(LIMIT * 100), {}, 413, "limit"),
        (b"x", {"Content-Length": "9" * 5000}, 413, "limit"),
        (b"x", {"Content-Length": "\u00b2"}, 400, "not one number"),
        (b"x", {"Content-Length": "-1"}, 400, "not one number"),
        (b"0\r\n\r\n", {"Content-Length": "5", "Transfer-Encoding": "chunked"}, 400, "no Transfer"),
        (bytes(LIMIT + 1), {}, 413, "limit"),
    ],
)
def test_bad_requests(
    receiver: Receiver, body: bytes, headers: dict[str, str], status: int, says: str
) -> None:
    answer, data = receiver.send(body, headers)
    assert answer.status == status
    assert says in data.decode(errors="replace")
    assert receiver.sink.written == []
    # And it still works.
    assert receiver.send(request().SerializeToString())[0].status == 200


def test_a_gzip_body_of_several_members_is_read_to_its_end(receiver: Receiver) -> None:
    parts = [request(bytes([n]) * 16).SerializeToString() for n in (1, 2, 3)]
    for cut in (parts, [parts[0][:7], parts[0][7:] + parts[1], b"", parts[2]]):
        before = receiver.sink.span_count
        body = b"".join(gzip.compress(part) for part in cut)
        assert receiver.send(body, GZIP)[0].status == 200
        assert receiver.sink.span_count == before + 3


def test_two_lengths_are_refused(receiver: Receiver) -> None:
    with socket.create_connection(receiver.server.server_address[:2], timeout=30) as raw:
        raw.sendall(b"POST /v1/traces HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_half_a_character_becomes_a_replacement(receiver: Receiver) -> None:
    body = (
        b'{"resourceSpans": [{"resource": {"attributes": [{"key": "\\udc00k", "value": '
        b'{"stringValue": "a\\ud800"}}]}, "scopeSpans": [{"spans": [{"traceId": "%s", "spanId": '
        b'"0000000000000001", "name": "\\uDFFF", "startTimeUnixNano": "1", "endTimeUnixNano": "2", '
        b'"attributes": [{"key": "e", "value": {"stringValue": "\\ud83d\\ude00"}}]}]}]}]}'
    ) % (b"01" * 16)
    assert receiver.send(body, {"Content-Type": JSON})[0].status == 200
    [(spans, resource)] = receiver.sink.written
    assert resource == {"\ufffdk": "a\ufffd"}
    assert spans.column("name").to_pylist() == ["\ufffd"]
    assert json.loads(spans.column("attributes")[0].as_py()) == {"e": "\U0001f600"}


def test_a_fault_of_ours_is_answered(receiver: Receiver) -> None:
    class Broken(MemorySink):
        def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
            raise KeyError("no such thing")

    receiver.server.sink = Broken()
    answer, data = receiver.send(request().SerializeToString())
    assert answer.status == 500 and b"KeyError" in data


def test_an_error_is_a_google_rpc_status(receiver: Receiver) -> None:
    status_pb2 = pytest.importorskip("google.rpc.status_pb2")
    _, data = receiver.send(b"x" * 10, {"Content-Encoding": "b" * 300})
    assert "b" * 300 in status_pb2.Status.FromString(data).message
    _, data = receiver.send(b"{", {"Content-Type": JSON})
    assert "not OTLP/JSON" in json.loads(data)["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/v1/metrics", 404), ("GET", "/v1/traces", 405), ("GET", "/", 404)],
)
def test_other_paths(receiver: Receiver, method: str, path: str, status: int) -> None:
    assert receiver.send(b"", method=method, path=path)[0].status == status


def test_overload_asks_to_come_back(receiver: Receiver) -> None:
    receiver.busy = True
    answer, _ = receiver.send(request().SerializeToString())
    assert answer.status == 503
    assert int(str(answer.getheader("Retry-After"))) > 0
    receiver.busy = False
    assert receiver.send(request().SerializeToString())[0].status == 200


def test_a_length_is_asked_for(receiver: Receiver) -> None:
    with socket.create_connection(receiver.server.server_address[:2], timeout=30) as raw:
        raw.sendall(b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: x\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 411 ")
    with socket.create_connection(receiver.server.server_address[:2], timeout=30) as raw:
        raw.sendall(b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_one_connection_takes_many_requests(receiver: Receiver) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", receiver.server.server_address[1])
    for _ in range(20):
        body = request().SerializeToString()
        connection.request("POST", "/v1/traces", body, {"Content-Type": PROTOBUF})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
    connection.close()
    assert receiver.sink.span_count == 20


def test_stop_waits_for_the_request_being_taken() -> None:
    entered, go = threading.Event(), threading.Event()

    class Slow(MemorySink):
        def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
            entered.set()
            go.wait(30)
            super().write(spans, resource)

    receiver = Receiver()
    receiver.server.sink = sink = Slow()
    statuses: list[int] = []
    body = request().SerializeToString()
    sender = threading.Thread(target=lambda: statuses.append(receiver.send(body)[0].status))
    sender.start()
    assert entered.wait(30)
    threading.Timer(0.3, go.set).start()
    receiver.server.stop()
    sender.join()
    assert statuses == [200]
    assert sink.span_count == 1


def test_a_taken_port_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"cannot listen on 127.0.0.1:{port}"):
            OtlpHttpServer(MemorySink(), ("127.0.0.1", port))
