"""Decoded batches to the archive's columns: gather, sort, and turn sentinels into nulls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spanlite.archive._columns import (
    Array,
    Column,
    Numbers,
    Words,
    concat,
    constant,
    is_constant,
    take,
)
from spanlite.codec import BatchView
from spanlite.kinds import COPY_KIND_WORDS, KIND_WORDS, STATUS_WORDS
from spanlite.schema import LAUNCH_COLUMNS

#: The resource attribute that marks the spans of a replay.
REPLAY_ATTRIBUTE = "spanlite.replay.id"

#: Archive column -> its type and the sentinel that becomes null.
NUMBERS: dict[str, tuple[type[np.signedinteger[Any]], int | None]] = {
    "span_id": (np.int64, None),
    "parent_span_id": (np.int64, 0),
    "start_ns": (np.int64, None),
    "duration_ns": (np.int64, None),
    "thread_id": (np.int64, 0),
    "device": (np.int32, -1),
    "context": (np.int64, -1),
    "stream": (np.int64, -1),
    "correlation_id": (np.int64, 0),
    "graph_id": (np.int64, 0),
    "graph_node_id": (np.int64, 0),
    "bytes": (np.int64, 0),
    "flags": (np.int32, None),
}
#: Columns of small enumerations: their words, the prefix of a number without a word, and
#: whether 0 is null.
ENUMS: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "kind": (KIND_WORDS, "kind_", False),
    "status": (STATUS_WORDS, "status_", False),
    "copy_kind": (COPY_KIND_WORDS, "copy_kind_", True),
}


@dataclass(frozen=True)
class Piece:
    """The chosen rows of one batch, and the weight of each."""

    view: BatchView
    rows: Array | None
    weights: Array

    def __len__(self) -> int:
        return self.view.count if self.rows is None else len(self.rows)

    def column(self, name: str) -> Array:
        """The chosen rows of one of the batch's columns."""
        return take(self.view.column(name), self.rows)

    @cached_property
    def resource(self) -> dict[str, Any]:
        """The batch's resource attributes."""
        return self.view.resource


