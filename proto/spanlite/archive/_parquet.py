"""Sorted columns to the bytes of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from spanlite.archive import _pages as pages
from spanlite.archive import _thrift as thrift
from spanlite.archive._columns import Array, Coded, Numbers, is_constant
from spanlite.archive._pages import Pages
from spanlite.archive._sites import Column, Sited, rows_of
from spanlite.archive.schema import SCHEMA_VERSION, SCHEMA_VERSION_KEY, SPANS

#: A trace is found by reading whole row groups: small enough to read one in
#: milliseconds, large enough that 41 dictionaries and page headers do not count.
ROW_GROUP_ROWS = 1 << 16
MAGIC = b"PAR1"
#: Statistics of these columns alone, so that footers stay small: they are what a reader
#: looks for.
_WITH_STATISTICS = ("trace_id", "start_ns")

_REQUIRED, _OPTIONAL, _REPEATED = 0, 1, 2
_UTF8, _LIST = 0, 3
_PHYSICAL = {"int32": 1, "int64": 2, "double": 5, "string": 6}


@dataclass(frozen=True)
class Effort:
    """How hard to press.

    `tries_dictionary`: also try a dictionary for numbers that are mostly distinct, such as
    durations, and keep what is smaller.
    """

    zstd_level: int
    tries_dictionary: bool = False


#: For the job, which must keep up with the spans.
FAST = Effort(zstd_level=1)
#: For compaction, which runs once an hour.
THOROUGH = Effort(zstd_level=9, tries_dictionary=True)


@dataclass(frozen=True)
class _Leaf:
    """One column chunk: its path, its physical type, its pages, and its extremes."""

    path: tuple[str, ...]
    physical: int
    pages: Pages
    extremes: tuple[bytes, bytes] | None = None


class SpanFileStream:
    """Writes one file of SPANS into an open binary file, some sorted rows at a time."""

    def __init__(self, sink: BinaryIO, effort: Effort) -> None:
        self._sink, self._effort = sink, effort
        self._codec = pa.Codec("zstd", effort.zstd_level)
        self._groups: list[bytes] = []
        self._at = 0
        self.rows = 0
        self._put(MAGIC)

    def _put(self, data: bytes) -> None:
        self._sink.write(data)
        self._at += len(data)

    def add(self, columns: Mapping[str, Column], count: int) -> None:
        """Add rows as whole row groups; they come after all rows added before."""
        for start in range(0, count, ROW_GROUP_ROWS):
            rows = slice(start, min(start + ROW_GROUP_ROWS, count))
            leaves = [
                leaf
                for item in SPANS
                for leaf in self._leaves(item, rows_of(columns[item.name], rows))
            ]
            self._groups.append(_row_group(leaves, rows.stop - rows.start, self._at))
            for leaf in leaves:
                self._put(leaf.pages.data)
        self.rows += count

    def _leaves(self, item: pa.Field, column: Column) -> Iterator[_Leaf]:
        if isinstance(column, (Coded, Sited)):
            yield _coded_leaf(item, column, self._codec)
        elif isinstance(column, Numbers):
            yield _numbers_leaf(item, column, self._codec, self._effort)
        else:
            yield from _link_leaves(item, column, self._codec)

    def close(self, metadata: Mapping[bytes, bytes] | None = None) -> int:
        """Write the footer; returns the size in bytes. The file itself stays open."""
        footer = _footer(self._groups, self.rows, metadata or {})
        self._put(footer + len(footer).to_bytes(4, "little") + MAGIC)
        return self._at


def write_columns(columns: Mapping[str, Column], count: int, effort: Effort) -> bytes:
    """One Parquet file with these columns of SPANS, `count` rows each."""
    sink = BytesIO()
    stream = SpanFileStream(sink, effort)
    stream.add(columns, count)
    stream.close()
    return sink.getvalue()


def _physical(kind: pa.DataType) -> int:
    return _PHYSICAL[str(kind.value_type if pa.types.is_dictionary(kind) else kind)]


def _coded_leaf(item: pa.Field, column: Coded | Sited, codec: pa.Codec) -> _Leaf:
    if pa.types.is_dictionary(item.type):
        column = column.trimmed()
    words = len(column.words)
    valid, codes = column.indexes(_index_type(words))
    levels = pages.null_levels(valid, len(column)) if item.nullable else b""
    done = pages.chunk(
        levels,
        _indexes(codes, words) if len(codes) else b"\x01",
        pages.RLE_DICTIONARY,
        len(column),
        codec,
        (pages.plain(column.words), words),
    )
    return _Leaf((item.name,), _physical(item.type), done, _extremes(item.name, column))


def _index_type(words: int) -> type[np.unsignedinteger[Any]]:
    return np.uint8 if words <= 1 << 8 else np.uint16 if words <= 1 << 16 else np.uint32


def _indexes(codes: Array, words: int) -> bytes:
    """Dictionary indexes with their width, as a run or at whole bytes each."""
    if is_constant(codes):
        return b"\x01" + pages.run(int(codes[0]), len(codes)) if words <= 2 else _wide_run(codes)
    bits = 1 if words <= 2 else 8 * _index_type(words)().itemsize
    return bytes([bits]) + pages.packed(codes, bits)


def _wide_run(codes: Array) -> bytes:
    return b"\x20" + pages.run(0, len(codes))[:-1] + int(codes[0]).to_bytes(4, "little")


def _numbers_leaf(item: pa.Field, column: Numbers, codec: pa.Codec, effort: Effort) -> _Leaf:
    values, valid, count = column.values, column.valid, len(column.values)
    levels = b""
    if item.nullable:
        levels = pages.null_levels(valid, count)
        if valid is not None:
            values = values[valid]
    values = np.ascontiguousarray(values)
    is_float = values.dtype.kind == "f"
    body = pages.plain(values) if is_float else pages.delta(values)
    encoding = pages.PLAIN if is_float else pages.DELTA_BINARY_PACKED
    done = pages.chunk(levels, body, encoding, count, codec)
    if effort.tries_dictionary and (other := _as_dictionary(levels, values, count, codec)):
        done = min(done, other, key=lambda pages: len(pages.data))
    return _Leaf((item.name,), _physical(item.type), done, _extremes(item.name, column))


def _as_dictionary(levels: bytes, values: Array, count: int, codec: pa.Codec) -> Pages | None:
    """The chunk with a dictionary in order of value, or None where that cannot pay."""
    encoded = pa.array(values).dictionary_encode()
    words = encoded.dictionary.to_numpy()
    if len(words) > min(len(values) // 2, 1 << 16):
        return None
    order = np.argsort(words)
    rank = np.empty(len(words), _index_type(len(words)))
    rank[order] = np.arange(len(words))
    codes = rank[encoded.indices.to_numpy()]
    page = (pages.plain(words[order]), len(words))
    body = _indexes(codes, len(words))
    return pages.chunk(levels, body, pages.RLE_DICTIONARY, count, codec, page)


def _extremes(name: str, column: Coded | Sited | Numbers) -> tuple[bytes, bytes] | None:
    if name not in _WITH_STATISTICS:
        return None
    if isinstance(column, Numbers):
        low, high = np.array([column.values.min(), column.values.max()], "<i8")
        return low.tobytes(), high.tobytes()
    # Sorted, and only the words in use: the extremes are the first and the last.
    return column.words[0].as_py().encode(), column.words[-1].as_py().encode()


def _link_leaves(item: pa.Field, column: pa.ListArray, codec: pa.Codec) -> Iterator[_Leaf]:
    count = len(column)
    path = (item.name, "list", "element")
    if column.null_count == count:
        levels = pages.levels(pages.run(0, count)) * 2
        for name, kind in (("trace_id", "string"), ("span_id", "int64")):
            empty = pages.chunk(levels, b"", pages.PLAIN, count, codec)
            yield _Leaf((*path, name), _PHYSICAL[kind], empty)
        return
    repeats, defined, entries = _link_levels(column)
    levels = pages.levels(repeats) + pages.levels(defined)
    values = column.flatten()
    # A step links to the requests that it serves, so the same few traces come up again.
    ids = values.field("trace_id").dictionary_encode()
    words = len(ids.dictionary)
    body = _indexes(ids.indices.to_numpy().astype(_index_type(words)), words)
    page = (pages.plain(ids.dictionary), words)
    done = pages.chunk(levels, body, pages.RLE_DICTIONARY, entries, codec, page)
    yield _Leaf((*path, "trace_id"), _PHYSICAL["string"], done)
    body = pages.delta(values.field("span_id").to_numpy())
    done = pages.chunk(levels, body, pages.DELTA_BINARY_PACKED, entries, codec)
    yield _Leaf((*path, "span_id"), _PHYSICAL["int64"], done)


def _link_levels(column: pa.ListArray) -> tuple[bytes, bytes, int]:
    """Repetition and definition levels: 0 for a null list, 2 for each link."""
    sizes = column.value_lengths().fill_null(0).to_numpy()
    entries = np.maximum(sizes, 1)
    first = np.cumsum(entries) - entries
    repeats = np.ones(int(entries.sum()), np.uint8)
    repeats[first] = 0
    defined = np.repeat(np.where(sizes > 0, 2, 0), entries)
    return pages.packed(repeats, 1), pages.packed(defined, 2), len(repeats)


_SORTED_BY = thrift.structs(
    1,
    [
        thrift.i32(1, SPANS.names.index(name)) + thrift.boolean(1, False) + thrift.boolean(1, False)
        for name in ("trace_id", "start_ns", "span_id")
    ],
)


def _row_group(leaves: Sequence[_Leaf], count: int, at: int) -> bytes:
    """The fields of Parquet's RowGroup."""
    chunks, start = [], at
    for leaf in leaves:
        chunks.append(_column_chunk(leaf, at))
        at += len(leaf.pages.data)
    plain = sum(leaf.pages.plain_bytes for leaf in leaves)
    sizes = thrift.i64(1, plain) + thrift.i64(1, count)
    where = thrift.i64(1, start) + thrift.i64(1, at - start)
    return thrift.structs(1, chunks) + sizes + _SORTED_BY + where


