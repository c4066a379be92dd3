"""Spans in memory: the Arrow schema that every room hands on.

Numbers are never null here; a sentinel says "none" (0, or -1 for device, context and
stream, since 0 is a real one). The archive turns the sentinels into nulls.
"""

from __future__ import annotations

import pyarrow as pa

STRING = pa.dictionary(pa.int32(), pa.string())

LINK_TYPE = pa.struct(
    [
        pa.field("trace_id_low", pa.uint64(), nullable=False),
        pa.field("trace_id_high", pa.uint64(), nullable=False),
        pa.field("span_id", pa.uint64(), nullable=False),
    ]
)

#: Launch configuration, in the order of the LaunchTable message. All 0: none.
LAUNCH_COLUMNS: tuple[str, ...] = (
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "cluster_x",
    "cluster_y",
    "cluster_z",
    "registers_per_thread",
    "static_shared_bytes",
    "dynamic_shared_bytes",
)


def _column(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


SPAN_SCHEMA = pa.schema(
    [
        _column("trace_id_low", pa.uint64()),
        _column("trace_id_high", pa.uint64()),
        _column("span_id", pa.uint64()),
        _column("parent_span_id", pa.uint64()),  # 0: root
        _column("start_ns", pa.int64()),  # Unix time, as recorded
        _column("duration_ns", pa.int64()),  # may be negative: see SpanFlag
        _column("kind", pa.uint8()),
        _column("name", STRING),
        _column("status", pa.uint8()),
        pa.field("attributes", STRING),  # a JSON object, or null
        _column("device", pa.int32()),  # -1: none
        _column("context", pa.int64()),  # -1: none
        _column("stream", pa.int64()),  # -1: none
        _column("thread_id", pa.uint64()),
        _column("correlation_id", pa.uint64()),
        _column("graph_id", pa.uint32()),
        _column("graph_node_id", pa.uint64()),
        *[_column(name, pa.uint32()) for name in LAUNCH_COLUMNS],
        _column("bytes", pa.uint64()),
        _column("copy_kind", pa.uint8()),
        _column("flags", pa.uint32()),
        pa.field("links", pa.list_(LINK_TYPE)),  # null or empty: none
    ]
)

#: Columns whose "none" is -1; everywhere else it is 0.
MINUS_ONE_IS_NONE = frozenset({"device", "context", "stream"})
