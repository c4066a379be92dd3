"""Sorted columns to Parquet bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from spanlite.archive._columns import Column, Numbers, Words
from spanlite.archive.schema import SCHEMA_VERSION, SCHEMA_VERSION_KEY, SPANS

#: A trace is found by reading whole row groups: small enough to read one in
#: milliseconds, large enough that 45 dictionaries and page headers do not count.
ROW_GROUP_ROWS = 1 << 16


@dataclass(frozen=True)
class Effort:
    """How hard to press."""

    zstd_level: int


#: For the job, which must keep up with the spans.
FAST = Effort(zstd_level=1)
#: For compaction, which runs once an hour.
THOROUGH = Effort(zstd_level=9)

_DELTA = (
    "span_id", "parent_span_id", "start_ns", "duration_ns", "correlation_id", "graph_node_id",
    "bytes",
)  # fmt: skip


def _to_arrow(column: Column, item: pa.Field) -> pa.Array:
    if isinstance(column, Numbers):
        return column.to_arrow(item.type)
    return column.to_arrow() if isinstance(column, Words) else column


def write_columns(columns: Mapping[str, Column], count: int, effort: Effort) -> bytes:
    """One Parquet file with these columns of SPANS, `count` rows each."""
    schema = SPANS.with_metadata({SCHEMA_VERSION_KEY: SCHEMA_VERSION})
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        schema,
        version="2.6",
        compression="zstd",
        compression_level=effort.zstd_level,
        use_dictionary=[item.name for item in SPANS if item.name not in _DELTA],
        column_encoding=dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
        write_statistics=["trace_id", "start_ns"],
    ) as writer:
        for at in range(0, count, ROW_GROUP_ROWS):
            stop = min(at + ROW_GROUP_ROWS, count)
            arrays = []
            for item in SPANS:
                column = columns[item.name]
                part = (
                    column.slice(at, stop - at)
                    if isinstance(column, pa.Array)
                    else column.cut(at, stop)
                )
                arrays.append(_to_arrow(part, item))
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue().to_pybytes())
