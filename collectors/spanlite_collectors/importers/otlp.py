"""OpenTelemetry spans to SPAN_SCHEMA: used for OTLP files and by the OTLP/HTTP receiver.

Ids, times, links, status and every attribute are kept exactly. What SPAN_SCHEMA has no
column for goes into the attributes, under OpenTelemetry's own names for it where it has
them (`otel.scope.name`, `otel.status_description`, `otel.events`, ...).
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind

from spanlite_collectors.importers._columns import LinkRow, link_column, span_batch

#: Nanoseconds beyond this do not fit the archive's signed 64 bits.
_LAST_NS = (1 << 63) - 1
_KIND_WORDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}


@dataclass
class Conversion:
    """What became of one export request."""

    #: Spans and the resource that made them; one entry a ResourceSpans that has spans.
    batches: list[tuple[pa.RecordBatch, dict[str, Any]]] = field(default_factory=list)
    #: Spans that cannot be kept, by reason: `invalid_id`, `invalid_time`.
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def span_count(self) -> int:
        """Spans kept."""
        return sum(spans.num_rows for spans, _ in self.batches)


def request_to_spans(
    request: ExportTraceServiceRequest,
) -> list[tuple[pa.RecordBatch, dict[str, Any]]]:
    """The spans of a request and their resources; see `convert_request` for refusals."""
    return convert_request(request).batches


def convert_request(request: ExportTraceServiceRequest) -> Conversion:
    """The spans of a request, and how many had to be refused and why."""
    return convert_resource_spans(request.resource_spans)


def convert_resource_spans(groups: Iterable[ResourceSpans]) -> Conversion:
    """Like `convert_request`, for some of a request's ResourceSpans."""
    out = Conversion()
    for group in groups:
        rows = _Rows()
        for scope_spans in group.scope_spans:
            scope = _scope(scope_spans.scope)
            for span in scope_spans.spans:
                reason = refusal(span)
                if reason:
                    out.refused[reason] += 1
                else:
                    rows.add(span, scope)
        if rows.count:
            out.batches.append((rows.batch(), _resource(group)))
    return out


def refusal(span: Span) -> str | None:
    """Why a span cannot be kept, or None where it can."""
    if len(span.trace_id) != 16 or len(span.span_id) != 8 or not any(span.trace_id):
        return "invalid_id"
    if not any(span.span_id) or len(span.parent_span_id) not in (0, 8):
        return "invalid_id"
    if span.start_time_unix_nano > _LAST_NS or span.end_time_unix_nano > _LAST_NS:
        return "invalid_time"
    return None


class _Rows:
    """Columns of the spans of one resource."""

    def __init__(self) -> None:
        self.count = 0
        self.columns: dict[str, list[Any]] = {
            name: []
            for name in (
                "trace_id_low",
                "trace_id_high",
                "span_id",
                "parent_span_id",
                "start_ns",
                "duration_ns",
                "name",
                "status",
                "attributes",
                "flags",
            )
        }
        self.links: dict[int, LinkRow] = {}

    def add(self, span: Span, scope: dict[str, Any]) -> None:
        start, end = span.start_time_unix_nano, span.end_time_unix_nano
        values = (
            int.from_bytes(span.trace_id[8:], "big"),
            int.from_bytes(span.trace_id[:8], "big"),
            int.from_bytes(span.span_id, "big"),
            int.from_bytes(span.parent_span_id, "big"),
            start,
            end - start,
            span.name,
            span.status.code if span.status.code in (0, 1, 2) else 0,
            _attributes_json(span, scope),
            _flags(start, end),
        )
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)
        if span.links:
            self.links[self.count] = [_link(link) for link in span.links]
        self.count += 1

    def batch(self) -> pa.RecordBatch:
        columns: dict[str, Any] = dict(self.columns)
        columns["kind"] = [int(SpanKind.HOST)] * self.count
        columns["links"] = link_column(self.count, self.links)
        return span_batch(self.count, columns)


def _flags(start: int, end: int) -> int:
    flags = SpanFlag.NONE
    if end < start:
        flags |= SpanFlag.NEGATIVE_DURATION
    if start == 0:
        flags |= SpanFlag.ZERO_TIMESTAMP
    return int(flags)


def _link(link: Span.Link) -> tuple[int, int, int]:
    trace = link.trace_id.rjust(16, b"\0")
    return (
        int.from_bytes(trace[-8:], "big"),
        int.from_bytes(trace[-16:-8], "big"),
        int.from_bytes(link.span_id[-8:], "big"),
    )


def _attributes_json(span: Span, scope: dict[str, Any]) -> str | None:
    out = attributes_dict(span.attributes)
    out.update(scope)
    if span.kind in _KIND_WORDS:
        out.setdefault("span.kind", _KIND_WORDS[span.kind])
    extras = {
        "otel.status_description": span.status.message,
        "otel.trace_state": span.trace_state,
        "otel.events": [_event(event) for event in span.events],
        "otel.links": [_link_extras(link) for link in span.links if _has_extras(link)],
        "otel.dropped_attributes_count": span.dropped_attributes_count,
        "otel.dropped_events_count": span.dropped_events_count,
        "otel.dropped_links_count": span.dropped_links_count,
    }
    out.update({key: value for key, value in extras.items() if value})
    return json.dumps(out, ensure_ascii=False, separators=(",", ":")) if out else None


def _event(event: Span.Event) -> dict[str, Any]:
    out: dict[str, Any] = {"name": event.name, "time_unix_nano": event.time_unix_nano}
    if event.attributes:
        out["attributes"] = attributes_dict(event.attributes)
    if event.dropped_attributes_count:
        out["dropped_attributes_count"] = event.dropped_attributes_count
    return out


def _has_extras(link: Span.Link) -> bool:
    return bool(link.attributes or link.trace_state)


def _link_extras(link: Span.Link) -> dict[str, Any]:
    out: dict[str, Any] = {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()}
    if link.trace_state:
        out["trace_state"] = link.trace_state
    if link.attributes:
        out["attributes"] = attributes_dict(link.attributes)
    return out


def _scope(scope: InstrumentationScope) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if scope.name:
        out["otel.scope.name"] = scope.name
    if scope.version:
        out["otel.scope.version"] = scope.version
    if scope.attributes:
        out["otel.scope.attributes"] = attributes_dict(scope.attributes)
    return out


def _resource(group: ResourceSpans) -> dict[str, Any]:
    out = attributes_dict(group.resource.attributes)
    if group.schema_url:
        out["otel.schema_url"] = group.schema_url
    return out


def attributes_dict(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """OTLP attributes as JSON values; bytes become base64, NaN and infinities text."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [_value(item) for item in value.array_value.values]
    if which == "kvlist_value":
        return attributes_dict(value.kvlist_value.values)
    if which == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    if which == "double_value" and not math.isfinite(value.double_value):
        return str(value.double_value).replace("inf", "Infinity").replace("nan", "NaN")
    return getattr(value, which)
