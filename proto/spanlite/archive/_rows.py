"""Decoded batches to the archive's columns: gather, sort, and turn sentinels into nulls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spanlite.archive._columns import (
    Array,
    Coded,
    Numbers,
    code_dtype,
    concat,
    constant,
    encode,
    is_constant,
    take,
)
from spanlite.archive._sites import (
    SITE_NUMBERS,
    Column,
    Sited,
    SiteRows,
    SiteTable,
    merge_sites,
    site_numbers,
    site_values,
    site_words,
)
from spanlite.codec import BatchView
from spanlite.kinds import COPY_KIND_WORDS, KIND_WORDS, STATUS_WORDS
from spanlite.schema import LAUNCH_COLUMNS

#: The resource attribute that marks the spans of a replay.
REPLAY_ATTRIBUTE = "spanlite.replay_id"

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


class Rows:
    """The rows of some pieces, sorted by trace_id, start_ns, span_id."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        self.sizes = [len(piece) for piece in pieces]
        self._trace_words, rank = _traces(pieces)
        start = self._gather("start_ns")
        self._order = sort_rows(rank, start, self._gather("span_id"))
        self._rank = take(rank, self._order)
        self.start_ns = take(start, self._order)

    def __len__(self) -> int:
        return sum(self.sizes)

    def columns(self) -> dict[str, Column]:
        """Every archive column, in sorted order."""
        pool = pa.concat_arrays([piece.view.strings for piece in self._pieces]).dictionary_encode()
        out: dict[str, Column] = {"trace_id": Coded(self._rank, self._trace_words)}
        for name in ("span_id", "parent_span_id", "duration_ns", "correlation_id"):
            out[name] = numbers(take(self._gather(name), self._order), *NUMBERS[name])
        out["start_ns"] = Numbers(self.start_ns)
        out["attributes"] = self._attributes(pool)
        out.update(self._site_columns(pool))
        out.update(self._senders())
        out["links"] = self._links()
        out["sampling_weight"] = encode(self._place([piece.weights for piece in self._pieces]))
        return out

    def _gather(self, name: str) -> Array:
        return concat([piece.column(name) for piece in self._pieces])

    def _place(self, parts: Sequence[Array]) -> Array:
        return take(concat(parts), self._order)

    def _attributes(self, pool: pa.DictionaryArray) -> Coded:
        kind = code_dtype(len(pool.dictionary))
        codes = pool.indices.to_numpy().astype(kind)
        parts, base = [], 0
        for piece in self._pieces:
            size = len(piece.view.strings)
            # The batch's index is shifted by one: 0 is null.
            local = np.concatenate((np.full(1, -1, kind), codes[base : base + size]))
            parts.append(take_table(local, piece.column("attributes")))
            base += size
        return Coded(self._place(parts), pool.dictionary)

    def _site_columns(self, pool: pa.DictionaryArray) -> dict[str, Column]:
        views = [piece.view for piece in self._pieces]
        picks = [piece.rows for piece in self._pieces]
        table = merge_sites(views, picks, pool.indices.to_numpy(), self._order)
        out: dict[str, Column] = {"name": site_words(table, "name", pool.dictionary, None)}
        for name in ENUMS:
            out[name] = _enum(table, name)
        for name in SITE_NUMBERS:
            if name not in ENUMS:
                kind, none = NUMBERS[name]
                values = table.columns[name]
                null = np.zeros(len(values), bool) if none is None else values == none
                out[name] = site_numbers(table, name, kind, null)
        no_launch = ~np.any([table.columns[name] for name in LAUNCH_COLUMNS], axis=0)
        for name in LAUNCH_COLUMNS:
            out[name] = site_numbers(table, name, np.int32, no_launch)
        return out

    def _senders(self) -> dict[str, Column]:
        """Columns of who sent the spans: a few senders, looked up by number."""
        keys = [sender_of(piece.view) for piece in self._pieces]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        codes = [constant(np.int64(numbers[k]), n) for k, n in zip(keys, self.sizes, strict=True)]
        rows = SiteRows(np.ascontiguousarray(self._place(codes)), len(numbers))
        resources = [json.loads(resource) for resource, *_ in numbers]
        table: dict[str, list[Any]] = {
            "service": [text_of(resource, "service.name") for resource in resources],
            "host": [text_of(resource, "host.name") for resource in resources],
            "process_id": [process_id(resource) for resource in resources],
            "resource": [resource for resource, *_ in numbers],
            "replay_id": [text_of(resource, REPLAY_ATTRIBUTE) or None for resource in resources],
            "clock_offset_ns": [offset for _, offset, _ in numbers],
            "clock_uncertainty_ns": [uncertainty for *_, uncertainty in numbers],
        }
        return {name: site_values(rows, values) for name, values in table.items()}

    def _links(self) -> pa.Array:
        """All links, in the order of the rows; null where a span has none."""
        place = np.empty(len(self), np.int64)
        place[self._order] = np.arange(len(self))
        tables, base = [], 0
        for piece, size in zip(self._pieces, self.sizes, strict=True):
            table = piece.view.link_table()
            if len(table[0]):
                at = _picked(table[0], piece.rows, piece.view.count)
                tables.append((np.where(at < 0, -1, place[at + base]), *table[1:]))
            base += size
        if not tables:
            return pa.nulls(len(self), LINKS)
        columns = [np.concatenate(parts) for parts in zip(*tables, strict=True)]
        return links_array(len(self), *columns)


