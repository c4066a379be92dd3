"""SpanBatch bytes to Arrow and back, column by column.

`ptars` turns the packed columns into Arrow arrays without a Python object a span; numpy
undoes the deltas. Nothing in a message is trusted: every length and index is checked,
and a bad one raises `WireError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError
from ptars import HandlerPool

from spanlite.bucket import MAX_BUCKETS, bucket_of
from spanlite.codec import _columns as col
from spanlite.errors import WireError
from spanlite.schema import LAUNCH_COLUMNS, LINK_TYPE, MINUS_ONE_IS_NONE, SPAN_SCHEMA
from spanlite.v1 import spanlite_pb2 as pb

SCHEMA_VERSION = 1
#: A column of one value stands for all spans, so a few hostile bytes can claim any
#: count. At this limit they cost at most some 200 MB, for one message.
MAX_SPANS = 1 << 20
#: First byte of every SpanBatch: field 1, length-delimited.
BATCH_TAG = 0x0A

Array = npt.NDArray[Any]

#: Arrow column -> wire column, for those that are not deltas, indexes or launches.
_PLAIN: dict[str, str] = {
    "duration_ns": "duration_ns",
    "kind": "kind",
    "status": "status",
    "device": "device_plus_1",
    "context": "context_plus_1",
    "stream": "stream_plus_1",
    "thread_id": "thread_id",
    "graph_id": "graph_id",
    "bytes": "bytes",
    "copy_kind": "copy_kind",
    "flags": "flags",
}
_DELTA: dict[str, str] = {
    "span_id": "span_id_delta",
    "start_ns": "start_delta",
    "correlation_id": "correlation_delta",
    "graph_node_id": "graph_node_delta",
}
_NARROW = {
    "kind": 1 << 8,
    "status": 1 << 8,
    "copy_kind": 1 << 8,
    "device": 1 << 31,
    "stream": 1 << 63,
}


@dataclass(frozen=True)
class Batch:
    """A whole batch: who sent it, about what, and its spans in SPAN_SCHEMA."""

    header: pb.BatchHeader
    spans: pa.RecordBatch
    resource: Mapping[str, Any] = field(default_factory=dict)


@cache
def _handler() -> Any:
    return HandlerPool([pb.DESCRIPTOR]).get_for_message(pb.SpanBatch.DESCRIPTOR)


def is_batch(data: bytes) -> bool:
    """Whether the message is a SpanBatch; otherwise it must be a SpanLite."""
    return data[:1] == bytes([BATCH_TAG])


def read_header(data: bytes) -> pb.BatchHeader:
    """The header alone, without touching the columns. Raises WireError."""
    if not is_batch(data):
        raise WireError("malformed", "not a SpanBatch: it does not start with its header")
    size, at = _varint(data, 1)
    if size > len(data) - at:
        raise WireError("malformed", f"header claims {size} bytes of {len(data) - at}")
    try:
        header = pb.BatchHeader.FromString(data[at : at + size])
    except DecodeError as error:
        raise WireError("malformed", f"header: {error}") from None
    _check_header(header)
    return header


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise WireError("malformed", "the header's length is cut off")


def _check_header(header: pb.BatchHeader) -> None:
    if header.schema_version != SCHEMA_VERSION:
        raise WireError(
            "unsupported_version",
            f"schema version {header.schema_version}; this reader knows {SCHEMA_VERSION}",
        )
    if header.span_count > MAX_SPANS:
        raise WireError("too_large", f"{header.span_count} spans; the limit is {MAX_SPANS}")
    count = header.bucket_count
    if not 1 <= count <= MAX_BUCKETS or count & (count - 1):
        raise WireError("malformed", f"bucket count {count}")
    if header.bucket >= count:
        raise WireError("malformed", f"bucket {header.bucket} of {count}")


class BatchView:
    """A decoded message whose columns are made when first asked for.

    `column(name)` gives numpy arrays of shape (span_count,); `to_arrow(rows)` the chosen
    rows in SPAN_SCHEMA. Raises WireError on anything malformed, in the constructor.
    """

    def __init__(self, data: bytes) -> None:
        self.header = read_header(data)
        self.count: int = self.header.span_count
        try:
            self._raw: pa.RecordBatch = _handler().list_to_record_batch([data])
        except ValueError as error:
            raise WireError("malformed", str(error)) from None
        self._cache: dict[str, Array] = {}
        self.strings: pa.StringArray = self._raw.column("strings").values
        self.trace_low = self._values("trace_id_low")
        self.trace_high = self._values("trace_id_high")
        self._check()

    def _values(self, wire: str) -> Array:
        return self._raw.column(wire).values.to_numpy()

    def _launch_values(self, name: str) -> Array:
        return self._raw.column("launches").field(name).values.to_numpy()

    def _check(self) -> None:
        for wire in (
            *_PLAIN.values(),
            *_DELTA.values(),
            "trace_delta",
            "parent_distance",
            "name",
            "attributes",
            "launch",
        ):
            col.check_length(wire, len(self._values(wire)), self.count)
        traces = len(self.trace_low)
        if len(self.trace_high) not in (0, traces):
            raise WireError("malformed", "trace_id_low and trace_id_high differ in length")
        if len(self.trace_high) == 0:
            self.trace_high = np.zeros(traces, dtype=np.uint64)
        for name, limit in _NARROW.items():
            wire = _PLAIN[name]
            col.check_below(wire, self._values(wire), limit + (name in MINUS_ONE_IS_NONE))
        if self.count:
            col.check_below("trace_delta", self.trace_index, traces)
            col.check_below("name", col.expand(self._values("name"), self.count), len(self.strings))
            col.check_below("attributes", self._values("attributes"), len(self.strings) + 1)
            sizes = {len(self._launch_values(name)) for name in LAUNCH_COLUMNS} - {0}
            if len(sizes) > 1:
                raise WireError("malformed", "the launch table's columns differ in length")
            col.check_below("launch", self._values("launch"), max(sizes, default=0) + 1)
        self._check_links()
        if not (
            bucket_of(self.trace_low, self.trace_high, self.header.bucket_count)
            == self.header.bucket
        ).all():
            raise WireError(
                "wrong_bucket",
                f"a trace does not belong to bucket "
                f"{self.header.bucket} of {self.header.bucket_count}",
            )

    def _check_links(self) -> None:
        sizes = {
            name: len(self._values(name))
            for name in (
                "link_row_delta",
                "link_trace_id_low",
                "link_trace_id_high",
                "link_span_id_delta",
            )
        }
        if len(set(sizes.values())) > 1:
            raise WireError("malformed", f"link columns differ in length: {sizes}")
        if sizes["link_row_delta"]:
            rows = np.cumsum(self._values("link_row_delta"), dtype=np.uint64)
            col.check_below("link_row_delta", rows, self.count)

    @property
    def trace_index(self) -> npt.NDArray[np.uint64]:
        """Each span's row in `trace_low` / `trace_high`, shape (span_count,)."""
        if "trace_index" not in self._cache:
            self._cache["trace_index"] = col.undelta(self._values("trace_delta"), self.count)
        return self._cache["trace_index"]

    @property
    def resource(self) -> dict[str, Any]:
        """The resource attributes."""
        item = self._raw.column("resource")[0].as_py() or {}
        try:
            return {
                k: json.loads(v)
                for k, v in zip(item.get("keys") or [], item.get("values_json") or [], strict=True)
            }
        except ValueError as error:
            raise WireError("malformed", f"resource: {error}") from None

    def column(self, name: str) -> Array:
        """One column of SPAN_SCHEMA as numpy; `name`, `attributes` and `launch` as indexes."""
        if name not in self._cache:
            self._cache[name] = self._make(name)
        return self._cache[name]

    def _make(self, name: str) -> Array:
        if name in _DELTA:
            values = col.undelta(self._values(_DELTA[name]), self.count)
            return values.view(np.int64) if name == "start_ns" else values
        if name == "parent_span_id":
            distance = col.expand(self._values("parent_distance"), self.count)
            return col.decode_parent(self.column("span_id"), np.ascontiguousarray(distance))
        if name == "trace_id_low":
            return self.trace_low[self.trace_index]
        if name == "trace_id_high":
            return self.trace_high[self.trace_index]
        if name in LAUNCH_COLUMNS:
            return self._launch_column(name)
        if name in _PLAIN:
            values = self._values(_PLAIN[name])
            if name in MINUS_ONE_IS_NONE:
                values = values.astype(np.int64) - 1 if len(values) else np.array([-1])
            return col.expand(values, self.count)
        return col.expand(self._values(name), self.count)  # name, attributes, launch

    def launch_table(self, name: str) -> npt.NDArray[np.uint32]:
        """One launch column by the indexes of `column("launch")`; row 0 is "none"."""
        return np.concatenate((np.zeros(1, np.uint32), self._launch_values(name)))

    def _launch_column(self, name: str) -> Array:
        table = self.launch_table(name)
        if len(table) == 1:
            return np.broadcast_to(np.uint32(0), (self.count,))
        return table[self.column("launch")]

    def to_arrow(self, rows: Array | None = None) -> pa.RecordBatch:
        """The spans, or those at `rows` (indexes or a mask), in SPAN_SCHEMA."""
        pick = slice(None) if rows is None else rows
        arrays = []
        for item in SPAN_SCHEMA:
            if item.name == "links":
                links = self._links()
                arrays.append(links if rows is None else links.take(pa.array(_indexes(rows))))
            elif item.name == "name":
                index = pa.array(self.column("name")[pick].astype(np.int32))
                arrays.append(pa.DictionaryArray.from_arrays(index, self.strings))
            elif item.name == "attributes":
                index_plus_1 = self.column("attributes")[pick].astype(np.int64)
                index = pa.array((index_plus_1 - 1).astype(np.int32), mask=index_plus_1 == 0)
                arrays.append(pa.DictionaryArray.from_arrays(index, self.strings))
            else:
                dtype = item.type.to_pandas_dtype()
                arrays.append(pa.array(self.column(item.name)[pick].astype(dtype, copy=False)))
        return pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)

    def links(self, rows: Array | None = None) -> pa.ListArray | None:
        """The links of these rows (indexes or a mask), or None where the batch has none."""
        if len(self._values("link_row_delta")) == 0:
            return None
        links = self._links()
        return links if rows is None else links.take(pa.array(_indexes(rows)))

    def _links(self) -> pa.ListArray:
        rows = np.cumsum(self._values("link_row_delta"), dtype=np.uint64)
        if len(rows) == 0:
            return pa.nulls(self.count, pa.list_(LINK_TYPE))
        counts = np.bincount(rows.astype(np.int64), minlength=self.count)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        values = pa.StructArray.from_arrays(
            [
                pa.array(self._values("link_trace_id_low")),
                pa.array(self._values("link_trace_id_high")),
                pa.array(col.undelta(self._values("link_span_id_delta"), len(rows))),
            ],
            fields=list(LINK_TYPE),
        )
        null_where_none = np.append(counts == 0, False)
        return pa.ListArray.from_arrays(pa.array(offsets, mask=null_where_none), values)