class Rows:
    """The rows of some pieces, sorted by trace_id, start_ns, span_id."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self.sizes = [len(piece) for piece in pieces]
        self.trace_words, rank = _traces(pieces)
        start = self._gather("start_ns")
        self._order = sort_rows(rank, start, self._gather("span_id"))
        self._rank = take(rank, self._order)
        self.start_ns = take(start, self._order)

    def __len__(self) -> int:
        return sum(self.sizes)

    def _gather(self, name: str) -> Array:
        return concat([piece.column(name) for piece in self._pieces])

    def _sorted(self, name: str, rows: Array | None) -> Array:
        return take(take(self._gather(name), self._order), rows)

    def columns(self, rows: Array | None = None) -> dict[str, Column]:
        """Every archive column of these rows (None: all), in sorted order."""
        out: dict[str, Column] = {"trace_id": Words(take(self._rank, rows), self.trace_words)}
        for name, (kind, none) in NUMBERS.items():
            out[name] = numbers(self._sorted(name, rows), kind, none)
        for name in ENUMS:
            out[name] = enum_words(name, self._sorted(name, rows))
        for name, shift in (("name", 0), ("attributes", 1)):
            out[name] = self._text(name, shift, rows)
        out.update(self._launches(rows))
        out.update(self._senders(rows))
        out["links"] = self._links(rows)
        weights = concat([piece.weights for piece in self._pieces])
        out["sampling_weight"] = Numbers(take(take(weights, self._order), rows))
        return out

    def _place(self, parts: Sequence[Array], rows: Array | None) -> Array:
        return take(take(concat(parts), self._order), rows)

    def _text(self, name: str, shift: int, rows: Array | None) -> Words:
        pools = [piece.view.strings for piece in self._pieces]
        merged = pa.concat_arrays(pools).dictionary_encode()
        codes = np.concatenate((merged.indices.to_numpy(), np.array([-1], np.int32)))
        parts, base = [], 0
        for piece, pool in zip(self._pieces, pools, strict=True):
            index = piece.column(name)
            if is_constant(index):
                none = int(index[0]) < shift
                code = -1 if none else codes[base + int(index[0]) - shift]
                parts.append(constant(np.int32(code), len(index)))
            else:
                local = index.astype(np.int64) - shift
                parts.append(codes.take(np.where(local < 0, -1, local + base)))
            base += len(pool)
        return Words(self._place(parts, rows), merged.dictionary)

    def _launches(self, rows: Array | None) -> dict[str, Numbers]:
        parts, base = [], 0
        for piece in self._pieces:
            index = piece.column("launch")
            if is_constant(index):
                parts.append(constant(np.int64(index[0]) + (base if index[0] else 0), len(index)))
            else:
                parts.append(np.where(index == 0, 0, index.astype(np.int64) + base))
            base += len(piece.view.launch_table("grid_x")) - 1
        code = self._place(parts, rows)
        tables = [self._launch_table(name) for name in LAUNCH_COLUMNS]
        given: Array = take_table(np.any(tables, axis=0), code)
        valid = None if given.all() else given
        return {
            name: Numbers(take_table(table, code), valid)
            for name, table in zip(LAUNCH_COLUMNS, tables, strict=True)
        }

    def _launch_table(self, name: str) -> Array:
        parts = [piece.view.launch_table(name)[1:] for piece in self._pieces]
        table: Array = np.concatenate([np.zeros(1, np.uint32), *parts])
        return table.view(np.int32)

    def _per_piece(self, value: Callable[[Piece], Any], rows: Array | None) -> Array:
        parts = [constant(value(p), n) for p, n in zip(self._pieces, self.sizes, strict=True)]
        return self._place(parts, rows)

    def _sender_words(self, value: Callable[[Piece], str | None], rows: Array | None) -> Words:
        words: dict[str, int] = {}
        codes = self._per_piece(
            lambda piece: np.int32(
                -1 if (word := value(piece)) is None else words.setdefault(word, len(words))
            ),
            rows,
        )
        return Words(codes, pa.array(list(words), pa.string()))

    def _senders(self, rows: Array | None) -> dict[str, Column]:
        process = self._per_piece(lambda p: np.int64(process_id(p.resource) or 0), rows)
        offset = self._per_piece(lambda p: np.int64(p.view.header.clock_offset_ns), rows)
        uncertainty = self._per_piece(
            lambda p: np.uint64(p.view.header.clock_uncertainty_ns).astype(np.int64), rows
        )
        return {
            "service": self._sender_words(lambda p: text_of(p.resource, "service.name"), rows),
            "host": self._sender_words(lambda p: text_of(p.resource, "host.name"), rows),
            "process_id": numbers(process, np.int64, 0),
            "resource": self._sender_words(lambda p: resource_text(p.resource), rows),
            "replay_id": self._sender_words(
                lambda p: text_of(p.resource, REPLAY_ATTRIBUTE) or None, rows
            ),
            "clock_offset_ns": Numbers(offset),
            "clock_uncertainty_ns": Numbers(uncertainty),
        }

    def _links(self, rows: Array | None) -> pa.Array:
        parts = [archive_links(piece.view, piece.rows) for piece in self._pieces]
        count = len(self) if rows is None else len(rows)
        if all(part is None for part in parts):
            return pa.nulls(count, LINKS)
        arrays = [
            pa.nulls(size, LINKS) if part is None else part
            for part, size in zip(parts, self.sizes, strict=True)
        ]
        return pa.concat_arrays(arrays).take(pa.array(take(self._order, rows)))


LINKS = pa.list_(
    pa.struct(
        [
            pa.field("trace_id", pa.string(), nullable=False),
            pa.field("span_id", pa.int64(), nullable=False),
        ]
    )
)


def archive_links(view: BatchView, rows: Array | None) -> pa.ListArray | None:
    """The links as the archive holds them, or None where there is none."""
    links = view.links(rows)
    if links is None:
        return None
    flat = links.flatten()
    words = hex_words(flat.field("trace_id_low").to_numpy(), flat.field("trace_id_high").to_numpy())
    values = pa.StructArray.from_arrays(
        [words, flat.field("span_id").view(pa.int64())], fields=list(LINKS.value_type)
    )
    counts = links.value_lengths().fill_null(0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets, mask=np.append(counts == 0, False)), values, type=LINKS
    )


def take_table(table: Array, code: Array) -> Array:
    """`table[code]`; a constant where the code or the table is one."""
    if is_constant(code) or (table == table[0]).all():
        return constant(table[code[0]] if len(code) else table[0], len(code))
    return table.take(code)


def numbers(values: Array, kind: type[np.signedinteger[Any]], none: int | None) -> Numbers:
    """Integers with the sentinel as null; unsigned ones keep their bits."""
    if is_constant(values):
        value = values[:1].astype(kind)[0]
        valid = None if none is None or value != none else constant(False, len(values))
        return Numbers(constant(value, len(values)), valid)
    values = values.astype(kind, copy=False)
    if none is None:
        return Numbers(values)
    valid = values != none
    return Numbers(values, None if valid.all() else valid)


def enum_words(name: str, values: Array) -> Words:
    """Numbers of an enumeration as words."""
    words, prefix, zero_is_null = ENUMS[name]
    highest = int(values[0] if is_constant(values) else values.max(initial=0))
    more = [f"{prefix}{number}" for number in range(len(words), highest + 1)]
    pool = pa.array([*words, *more], pa.string())
    if is_constant(values):
        code = int(values[0])
        return Words(constant(-1 if zero_is_null and code == 0 else code, len(values)), pool)
    codes = values.astype(np.int32)
    return Words(np.where(codes == 0, -1, codes) if zero_is_null else codes, pool)


def text_of(resource: dict[str, Any], key: str) -> str:
    """An attribute as text, empty where it is missing."""
    value = resource.get(key, "")
    return value if isinstance(value, str) else json.dumps(value)


def process_id(resource: dict[str, Any]) -> int | None:
    """`process.pid` where it is an integer that fits, else None."""
    value = resource.get("process.pid")
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if -(2**63) <= value < 2**63 else None


def resource_text(resource: dict[str, Any]) -> str:
    """The resource as JSON with sorted keys, so that equal ones are equal text."""
    return json.dumps(resource, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def hex_words(low: Array, high: Array) -> pa.StringArray:
    """Trace ids as 32 hex digits each, shape (n,), without a Python object an id."""
    raw = np.empty((len(low), 2), dtype=">u8")
    raw[:, 0], raw[:, 1] = high, low
    offsets = np.arange(0, 32 * len(low) + 1, 32, dtype=np.int32)
    text = raw.tobytes().hex().encode()
    return pa.StringArray.from_buffers(len(low), pa.py_buffer(offsets), pa.py_buffer(text))


def _traces(pieces: Sequence[Piece]) -> tuple[pa.StringArray, Array]:
    """The distinct trace ids in order, and each row's place among them."""
    low = np.concatenate([piece.view.trace_low for piece in pieces])
    high = np.concatenate([piece.view.trace_high for piece in pieces])
    order = np.lexsort((low, high)) if high.any() else np.argsort(low)
    low, high = low[order], high[order]
    is_new = np.ones(len(low), dtype=bool)
    is_new[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    rank = np.empty(len(low), dtype=np.int32)
    rank[order] = np.cumsum(is_new) - 1
    parts, base = [], 0
    for piece in pieces:
        index = take(piece.view.trace_index, piece.rows)
        parts.append(rank[base : base + len(piece.view.trace_low)].take(index.astype(np.int64)))
        base += len(piece.view.trace_low)
    return hex_words(low[is_new], high[is_new]), np.concatenate(parts)


def sort_rows(rank: Array, start_ns: Array, span_id: Array) -> npt.NDArray[np.int64]:
    """The order that sorts rows by (rank, start_ns, span_id as signed). Shape (n,)."""
    if len(rank) == 0:
        return np.zeros(0, dtype=np.int64)
    since = start_ns.view(np.uint64) if start_ns.strides != (0,) else start_ns.astype(np.uint64)
    since = since - np.int64(start_ns.min()).astype(np.uint64)
    bits = int(since.max()).bit_length()
    if bits + int(rank.max()).bit_length() > 64:
        by_all: npt.NDArray[np.int64] = np.lexsort((span_id.astype(np.int64), start_ns, rank))
        return by_all
    key = (rank.astype(np.uint64) << np.uint64(bits)) | since
    order = np.argsort(key)
    return _settle_ties(order, key[order], span_id)


def _settle_ties(order: Array, key: Array, span_id: Array) -> npt.NDArray[np.int64]:
    """Among rows of equal key, order by span_id; those rows are few."""
    same = key[1:] == key[:-1]
    if not same.any():
        return order
    tied = np.zeros(len(key), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    at = np.flatnonzero(tied)
    rows = order[at]
    order[at] = rows[np.lexsort((span_id[rows].astype(np.int64), key[at]))]
    return order
