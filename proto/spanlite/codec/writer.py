"""Spans in SPAN_SCHEMA to SpanBatch bytes."""

from __future__ import annotations

import contextlib
import json
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from spanlite.codec import _columns as col
from spanlite.codec._columns import Array, I64s
from spanlite.codec._wire import SITE_COLUMNS, batch_handler, body_schema
from spanlite.codec.batch import MAX_SPANS, SCHEMA_VERSION, Batch
from spanlite.errors import WireError
from spanlite.schema import LAUNCH_COLUMNS, MINUS_ONE_IS_NONE
from spanlite.v1 import spanlite_pb2 as pb

#: How JSON begins to spell a surrogate.
_SURROGATE_ESCAPES = ("\\ud", "\\uD")


def encode_batch(batch: Batch) -> bytes:
    """Encode spans in SPAN_SCHEMA, all of header.bucket, in their row order.

    The header's `span_count` and `schema_version` are filled in. Raises WireError
    (`too_large`) where there are more than MAX_SPANS spans, and (`malformed`) where a
    device, context or stream is below -1, or a text is none: JSON can spell half a character
    ("\\ud800"), which fails in whoever writes it as UTF-8 later.
    """
    spans = batch.spans
    if spans.num_rows > MAX_SPANS:
        raise WireError("too_large", f"{spans.num_rows} spans; split them at {MAX_SPANS}")
    header = pb.BatchHeader()
    header.CopyFrom(batch.header)
    header.schema_version, header.span_count = SCHEMA_VERSION, spans.num_rows
    columns, launches = _wire_columns(spans)
    head = pb.SpanBatch(header=header, launches=launches)
    try:
        for key, value in batch.resource.items():
            head.resource.keys.append(key)
            head.resource.values_json.append(_checked(json.dumps(value, separators=(",", ":"))))
        _check_attributes(spans.column("attributes"), columns["strings"])
    except UnicodeEncodeError as error:
        raise WireError("malformed", f"a text with half a character: {error}") from None
    return bytes(head.SerializeToString() + _serialise(columns))


def _checked(text: str) -> str:
    """JSON, unless it spells half a character. Raises UnicodeEncodeError."""
    if any(escape in text for escape in _SURROGATE_ESCAPES):
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    return text


def _check_attributes(column: pa.Array, strings: pa.StringArray) -> None:
    """Raise UnicodeEncodeError where attributes spell half a character.

    `strings` are the texts that go into the batch; one look at their bytes tells that none does.
    """
    data = strings.buffers()[2]
    raw = b"" if data is None else memoryview(data).tobytes()
    if not any(escape.encode() in raw for escape in _SURROGATE_ESCAPES):
        return
    if not isinstance(column, pa.DictionaryArray):
        column = column.dictionary_encode()
    used = column.dictionary.take(column.indices.unique().drop_null())
    for text in used.drop_null().to_pylist():
        # Of text that is no JSON, or too deep for a reader, nobody decodes an escape.
        with contextlib.suppress(json.JSONDecodeError, RecursionError):
            _checked(text)


def _serialise(columns: dict[str, Any]) -> bytes:
    """Columns by wire name to protobuf; `sites` is a dict of its own columns."""
    arrays = []
    for name, kind, fields in _wire_fields():
        values = columns[name]
        if isinstance(values, dict):
            parts = [_one_list(values[part], part_kind) for part, part_kind, _ in fields]
            arrays.append(pa.Array.from_buffers(kind, 1, [None], children=parts))
        elif isinstance(values, bytes):
            arrays.append(pa.array([values], kind))
        else:
            arrays.append(_one_list(values, kind))
    rows = pa.RecordBatch.from_arrays(arrays, schema=body_schema())
    return batch_handler().record_batch_to_array(rows)[0].as_py()  # type: ignore[no-any-return]


#: (name, type, those of its own columns) of a column.
_Field: TypeAlias = tuple[str, pa.DataType, tuple[Any, ...]]


@cache
def _wire_fields() -> tuple[_Field, ...]:
    """The columns of `body_schema`; pyarrow makes an object at each look at one."""
    return tuple(
        (
            item.name,
            item.type,
            tuple((part.name, part.type, ()) for part in item.type)
            if pa.types.is_struct(item.type)
            else (),
        )
        for item in body_schema()
    )


def _one_list(values: Any, kind: pa.ListType) -> pa.ListArray:
    """A list column of one row. Made of buffers, as half of a small batch's time went into
    pyarrow's own look at each of its 30 columns."""
    if isinstance(values, np.ndarray):
        values = np.ascontiguousarray(values, dtype=_dtype_of(kind.value_type))
        buffers = [None, pa.py_buffer(values)]
        values = pa.Array.from_buffers(kind.value_type, len(values), buffers)
    offsets = pa.py_buffer(np.array([0, len(values)], dtype=np.int32))
    return pa.Array.from_buffers(kind, 1, [None, offsets], children=[values])


@cache
def _dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """numpy's type of a number's; both have the same bytes."""
    return np.dtype(kind.to_pandas_dtype())


def _numpy(spans: pa.RecordBatch, name: str) -> Array:
    values: Array = spans.column(name).to_numpy(zero_copy_only=False)
    return values