def sender_of(view: BatchView) -> tuple[str, int, int]:
    """What a batch says of its sender: resource as text, clock offset and uncertainty in ns."""
    header = view.header
    uncertainty = int(np.uint64(header.clock_uncertainty_ns).astype(np.int64))
    return resource_text(view.resource), header.clock_offset_ns, uncertainty


def _picked(rows: Array, picks: Array | None, count: int) -> Array:
    """Where rows of a batch are among the picked ones, -1 where they are not."""
    if picks is None:
        return rows
    where = np.full(count, -1)
    where[picks] = np.arange(len(picks))
    return where[rows]


LINKS = pa.list_(
    pa.struct(
        [
            pa.field("trace_id", pa.string(), nullable=False),
            pa.field("span_id", pa.int64(), nullable=False),
        ]
    )
)


def links_array(count: int, at: Array, low: Array, high: Array, span_id: Array) -> pa.ListArray:
    """Links of the rows `at` (below 0: left out) as a column of `count` rows."""
    order = np.argsort(at, kind="stable")
    order = order[np.searchsorted(at[order], 0) :]
    counts = np.bincount(at[order], minlength=count)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    words = hex_words(low[order], high[order])
    values = pa.StructArray.from_arrays(
        [words, pa.array(span_id[order].view(np.int64))], fields=list(LINKS.value_type)
    )
    nulls = np.append(counts == 0, False)
    return pa.ListArray.from_arrays(pa.array(offsets, mask=nulls), values, type=LINKS)


def take_table(table: Array, code: Array) -> Array:
    """`table[code]`; a constant where the code is one."""
    if is_constant(code):
        return constant(table[code[0]], len(code))
    return table.take(code.astype(np.int64, copy=False))


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


def _enum(table: SiteTable, name: str) -> Sited:
    known, prefix, zero_is_null = ENUMS[name]
    highest = int(table.columns[name].max(initial=0))
    more = [f"{prefix}{number}" for number in range(len(known), highest + 1)]
    return site_words(table, name, pa.array([*known, *more]), 0 if zero_is_null else None)


def text_of(resource: dict[str, Any], key: str) -> str:
    """An attribute as text, empty where it is missing."""
    value = resource.get(key, "")
    return value if isinstance(value, str) else json.dumps(value)


def process_id(resource: dict[str, Any]) -> int | None:
    """`process.pid` where it is an integer that fits and is not 0, else None."""
    value = resource.get("process.pid")
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if value and -(2**63) <= value < 2**63 else None


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
