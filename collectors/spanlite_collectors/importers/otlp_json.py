"""OTLP's JSON, which is protobuf's JSON with ids in hex instead of base64."""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

_IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")


def parse_resource_spans(item: Any) -> ResourceSpans:
    """One element of `resourceSpans`, changed on the way. Raises ValueError, saying why."""
    try:
        for scope_spans in _list(item, "scopeSpans", "scope_spans"):
            for span in _list(scope_spans, "spans"):
                _ids_to_base64(span)
                for link in _list(span, "links"):
                    _ids_to_base64(link)
        return ParseDict(item, ResourceSpans(), ignore_unknown_fields=True)
    except (
        ParseError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ValueError(str(error)) from None


def _list(item: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    for name in names:
        if item.get(name):
            found: list[dict[str, Any]] = item[name]
            return found
    return []


def _ids_to_base64(item: dict[str, Any]) -> None:
    for name in _IDS:
        if item.get(name):
            item[name] = base64.b64encode(bytes.fromhex(item[name])).decode()
