"""The same spans in other formats: JSON rows, OTLP protobuf, the published SpanLite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from spanlite.schema import MINUS_ONE_IS_NONE, SPAN_SCHEMA
from spanlite.v1 import spanlite_pb2 as pb

#: Columns that OTLP has a field for; the rest travel as attributes.
_OTLP_FIELDS = frozenset(
    {
        "trace_id_low", "trace_id_high", "span_id", "parent_span_id", "start_ns", "duration_ns",
        "name", "status", "attributes", "links",
    }
)  # fmt: skip
_ATTRIBUTES = [name for name in SPAN_SCHEMA.names if name not in _OTLP_FIELDS]
_MASK = (1 << 64) - 1


def rows_of(spans: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Spans as Python objects, a slice at a time."""
    for start in range(0, spans.num_rows, 4096):
        yield from spans.slice(start, 4096).to_pylist()


def given(row: dict[str, Any]) -> dict[str, Any]:
    """What a row has beyond OTLP's own fields, without its "none"s."""
    return {
        name: row[name]
        for name in _ATTRIBUTES
        if row[name] != (-1 if name in MINUS_ONE_IS_NONE else 0)
    }


def json_rows(spans: pa.RecordBatch, resource: dict[str, Any]) -> bytes:
    """One JSON object a span and line, ids as hex, nothing that is none."""
    lines = []
    for row in rows_of(spans):
        span = {
            "trace_id": f"{row['trace_id_high']:016x}{row['trace_id_low']:016x}",
            "span_id": f"{row['span_id']:016x}",
            "name": row["name"],
            "start_ns": row["start_ns"],
            "duration_ns": row["duration_ns"],
            "service": resource.get("service.name", ""),
            **given(row),
        }
        if row["parent_span_id"]:
            span["parent_span_id"] = f"{row['parent_span_id']:016x}"
        if row["attributes"]:
            span["attributes"] = json.loads(row["attributes"])
        lines.append(json.dumps(span, separators=(",", ":")))
    return "\n".join(lines).encode()


def otlp(spans: pa.RecordBatch, resource: dict[str, Any]) -> bytes:
    """One ExportTraceServiceRequest."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    for key, value in resource.items():
        group.resource.attributes.append(_key_value(key, value))
    target = group.scope_spans.add().spans
    for row in rows_of(spans):
        end = max(0, row["start_ns"] + row["duration_ns"])
        span = Span(
            trace_id=_trace_id(row),
            span_id=row["span_id"].to_bytes(8, "big"),
            name=row["name"],
            start_time_unix_nano=max(0, row["start_ns"]),
            end_time_unix_nano=end,
            kind=Span.SPAN_KIND_INTERNAL,
        )
        if row["parent_span_id"]:
            span.parent_span_id = row["parent_span_id"].to_bytes(8, "big")
        if row["status"]:
            span.status.code = row["status"]
        extra = json.loads(row["attributes"]) if row["attributes"] else {}
        span.attributes.extend(_key_value(k, v) for k, v in (given(row) | extra).items())
        for link in row["links"] or ():
            span.links.add(trace_id=_trace_id(link), span_id=link["span_id"].to_bytes(8, "big"))
        target.append(span)
    return request.SerializeToString()


def _trace_id(row: dict[str, Any]) -> bytes:
    return row["trace_id_high"].to_bytes(8, "big") + row["trace_id_low"].to_bytes(8, "big")


def _key_value(key: str, value: Any) -> KeyValue:
    if isinstance(value, bool):
        return KeyValue(key=key, value=AnyValue(bool_value=value))
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return KeyValue(key=key, value=AnyValue(int_value=value))
    if isinstance(value, float):
        return KeyValue(key=key, value=AnyValue(double_value=value))
    text = value if isinstance(value, str) else json.dumps(value)
    return KeyValue(key=key, value=AnyValue(string_value=text))


def published(spans: pa.RecordBatch, resource: dict[str, Any]) -> tuple[list[bytes], int]:
    """SpanLite messages of the five published fields, and their largest time error in ns.

    They hold milliseconds, so a start or an end is off by up to one.
    """
    service = str(resource.get("service.name", ""))
    start = spans["start_ns"].to_numpy()
    duration = spans["duration_ns"].to_numpy()
    low, own = spans["trace_id_low"].to_pylist(), spans["span_id"].to_pylist()
    start_ms = start // 1_000_000
    duration_ms = np.clip(duration // 1_000_000, -(1 << 31), (1 << 31) - 1)
    messages = [
        pb.SpanLite(
            trace_id=trace, span_id=span, start_time_ms=at, duration_ms=took, service=service
        ).SerializeToString()
        for trace, span, at, took in zip(
            low, own, start_ms.tolist(), duration_ms.tolist(), strict=True
        )
    ]
    error = np.maximum(
        np.abs(start - start_ms * 1_000_000), np.abs(duration - duration_ms * 1_000_000)
    )
    return messages, int(error.max(initial=0))


def delimited(messages: list[bytes]) -> bytes:
    """Messages one after the other, each after its length, as in a Kafka record batch."""
    return b"".join(bytes([len(message)]) + message for message in messages)
