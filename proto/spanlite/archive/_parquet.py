"""Sorted columns to the bytes of a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from spanlite.archive import _pages as pages
from spanlite.archive._columns import Array, Coded, Numbers, is_constant
from spanlite.archive._pages import Pages
from spanlite.archive._sites import Column, Sited, rows_of
from spanlite.archive._thrift import I64, Struct, Value, serialise
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
_EMPTY = Struct()
_PHYSICAL = {"int32": 1, "int64": 2, "double": 5, "string": 6}


@dataclass(frozen=True)
class Effort:
    """How hard to press."""

    zstd_level: int


#: For the job, which must keep up with the spans.
FAST = Effort(zstd_level=1)
#: For compaction, which runs once an hour.
THOROUGH = Effort(zstd_level=12)


@dataclass(frozen=True)
class _Leaf:
    """One column chunk: its path, its physical type, its pages, and its extremes."""

    path: tuple[str, ...]
    physical: int
    pages: Pages
    extremes: tuple[bytes, bytes] | None = None


def write_columns(
    columns: Mapping[str, Column],
    count: int,
    effort: Effort,
    metadata: Mapping[bytes, bytes] | None = None,
) -> bytes:
    """One Parquet file with these columns of SPANS, `count` rows each."""
    codec = pa.Codec("zstd", effort.zstd_level)
    out, at, groups = [MAGIC], len(MAGIC), []
    for start in range(0, count, ROW_GROUP_ROWS):
        rows = slice(start, min(start + ROW_GROUP_ROWS, count))
        leaves = [
            leaf
            for item in SPANS
            for leaf in _leaves(item, rows_of(columns[item.name], rows), codec)
        ]
        groups.append(_row_group(leaves, rows.stop - rows.start, at))
        out += [leaf.pages.data for leaf in leaves]
        at += sum(len(leaf.pages.data) for leaf in leaves)
    footer = _footer(groups, count, metadata or {})
    return b"".join([*out, footer, len(footer).to_bytes(4, "little"), MAGIC])


def _leaves(item: pa.Field, column: Column, codec: pa.Codec) -> Iterator[_Leaf]:
    if isinstance(column, (Coded, Sited)):
        yield _coded_leaf(item, column, codec)
    elif isinstance(column, Numbers):
        yield _numbers_leaf(item, column, codec)
    else:
        yield from _link_leaves(item, column, codec)


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


def _numbers_leaf(item: pa.Field, column: Numbers, codec: pa.Codec) -> _Leaf:
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
    return _Leaf((item.name,), _physical(item.type), done, _extremes(item.name, column))


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
    values = column.flatten() if column.null_count < count else None
    if values is None:
        repeats, defined, entries = pages.run(0, count), pages.run(0, count), count
    else:
        repeats, defined, entries = _link_levels(column)
    levels = pages.levels(repeats) + pages.levels(defined)
    for name in ("trace_id", "span_id"):
        body = b"" if values is None else pages.plain(values.field(name))
        done = pages.chunk(levels, body, pages.PLAIN, entries, codec)
        kind = _PHYSICAL["string" if name == "trace_id" else "int64"]
        yield _Leaf((item.name, "list", "element", name), kind, done)


def _link_levels(column: pa.ListArray) -> tuple[bytes, bytes, int]:
    """Repetition and definition levels: 0 for a null list, 2 for each link."""
    sizes = column.value_lengths().fill_null(0).to_numpy()
    entries = np.maximum(sizes, 1)
    first = np.cumsum(entries) - entries
    repeats = np.ones(int(entries.sum()), np.uint8)
    repeats[first] = 0
    defined = np.repeat(np.where(sizes > 0, 2, 0), entries)
    return pages.packed(repeats, 1), pages.packed(defined, 2), len(repeats)


def _row_group(leaves: list[_Leaf], count: int, at: int) -> Struct:
    chunks: list[Value] = []
    start = at
    for leaf in leaves:
        chunks.append(_column_chunk(leaf, at))
        at += len(leaf.pages.data)
    plain = sum(leaf.pages.plain_bytes for leaf in leaves)
    order: list[Value] = [
        Struct((1, SPANS.names.index(name)), (2, False), (3, False))
        for name in ("trace_id", "start_ns", "span_id")
    ]
    return Struct(
        (1, chunks), (2, I64(plain)), (3, I64(count)), (4, order), (5, I64(start)),
        (6, I64(at - start)),
    )  # fmt: skip


def _column_chunk(leaf: _Leaf, at: int) -> Struct:
    done = leaf.pages
    statistics = None
    if leaf.extremes is not None:
        low, high = leaf.extremes
        statistics = Struct((3, I64(0)), (5, high), (6, low))
    detail = Struct(
        (1, leaf.physical),
        (2, list(done.encodings)),
        (3, list(leaf.path)),
        (4, done.codec),
        (5, I64(done.values)),
        (6, I64(done.plain_bytes)),
        (7, I64(len(done.data))),
        (9, I64(at + done.dictionary_bytes)),
        (11, I64(at) if done.dictionary_bytes else None),
        (12, statistics),
    )
    return Struct((2, I64(at)), (3, detail))


@cache
def _schema() -> list[Value]:
    text = Struct((1, _EMPTY))
    out: list[Value] = [Struct((4, "schema"), (5, len(SPANS)))]
    for item in SPANS:
        if pa.types.is_list(item.type):
            out += [
                Struct(
                    (3, _OPTIONAL), (4, item.name), (5, 1), (6, _LIST), (10, Struct((3, _EMPTY)))
                ),
                Struct((3, _REPEATED), (4, "list"), (5, 1)),
                Struct((3, _REQUIRED), (4, "element"), (5, 2)),
                Struct((1, 6), (3, _REQUIRED), (4, "trace_id"), (6, _UTF8), (10, text)),
                Struct((1, 2), (3, _REQUIRED), (4, "span_id")),
            ]
            continue
        physical = _physical(item.type)
        is_text = physical == _PHYSICAL["string"]
        out.append(
            Struct(
                (1, physical),
                (3, _OPTIONAL if item.nullable else _REQUIRED),
                (4, item.name),
                (6, _UTF8 if is_text else None),
                (10, text if is_text else None),
            )
        )
    return out


def _footer(groups: list[Struct], count: int, metadata: Mapping[bytes, bytes]) -> bytes:
    entries = {SCHEMA_VERSION_KEY: SCHEMA_VERSION.encode(), **metadata}
    pairs: list[Value] = [Struct((1, key), (2, value)) for key, value in entries.items()]
    leaves = len(SPANS) + 1  # links have two
    orders: list[Value] = [Struct((1, _EMPTY)) for _ in range(leaves)]
    return serialise(
        Struct(
            (1, 2),
            (2, _schema()),
            (3, I64(count)),
            (4, list(groups)),
            (5, pairs),
            (6, f"spanlite version {version('spanlite')}"),
            (7, orders),
        )
    )
