"""SpanLite messages, one span each, to batches and back.

Anyone can emit a SpanLite: the five published fields are enough. So a list of messages may
hold bad ones; each is named with its reason, and the rest are kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spanlite.bucket import DEFAULT_BUCKETS, bucket_of
from spanlite.codec import _columns as col
from spanlite.codec._wire import lite_handler
from spanlite.codec.batch import PROBABILITY_RULE, SCHEMA_VERSION, Batch, is_probability
from spanlite.codec.reader import parse
from spanlite.errors import WireError
from spanlite.schema import LAUNCH_COLUMNS, LINK_TYPE, SPAN_SCHEMA
from spanlite.v1 import spanlite_pb2 as pb

Array = npt.NDArray[Any]
NS_PER_MS = 1_000_000
_MAX_MS = (1 << 63) // NS_PER_MS
_INT32 = np.iinfo(np.int32)

#: Columns of SPAN_SCHEMA whose field has the same name and value.
_SAME = (
    "span_id",
    "parent_span_id",
    "kind",
    "status",
    "thread_id",
    "correlation_id",
    "graph_id",
    "graph_node_id",
    "bytes",
    "copy_kind",
    "flags",
)
_PLUS_1 = {"device": "device_plus_1", "context": "context_plus_1", "stream": "stream_plus_1"}
#: First value that does not fit SPAN_SCHEMA.
_LIMITS = {
    "kind": 1 << 8,
    "status": 1 << 8,
    "copy_kind": 1 << 8,
    "device_plus_1": (1 << 31) + 1,
    "context_plus_1": (1 << 63) + 1,
    "stream_plus_1": (1 << 63) + 1,
}


class DecodedLite(NamedTuple):
    """What a list of messages held.

    `bad` says which messages, by position, could not be read, and why.
    """

    batches: list[Batch]
    bad: list[tuple[int, WireError]]


def decode_lite(messages: Sequence[bytes], bucket_count: int = DEFAULT_BUCKETS) -> DecodedLite:
    """Decode SpanLite messages into batches of one resource, bucket and probability each.

    Within a batch spans keep the messages' order. Headers carry no producer, epoch or seq:
    such messages are not numbered. Raises UsageError for a bad `bucket_count` only.
    """
    bad: dict[int, WireError] = {}
    rows, places = _parse(messages, bad)
    if rows.num_rows == 0:
        return DecodedLite([], sorted(bad.items()))
    good = _check(rows, places, bad)
    rows = rows.filter(pa.array(good))
    batches = _group(rows, bucket_count) if rows.num_rows else []
    return DecodedLite(batches, sorted(bad.items()))


def _parse(messages: Sequence[bytes], bad: dict[int, WireError]) -> tuple[pa.RecordBatch, Array]:
    """All readable messages as rows, and each row's position among the messages."""
    parts: list[tuple[int, int, pa.RecordBatch]] = []
    todo = [(0, len(messages))]
    while todo:
        first, end = todo.pop()
        try:
            parts.append((first, end, parse(lite_handler(), list(messages[first:end]))))
        except WireError as error:
            # Halve until the bad one stands alone: a few more calls for each bad message.
            if end - first == 1:
                bad[first] = error
            else:
                middle = (first + end) // 2
                todo += [(first, middle), (middle, end)]
    parts.sort(key=lambda part: part[0])
    if not parts:
        return parse(lite_handler(), [b""]).slice(0, 0), np.zeros(0, dtype=np.int64)
    places = np.concatenate([np.arange(first, end) for first, end, _ in parts])
    table = pa.Table.from_batches([rows for _, _, rows in parts])
    return (table.combine_chunks().to_batches() or [parts[0][2]])[0], places


def _numpy(rows: pa.RecordBatch, name: str) -> Array:
    values: Array = rows.column(name).to_numpy(zero_copy_only=False)
    return values