def _indexes(rows: Array) -> Array:
    return np.flatnonzero(rows) if rows.dtype == np.bool_ else rows


def decode_batch(data: bytes) -> Batch:
    """Decode a whole SpanBatch. Raises WireError, never anything else, on bad bytes."""
    view = BatchView(data)
    return Batch(view.header, view.to_arrow(), view.resource)


def encode_batch(batch: Batch) -> bytes:
    """Encode spans in SPAN_SCHEMA, all of header.bucket, in their row order.

    The header's `span_count` and `schema_version` are filled in. Raises WireError where
    there are more than MAX_SPANS spans.
    """
    spans = batch.spans
    if spans.num_rows > MAX_SPANS:
        raise WireError("too_large", f"{spans.num_rows} spans; split them at {MAX_SPANS}")
    header = pb.BatchHeader()
    header.CopyFrom(batch.header)
    header.schema_version, header.span_count = SCHEMA_VERSION, spans.num_rows
    columns = _wire_columns(spans)
    launches = columns.pop("launches")
    head = pb.SpanBatch(header=header, launches=pb.LaunchTable(**launches))
    for key, value in batch.resource.items():
        head.resource.keys.append(key)
        head.resource.values_json.append(json.dumps(value))
    return bytes(head.SerializeToString() + _serialise(columns))


