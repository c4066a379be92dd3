"""Spans as `SpanRows` messages, for the peer. Columns come from span_rows.proto itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool
from ptars import HandlerPool

PROTO = Path(__file__).parent / "src/main/proto/span_rows.proto"
_FIELD = re.compile(r"^  (\w+) (\w+) = (\d+);", re.MULTILINE)
#: Numbers as in descriptor.proto.
_TYPES = {"int64": 3, "int32": 5, "string": 9, "sfixed64": 16, "sint32": 17, "sint64": 18}
SQL_TYPES = {"int64": "BIGINT", "sfixed64": "BIGINT", "sint64": "BIGINT"} | {
    "int32": "INT",
    "sint32": "INT",
    "string": "STRING",
}
#: A message of some 300 kB: larger ones make SQL no faster, smaller ones slower.
ROWS_A_MESSAGE = 4096


@cache
def columns() -> tuple[tuple[str, str, int], ...]:
    """(type, name, number) of each column."""
    return tuple((t, n, int(i)) for t, n, i in _FIELD.findall(PROTO.read_text()))


@cache
def _handler() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="span_rows.proto", package="spanlite.bench", syntax="proto3"
    )
    row, rows = file.message_type.add(name="SpanRow"), file.message_type.add(name="SpanRows")
    for kind, name, number in columns():
        row.field.add(name=name, number=number, type=_TYPES[kind], label=1)
    rows.field.add(name="spans", number=1, type=11, label=3, type_name=".spanlite.bench.SpanRow")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName("span_rows.proto")
    return HandlerPool([found]).get_for_message(found.message_types_by_name["SpanRows"])


def encode(spans: pa.RecordBatch, resource: Mapping[str, Any]) -> list[bytes]:
    """Spans in SPAN_SCHEMA as messages of ROWS_A_MESSAGE rows each."""
    given = {
        "service": str(resource.get("service.name", "")),
        "host": str(resource.get("host.name", "")),
        "process_id": int(resource.get("process.pid", 0)),
    }
    arrays = [_column(spans, kind, name, given) for kind, name, _ in columns()]
    schema = _handler().list_to_record_batch([b""]).schema
    spans_type = schema.field("spans").type
    values = pa.StructArray.from_arrays(arrays, fields=list(spans_type.value_type))
    offsets = np.append(np.arange(0, len(values), ROWS_A_MESSAGE), len(values)).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), values, type=spans_type)
    batch = pa.RecordBatch.from_arrays([lists], schema=schema)
    return [bytes(message) for message in _handler().record_batch_to_array(batch).to_pylist()]


def _column(spans: pa.RecordBatch, kind: str, name: str, given: Mapping[str, Any]) -> pa.Array:
    if name in given:
        scalar = pa.scalar(given[name], pa.string() if kind == "string" else pa.int64())
        return pa.array([given[name]], scalar.type).take(pa.array(np.zeros(spans.num_rows, int)))
    column = spans.column(name)
    if kind == "string":
        return column.dictionary_decode().fill_null("")
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64:
        return pa.array(values.view(np.int64))
    return pa.array(values.astype(np.int64 if SQL_TYPES[kind] == "BIGINT" else np.int32))