def _check(rows: pa.RecordBatch, places: Array, bad: dict[int, WireError]) -> Array:
    """Which rows are sound; notes the others in `bad`."""
    good = np.ones(rows.num_rows, dtype=bool)

    def refuse(mask: Array, what: str) -> None:
        for row in np.flatnonzero(mask & good).tolist():
            bad[int(places[row])] = WireError("malformed", what)
        good[mask] = False

    ids = _numpy(rows, "trace_id") | _numpy(rows, "trace_id_high") | _numpy(rows, "span_id")
    refuse(ids == 0, "neither a trace id nor a span id")
    for name, limit in _LIMITS.items():
        values = _numpy(rows, name)
        outside = (values < 0) | (values.astype(np.uint64) >= np.uint64(limit))
        refuse(outside, f"{name} must be below {limit}")
    for name in ("start", "duration"):
        refuse(_time(rows, name)[1], f"{name} does not fit 64-bit nanoseconds")
    chance = _numpy(rows, "sampling_probability")
    refuse(~is_probability(chance), f"sampling_probability must be {PROBABILITY_RULE}")
    refuse(_not_objects(rows.column("attributes_json")), "attributes_json is not a JSON object")
    return good


def _time(rows: pa.RecordBatch, name: str) -> tuple[Array, Array]:
    """Nanoseconds, and where they overflow."""
    ms = _numpy(rows, "start_time_ms" if name == "start" else "duration_ms").astype(np.int64)
    rest = _numpy(rows, f"{name}_sub_ms_ns").astype(np.int64)
    whole = ms * NS_PER_MS
    total = whole + rest
    wrapped = ((whole ^ total) & (rest ^ total)) < 0
    return total, wrapped | (ms > _MAX_MS) | (ms < -_MAX_MS)


def _not_objects(texts: pa.Array) -> Array:
    coded = texts.dictionary_encode()
    wrong = np.array([not _is_object(text) for text in coded.dictionary.to_pylist()], dtype=bool)
    picked: Array = wrong[coded.indices.to_numpy()]
    return picked


def _is_object(text: str) -> bool:
    if not text:
        return True  # no attributes
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _group(rows: pa.RecordBatch, bucket_count: int) -> list[Batch]:
    low, high = _numpy(rows, "trace_id"), _numpy(rows, "trace_id_high")
    bucket = bucket_of(low, high, bucket_count)
    service = rows.column("service").dictionary_encode()
    host = rows.column("host").dictionary_encode()
    process, chance = _numpy(rows, "process_id"), _numpy(rows, "sampling_probability")
    keys = [service.indices.to_numpy(), host.indices.to_numpy(), process, chance.view(np.uint64)]
    group, first = col.distinct([bucket, *keys], len(low))
    order = np.argsort(group, kind="stable")
    spans = _spans(rows).take(pa.array(order))
    ends = np.cumsum(np.bincount(group))
    batches = []
    for row, begin, end in zip(
        first.tolist(), [0, *ends[:-1].tolist()], ends.tolist(), strict=True
    ):
        header = pb.BatchHeader(
            schema_version=SCHEMA_VERSION,
            bucket=int(bucket[row]),
            bucket_count=bucket_count,
            span_count=end - begin,
            sampling_probability=float(chance[row]),
        )
        resource = _resource(service[row].as_py(), host[row].as_py(), int(process[row]))
        batches.append(Batch(header, spans.slice(begin, end - begin), resource))
    return batches


def _resource(service: str, host: str, process: int) -> dict[str, Any]:
    named = {"service.name": service, "host.name": host, "process.pid": process}
    return {key: value for key, value in named.items() if value}