def _serialise(columns: dict[str, Any]) -> bytes:
    arrays, fields = [], []
    for item in _wire_schema():
        values = columns[item.name]
        values = values if isinstance(values, pa.Array) else pa.array(values)
        values = values.cast(item.type.value_type)
        offsets = pa.array([0, len(values)], pa.int32())
        arrays.append(pa.ListArray.from_arrays(offsets, values, type=item.type))
        fields.append(item)
    rows = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    return bytes(_handler().record_batch_to_array(rows)[0].as_py())


@cache
def _wire_schema() -> list[pa.Field]:
    schema = _handler().list_to_record_batch([b""]).schema
    return [item for item in schema if item.name not in ("header", "resource", "launches")]


def _numpy(spans: pa.RecordBatch, name: str) -> Array:
    return spans.column(name).to_numpy(zero_copy_only=False)


def _wire_columns(spans: pa.RecordBatch) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, wire in _PLAIN.items():
        values = _numpy(spans, name)
        if name in MINUS_ONE_IS_NONE:
            values = (values.astype(np.int64) + 1).astype(np.uint64)
        out[wire] = col.collapse(values)
    for name, wire in _DELTA.items():
        out[wire] = col.collapse(
            col.delta(
                _numpy(spans, name).astype(
                    np.int64 if name == "start_ns" else np.uint64, copy=False
                )
            )
        )
    out["parent_distance"] = col.collapse(
        col.encode_parent(_numpy(spans, "span_id"), _numpy(spans, "parent_span_id"))
    )
    out.update(_trace_columns(spans))
    out.update(_string_columns(spans))
    out.update(_launch_columns(spans))
    out.update(_link_columns(spans))
    return out


