"""The archive's Parquet tables. Plain types that DuckDB, pandas, Spark and Trino all read.

Unsigned 64-bit ids are stored as signed BIGINT with the same bits (Spark has no unsigned
type); `trace_id` is 32 hex digits. "None" is null. Times are integer Unix nanoseconds.
"""

from __future__ import annotations

import pyarrow as pa

from spanlite.schema import LAUNCH_COLUMNS, STRING

#: In the Parquet metadata of each file, under the key `spanlite.schema_version`.
SCHEMA_VERSION = "1"
SCHEMA_VERSION_KEY = b"spanlite.schema_version"


def _f(name: str, kind: pa.DataType, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


#: One row a kept span. Files are sorted by trace_id, start_ns, span_id.
SPANS = pa.schema(
    [
        _f("trace_id", STRING),
        _f("span_id", pa.int64()),
        _f("parent_span_id", pa.int64(), True),
        _f("start_ns", pa.int64()),
        _f("duration_ns", pa.int64()),
        _f("kind", STRING),
        _f("name", STRING),
        _f("status", STRING),
        _f("service", STRING),
        _f("host", STRING),
        _f("process_id", pa.int64(), True),
        _f("thread_id", pa.int64(), True),
        _f("device", pa.int32(), True),
        _f("context", pa.int64(), True),
        _f("stream", pa.int64(), True),
        _f("correlation_id", pa.int64(), True),
        _f("graph_id", pa.int64(), True),
        _f("graph_node_id", pa.int64(), True),
        *[_f(name, pa.int32(), True) for name in LAUNCH_COLUMNS],
        _f("bytes", pa.int64(), True),
        _f("copy_kind", STRING, True),
        _f("flags", pa.int32()),
        _f("attributes", STRING, True),  # a JSON object
        _f("resource", STRING),  # a JSON object: the sender's OpenTelemetry resource
        _f(
            "links",
            pa.list_(pa.struct([_f("trace_id", pa.string()), _f("span_id", pa.int64())])),
            True,
        ),
        _f("sampling_weight", pa.float64()),  # how many such spans this one stands for
        _f("clock_offset_ns", pa.int64()),  # add to start_ns for UTC; start_ns is raw
        _f("clock_uncertainty_ns", pa.int64()),
        _f("replay_id", STRING, True),  # set where the span is of a replay
    ]
)

#: One row a decided trace, kept or not. A trace whose late spans came after its row was
#: written has further rows; sum them.
TRACES = pa.schema(
    [
        _f("trace_id", STRING),
        _f("start_ns", pa.int64()),
        _f("end_ns", pa.int64()),
        _f("spans", pa.int64()),
        _f("errors", pa.int64()),
        _f("device_spans", pa.int64()),
        _f("device_ns", pa.int64()),
        _f("bytes", pa.int64()),
        _f("root_name", STRING, True),
        _f("root_kind", STRING, True),
        _f("service", STRING),
        _f("host", STRING),
        _f("kept", pa.bool_()),
        _f("policy", STRING),  # the rule that decided
        _f("sampling_weight", pa.float64()),
        _f("late", pa.bool_()),
        _f("bucket", pa.int32()),
    ]
)

#: Roll-ups of all spans. Partial rows: sum over equal keys.
KERNEL_MINUTES = pa.schema(
    [
        _f("minute_ns", pa.int64()),  # start of the minute
        _f("service", STRING),
        _f("host", STRING),
        _f("device", pa.int32(), True),
        _f("kind", STRING),
        _f("name", STRING),
        _f("spans", pa.int64()),
        _f("errors", pa.int64()),
        _f("duration_ns", pa.int64()),
        _f("min_ns", pa.int64()),
        _f("max_ns", pa.int64()),
        _f("bytes", pa.int64()),
    ]
)

#: Counters. For each hop: sum(direction='in') = sum('out') + sum('dropped').
LEDGER = pa.schema(
    [
        _f("time_ns", pa.int64()),
        _f("hop", STRING),  # collector, wire, pipeline, archive
        _f("source", STRING),  # the producer, job or folder that counted
        _f("direction", STRING),  # in, out, dropped
        _f("reason", STRING),  # of dropped: duplicate, lost, sampled_out, malformed, ...
        _f("bucket", pa.int32(), True),
        _f("spans", pa.int64()),
        _f("messages", pa.int64()),
    ]
)