def _spans(rows: pa.RecordBatch) -> pa.RecordBatch:
    launch = rows.column("launch")
    texts = rows.column("attributes_json")
    columns: dict[str, Any] = {name: _numpy(rows, name) for name in _SAME}
    for name, field in _PLUS_1.items():
        columns[name] = (_numpy(rows, field).astype(np.uint64) - np.uint64(1)).view(np.int64)
    columns |= {
        "trace_id_low": _numpy(rows, "trace_id"),
        "trace_id_high": _numpy(rows, "trace_id_high"),
        "start_ns": _time(rows, "start")[0],
        "duration_ns": _time(rows, "duration")[0],
        "name": rows.column("name").dictionary_encode(),
        "attributes": pc.if_else(pc.equal(texts, ""), None, texts).dictionary_encode(),
        **{name: pc.struct_field(launch, name).fill_null(0) for name in LAUNCH_COLUMNS},
        "links": rows.column("links").cast(pa.list_(LINK_TYPE)),
    }
    arrays = []
    for item in SPAN_SCHEMA:
        values = columns[item.name]
        if isinstance(values, np.ndarray):
            values = pa.array(np.ascontiguousarray(values, dtype=item.type.to_pandas_dtype()))
        arrays.append(values)
    return pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)


def encode_lite(batch: Batch) -> list[bytes]:
    """One SpanLite message a span, in order.

    Of the resource `service.name`, `host.name` and `process.pid` are kept, of the header
    the sampling probability. Raises WireError where a device, context or stream is below -1.
    """
    columns = _lite_columns(batch)
    schema = parse(lite_handler(), [b""]).schema
    arrays = []
    for item in schema:
        values = columns[item.name]
        if isinstance(values, np.ndarray):
            values = pa.array(np.ascontiguousarray(values, dtype=item.type.to_pandas_dtype()))
        arrays.append(values.cast(item.type))
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    messages: list[bytes] = lite_handler().record_batch_to_array(rows).to_pylist()
    return messages


def _lite_columns(batch: Batch) -> dict[str, Any]:
    spans, resource, count = batch.spans, batch.resource, batch.spans.num_rows
    columns: dict[str, Any] = {name: _numpy(spans, name) for name in _SAME}
    for name, field in _PLUS_1.items():
        columns[field] = col.plus_1(name, _numpy(spans, name))
    for name, field, limits in (
        ("start", "start_time_ms", np.iinfo(np.int64)),
        ("duration", "duration_ms", _INT32),
    ):
        total = _numpy(spans, f"{name}_ns")
        # Towards 0, so that the milliseconds alone never overflow.
        whole = np.clip(_towards_0(total), limits.min, limits.max)
        columns[field], columns[f"{name}_sub_ms_ns"] = whole, total - whole * NS_PER_MS
    attributes = spans.column("attributes")
    links = spans.column("links")
    pid = resource.get("process.pid")
    launch = [spans.column(name) for name in LAUNCH_COLUMNS]
    none = ~np.any([values.to_numpy() for values in launch], axis=0)
    return columns | {
        "trace_id": _numpy(spans, "trace_id_low"),
        "trace_id_high": _numpy(spans, "trace_id_high"),
        "service": _same_text(resource.get("service.name"), count),
        "host": _same_text(resource.get("host.name"), count),
        "process_id": np.full(count, pid if isinstance(pid, int) and pid > 0 else 0, np.uint64),
        "sampling_probability": np.full(count, batch.header.sampling_probability),
        "name": spans.column("name").cast(pa.string()),
        "attributes_json": attributes.cast(pa.string()).fill_null(""),
        "launch": pa.StructArray.from_arrays(
            launch,
            fields=[pa.field(name, pa.uint32(), nullable=False) for name in LAUNCH_COLUMNS],
            mask=pa.array(none),
        ),
        "links": links.fill_null([]) if links.null_count else links,
    }


def _towards_0(total: Array) -> Array:
    whole: Array = total // NS_PER_MS
    whole += (total < 0) & (whole * NS_PER_MS != total)
    return whole


def _same_text(value: Any, count: int) -> pa.Array:
    return pa.repeat("" if value is None else str(value), count)
