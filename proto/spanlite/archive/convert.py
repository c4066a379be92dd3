"""Rows of the archive back to spans in memory: the exact inverse of the writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spanlite.archive._columns import Array
from spanlite.archive._rows import ENUMS, NUMBERS
from spanlite.errors import ArchiveError
from spanlite.schema import LAUNCH_COLUMNS, LINK_TYPE, SPAN_SCHEMA, STRING

_SENDER = ("resource", "clock_offset_ns", "clock_uncertainty_ns")


@dataclass(frozen=True)
class ArchivedSpans:
    """Spans of one sender, in the order they had in the table.

    `spans` is in SPAN_SCHEMA; `weights` has shape (spans.num_rows,).
    """

    resource: dict[str, Any]
    clock_offset_ns: int
    clock_uncertainty_ns: int
    spans: pa.RecordBatch
    weights: npt.NDArray[np.float64]


def to_span_batches(table: pa.Table) -> Iterator[ArchivedSpans]:
    """A table in the archive's SPANS schema as spans in memory, one batch a sender."""
    if table.num_rows == 0:
        return
    table = table.combine_chunks()
    spans = spans_of(table)
    weights = table.column("sampling_weight").to_numpy()
    senders = table.select(_SENDER)
    codes = _sender_codes(senders)
    for code in range(int(codes.max()) + 1):
        rows = np.flatnonzero(codes == code)
        sender = {name: senders.column(name)[int(rows[0])].as_py() for name in _SENDER}
        yield ArchivedSpans(
            json.loads(sender["resource"]),
            sender["clock_offset_ns"],
            sender["clock_uncertainty_ns"] % (1 << 64),
            spans if len(rows) == len(codes) else spans.take(pa.array(rows)),
            weights[rows],
        )


def _sender_codes(senders: pa.Table) -> npt.NDArray[np.int64]:
    """A number for each row's sender, in order of first appearance."""
    codes = np.zeros(senders.num_rows, dtype=np.int64)
    for name in _SENDER:
        column = _as_dictionary(senders.column(name))
        codes = codes * len(column.dictionary) + column.indices.to_numpy()
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        codes = rank[codes]
    return codes


def spans_of(table: pa.Table) -> pa.RecordBatch:
    """The rows in SPAN_SCHEMA; what belongs to the sender (resource, clock) is left out."""
    low, high = trace_id_halves(table.column("trace_id"))
    arrays: dict[str, pa.Array] = {
        "trace_id_low": pa.array(low),
        "trace_id_high": pa.array(high),
    }
    for name in (*NUMBERS, *LAUNCH_COLUMNS):
        none = NUMBERS[name][1] if name in NUMBERS else 0
        arrays[name] = _numbers(table.column(name), SPAN_SCHEMA.field(name).type, none)
    for name in ENUMS:
        arrays[name] = pa.array(_enum(name, _as_dictionary(table.column(name))))
    for name in ("name", "attributes"):
        arrays[name] = _as_dictionary(table.column(name)).cast(STRING)
    arrays["links"] = _links(_one_chunk(table.column("links")))
    return pa.RecordBatch.from_arrays(
        [arrays[item.name] for item in SPAN_SCHEMA], schema=SPAN_SCHEMA
    )


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _as_dictionary(column: pa.ChunkedArray) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries()
    return _one_chunk(column)


def _per_word(column: pa.DictionaryArray, value: Callable[[str], int], none: int) -> Array:
    """A number for each row from a function of its word."""
    values: Array = np.array([*map(value, column.dictionary.to_pylist()), none])
    codes: Array = column.indices.fill_null(len(values) - 1).to_numpy()
    return values[codes]


def trace_id_halves(column: pa.ChunkedArray) -> tuple[Array, Array]:
    """Low and high halves of a trace_id column, uint64 of shape (rows,) each."""
    return _trace_ids(_as_dictionary(column))


def _trace_ids(column: pa.DictionaryArray) -> tuple[Array, Array]:
    words = column.dictionary.to_pylist()
    try:
        halves = np.frombuffer(bytes.fromhex("".join(words)), ">u8").astype(np.uint64)
        halves = halves.reshape(len(words), 2)
    except ValueError as error:
        raise ArchiveError(f"a trace_id of the archive is not 32 hex digits: {error}") from None
    codes = column.indices.to_numpy()
    return halves[codes, 1], halves[codes, 0]


def _numbers(column: pa.ChunkedArray, kind: pa.DataType, none: int | None) -> pa.Array:
    array = _one_chunk(column)
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(none or 0, array.type))
    return pa.array(array.to_numpy().astype(kind.to_pandas_dtype(), copy=False))


def _enum(name: str, column: pa.DictionaryArray) -> Array:
    words, prefix, _ = ENUMS[name]
    known = {word: number for number, word in enumerate(words)}

    def number(word: str) -> int:
        if word in known:
            return known[word]
        try:
            return int(word.removeprefix(prefix)) & 0xFF
        except ValueError:
            raise ArchiveError(f"the archive's column {name} holds '{word}'") from None

    return _per_word(column, number, 0).astype(np.uint8)


def _links(column: pa.ListArray) -> pa.ListArray:
    flat = column.flatten()
    if len(flat) == 0:
        return pa.nulls(len(column), pa.list_(LINK_TYPE))
    low, high = _trace_ids(flat.field("trace_id").dictionary_encode())
    span_id = flat.field("span_id").to_numpy().view(np.uint64)
    values = pa.StructArray.from_arrays(
        [pa.array(low), pa.array(high), pa.array(span_id)], fields=list(LINK_TYPE)
    )
    counts = pc.fill_null(column.value_lengths(), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets, mask=np.append(counts == 0, False)), values, type=pa.list_(LINK_TYPE)
    )