@lru_cache(maxsize=1024)
def _about(path: tuple[str, ...], physical: int, encodings: tuple[int, ...], codec: int) -> bytes:
    return (
        thrift.i32(1, physical)
        + thrift.i32s(1, encodings)
        + thrift.binaries(1, path)
        + thrift.i32(1, codec)
    )


def _column_chunk(leaf: _Leaf, at: int) -> bytes:
    """The fields of Parquet's ColumnChunk and, in it, ColumnMetaData."""
    done = leaf.pages
    fields = [
        _about(leaf.path, leaf.physical, done.encodings, done.codec),
        thrift.i64(1, done.values),
        thrift.i64(1, done.plain_bytes),
        thrift.i64(1, len(done.data)),
        thrift.i64(2, at + done.dictionary_bytes),
    ]
    if done.dictionary_bytes:
        fields.append(thrift.i64(2, at))
    if leaf.extremes is not None:
        low, high = leaf.extremes
        extremes = thrift.i64(3, 0) + thrift.binary(2, high) + thrift.binary(1, low)
        fields.append(thrift.struct(1 if done.dictionary_bytes else 3, extremes))
    return thrift.i64(2, at) + thrift.struct(1, *fields)


def _group_element(repetition: int, name: str, children: int, more: bytes = b"") -> bytes:
    kind = thrift.i32(3, repetition) + thrift.binary(1, name.encode())
    return kind + thrift.i32(1, children) + more