def _wire_columns(spans: pa.RecordBatch) -> tuple[dict[str, Any], pb.LaunchTable]:
    span_id = _numpy(spans, "span_id")
    duration = _numpy(spans, "duration_ns")
    start = _numpy(spans, "start_ns")
    names = _Text(spans.column("name"), shift=0)
    attributes = _Text(spans.column("attributes"), shift=len(names.words))
    site, sites, launches, from_end = _sites(spans, names, start, duration)
    distance = col.encode_parent(span_id, _numpy(spans, "parent_span_id"))
    start_delta, start_low = col.split_low_bits(col.encode_starts(start, duration, from_end))
    duration, duration_low = col.split_low_bits(duration)
    columns: dict[str, Any] = {
        "strings": pa.concat_arrays([names.words, attributes.words]),
        "sites": sites,
        "span_id_delta": col.delta(span_id),
        "parent_distance_delta": col.delta(distance),
        "start_delta": start_delta,
        "start_low_bits": start_low,
        "duration_ns": duration,
        "duration_low_bits": duration_low,
        "site_delta": col.delta(site.astype(np.int64)),
        "attributes": col.encode_sparse(attributes.index),
        "correlation_delta": col.delta(_numpy(spans, "correlation_id")),
        **_traces(spans),
    }
    return {name: _collapsed(name, values) for name, values in columns.items()} | _links(
        spans
    ), launches


def _collapsed(name: str, values: Any) -> Any:
    # A table keeps a value a row.
    if name.startswith("trace_id") or not isinstance(values, np.ndarray):
        return values
    return col.collapse(values)


class _Text:
    """A text column as indexes (-1: null) into its distinct words, in order of first use.

    `shift` is where the words begin in the batch's pool.
    """

    def __init__(self, column: pa.Array, shift: int) -> None:
        if not isinstance(column, pa.DictionaryArray):
            column = column.dictionary_encode()
        if column.null_count == len(column):
            self.words = pa.array([], pa.string())
            self.index = np.full(len(column), -1, dtype=np.int64)
            return
        codes = column.indices
        coded = codes.dictionary_encode()
        self.words = column.dictionary.take(coded.dictionary.drop_null()).cast(pa.string())
        index = coded.indices
        if index.null_count:
            index = index.fill_null(-1 - shift)
        self.index = index.to_numpy(zero_copy_only=False).astype(np.int64) + shift


def _traces(spans: pa.RecordBatch) -> dict[str, Array]:
    low, high = _numpy(spans, "trace_id_low"), _numpy(spans, "trace_id_high")
    index, first = col.distinct([low, high], spans.num_rows)
    high = high[first]
    return {
        "trace_id_low": low[first],
        "trace_id_high": high if high.any() else high[:0],
        "trace_delta": col.delta(index.astype(np.int64)),
    }


def _sites(
    spans: pa.RecordBatch, names: _Text, start: I64s, duration: I64s
) -> tuple[Array, dict[str, Array], pb.LaunchTable, Array]:
    """Each span's site, the site table, its launch table, and each span's start_from_end."""
    own = {name: _numpy(spans, name) for name in SITE_COLUMNS}
    launch = [_numpy(spans, name) for name in LAUNCH_COLUMNS]
    by_end = _kinds_from_end(own["kind"], start, duration)
    site, first = col.distinct([names.index, *own.values(), *launch], spans.num_rows)
    table: dict[str, Array] = {}
    for name, wire in SITE_COLUMNS.items():
        values = own[name][first]
        if name in MINUS_ONE_IS_NONE:
            values = col.plus_1(name, values)
        elif name == "graph_node_id":
            values = col.delta(values)
        table[wire] = col.collapse(values)
    from_end = by_end[own["kind"][first]]
    table["start_from_end"] = col.collapse(from_end)
    table["launch"], launches = _launches([values[first] for values in launch])
    table["name_delta"] = col.delta(names.index[first])
    return site, table, launches, from_end[site]


def _kinds_from_end(kind: Array, start: I64s, duration: I64s) -> Array:
    """For each of 256 kinds, whether counting its starts from ends takes fewer bits.

    It does for operations that follow each other on a stream, not for ranges that nest.
    """
    best = np.zeros(256, dtype=np.int64)
    if len(kind) < 2:
        return best
    step = np.abs(np.diff(start).astype(np.float64)) + 1
    gap = np.abs((np.diff(start) - duration[:-1]).astype(np.float64)) + 1
    gain = np.bincount(kind[1:], weights=np.log2(step / gap), minlength=256)
    best[gain > 0] = 1
    return best


def _launches(columns: list[Array]) -> tuple[Array, pb.LaunchTable]:
    """Each site's launch configuration plus 1, and the distinct ones."""
    index, first = col.distinct(columns, len(columns[0]))
    table = np.stack([values[first] for values in columns], axis=1)
    given = table.any(axis=1)
    number = np.cumsum(given) * given
    message = pb.LaunchTable()
    for name, values in zip(LAUNCH_COLUMNS, table[given].T, strict=True):
        getattr(message, name).extend(values.tolist())
    return col.collapse(number[index]), message


def _links(spans: pa.RecordBatch) -> dict[str, Array]:
    links = spans.column("links")
    if links.null_count == len(links):
        names = ("link_row_delta", "link_target", "linked_trace_id_low")
        none = dict.fromkeys((*names, "linked_trace_id_high"), np.zeros(0, dtype=np.uint64))
        return none | {"linked_span_id_delta": np.zeros(0, dtype=np.int64)}
    counts = links.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = links.flatten()
    low, high, span = (flat.field(i).to_numpy(zero_copy_only=False) for i in range(len(flat.type)))
    index, first = col.distinct([low, high, span], len(flat))
    high = high[first]
    return {
        "link_row_delta": col.delta(np.repeat(np.arange(len(links)), counts)),
        "link_target": index,
        "linked_trace_id_low": low[first],
        "linked_trace_id_high": high if high.any() else high[:0],
        "linked_span_id_delta": col.delta(span[first]),
    }
