"""The wire's columns by name, and the ptars handlers that read and write them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa
from ptars import HandlerPool

from spanlite.v1 import spanlite_pb2 as pb

#: Column in SPAN_SCHEMA -> column of SiteTable, where a span's value is its site's.
SITE_COLUMNS: dict[str, str] = {
    "kind": "kind",
    "status": "status",
    "device": "device_plus_1",
    "context": "context_plus_1",
    "stream": "stream_plus_1",
    "thread_id": "thread_id",
    "graph_id": "graph_id",
    "graph_node_id": "graph_node_delta",
    "bytes": "bytes",
    "copy_kind": "copy_kind",
    "flags": "flags",
}
#: Columns of SpanBatch with a value a span.
SPAN_COLUMNS: tuple[str, ...] = (
    "trace_delta",
    "span_id_delta",
    "parent_distance_delta",
    "start_delta",
    "duration_ns",
    "site_delta",
    "attributes",
    "correlation_delta",
)
#: Values at or above do not fit the type in SPAN_SCHEMA.
SITE_LIMITS: dict[str, int] = {
    "kind": 1 << 8,
    "status": 1 << 8,
    "copy_kind": 1 << 8,
    "device_plus_1": (1 << 31) + 1,
    "context_plus_1": (1 << 63) + 1,
    "stream_plus_1": (1 << 63) + 1,
    "start_from_end": 2,
}
#: Parts of a SpanBatch that protobuf itself writes: they are small.
HEAD = ("header", "resource", "launches")


@cache
def _pool() -> Any:
    return HandlerPool([pb.DESCRIPTOR])


@cache
def batch_handler() -> Any:
    """ptars' handler of SpanBatch."""
    return _pool().get_for_message(pb.SpanBatch.DESCRIPTOR)


@cache
def lite_handler() -> Any:
    """ptars' handler of SpanLite."""
    return _pool().get_for_message(pb.SpanLite.DESCRIPTOR)


@cache
def body_schema() -> pa.Schema:
    """Arrow schema of the parts of a SpanBatch that ptars writes."""
    schema = batch_handler().list_to_record_batch([b""]).schema
    return pa.schema([item for item in schema if item.name not in HEAD])