def _trace_columns(spans: pa.RecordBatch) -> dict[str, Array]:
    pairs = np.empty(spans.num_rows, dtype=[("low", np.uint64), ("high", np.uint64)])
    pairs["low"], pairs["high"] = _numpy(spans, "trace_id_low"), _numpy(spans, "trace_id_high")
    distinct, first, index = np.unique(pairs, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    high = distinct["high"][order]
    return {
        "trace_id_low": distinct["low"][order],
        "trace_id_high": high if high.any() else high[:0],
        "trace_delta": col.collapse(col.delta(rank[index].astype(np.uint64))),
    }


def _string_columns(spans: pa.RecordBatch) -> dict[str, Any]:
    names = _compact(spans.column("name"))
    attributes = _compact(spans.column("attributes"))
    index = attributes.indices.cast(pa.int64()).fill_null(-1).to_numpy()
    shifted = np.where(index < 0, 0, index + 1 + len(names.dictionary))
    return {
        "strings": pa.concat_arrays([names.dictionary, attributes.dictionary]),
        "name": col.collapse(names.indices.to_numpy()),
        "attributes": col.collapse(shifted),
    }


def _compact(column: pa.Array) -> pa.DictionaryArray:
    """The same text with only the values in use, in order of first use."""
    plain = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
    return plain.dictionary_encode()


def _launch_columns(spans: pa.RecordBatch) -> dict[str, Any]:
    table = np.stack([_numpy(spans, name) for name in LAUNCH_COLUMNS], axis=1)
    rows = np.ascontiguousarray(table).view([("", table.dtype)] * table.shape[1]).ravel()
    distinct, index = np.unique(rows, return_inverse=True)
    values = distinct.view(np.uint32).reshape(-1, len(LAUNCH_COLUMNS))
    # np.unique sorts, so "no launch configuration" (all 0) can only be the first.
    has_none = len(values) > 0 and not values[0].any()
    kept = values[1:] if has_none else values
    launches = {name: kept[:, i].tolist() for i, name in enumerate(LAUNCH_COLUMNS)}
    return {"launches": launches, "launch": col.collapse(index if has_none else index + 1)}


def _link_columns(spans: pa.RecordBatch) -> dict[str, Array]:
    links = spans.column("links")
    counts = links.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    flat = links.flatten()
    rows = np.repeat(np.arange(spans.num_rows), counts).astype(np.uint64)
    return {
        "link_row_delta": col.delta(rows),
        "link_trace_id_low": flat.field("trace_id_low").to_numpy(),
        "link_trace_id_high": flat.field("trace_id_high").to_numpy(),
        "link_span_id_delta": col.delta(flat.field("span_id").to_numpy()),
    }