def _leaf_element(physical: int, repetition: int, name: str) -> bytes:
    kind = thrift.i32(1, physical) + thrift.i32(2, repetition) + thrift.binary(1, name.encode())
    if physical != _PHYSICAL["string"]:
        return kind
    return kind + thrift.i32(2, _UTF8) + thrift.struct(4, thrift.struct(1))


@cache
def _schema() -> bytes:
    """The fields of each SchemaElement, as a list."""
    out = [thrift.binary(4, b"schema") + thrift.i32(1, len(SPANS))]
    for item in SPANS:
        if pa.types.is_list(item.type):
            is_list = thrift.i32(1, _LIST) + thrift.struct(4, thrift.struct(3))
            out += [
                _group_element(_OPTIONAL, item.name, 1, is_list),
                _group_element(_REPEATED, "list", 1),
                _group_element(_REQUIRED, "element", 2),
                _leaf_element(_PHYSICAL["string"], _REQUIRED, "trace_id"),
                _leaf_element(_PHYSICAL["int64"], _REQUIRED, "span_id"),
            ]
        else:
            repetition = _OPTIONAL if item.nullable else _REQUIRED
            out.append(_leaf_element(_physical(item.type), repetition, item.name))
    return thrift.structs(1, out)


@cache
def _created_by() -> bytes:
    return f"spanlite version {version('spanlite')}".encode()


def _footer(groups: Sequence[bytes], count: int, metadata: Mapping[bytes, bytes]) -> bytes:
    """Parquet's FileMetaData."""
    entries = {SCHEMA_VERSION_KEY: SCHEMA_VERSION.encode(), **metadata}
    pairs = [thrift.binary(1, key) + thrift.binary(1, value) for key, value in entries.items()]
    leaves = len(SPANS) + 1  # links have two
    by_type = thrift.struct(1)  # how statistics are ordered: as the type says
    return b"".join(
        (
            thrift.i32(1, 2),
            _schema(),
            thrift.i64(1, count),
            thrift.structs(1, groups),
            thrift.structs(1, pairs),
            thrift.binary(1, _created_by()),
            thrift.structs(1, [by_type] * leaves),
            thrift.STOP,
        )
    )
