"""Columns of a table as numpy: values and nulls, distinct values, and where ids lie.

Rows of an archive come in order of track, so most columns stay the same for long runs. What
follows looks at each run once where it can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spanlite_replay import _native

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
AnyInt = npt.NDArray[np.integer[Any]]
#: Runs shorter than this on average are not worth it.
_SHORT_RUN = 3
#: Ids are looked up through pages of so many places, while those take not much more room.
_PAGE_BITS = 12
_PAGES_PER_ID = 16


def numbers(column: pa.ChunkedArray) -> tuple[AnyInt, Mask | None]:
    """An integer column as (values, which are not null); None: all. Null's values are anything."""
    array = one_chunk(column)
    if not array.null_count:
        return array.to_numpy(), None
    valid, data = array.buffers()
    first, last = array.offset, array.offset + len(array)
    values = np.frombuffer(data, array.type.to_pandas_dtype())[first:last]
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), count=last, bitorder="little")
    return values, bits[first:].view(np.bool_)


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece."""
    if column.num_chunks == 1:
        return column.chunk(0)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    return array


def factorise(
    table: pa.Table, names: Sequence[str], rows: I64 | None = None
) -> tuple[I32, pa.Table]:
    """Distinct values of some columns: (code of each row, one row a code, sorted).

    Null is a value of its own, and the last. Of `rows` only, where given; shape (rows,). Codes
    depend on the values that occur alone, never on how a table is split.
    """
    if rows is None:
        return _by_runs(table, names, None)
    if _changes_often(table.column(names[-1])):
        return _by_row(table, names, rows)
    wanted = np.zeros(table.num_rows, dtype=np.bool_)
    wanted[rows] = True
    in_order = np.flatnonzero(wanted)
    code, keys = _by_runs(table, names, in_order)
    of_row = np.empty(table.num_rows, dtype=np.int32)
    of_row[in_order] = code
    return of_row[rows], keys


def _changes_often(column: pa.ChunkedArray) -> bool:
    """Whether runs are short, so that rows may as well be taken in any order."""
    if not pa.types.is_integer(column.type):
        return False
    values, _ = numbers(column)
    return int(np.count_nonzero(values[1:] != values[:-1])) * _SHORT_RUN > len(values)


def _by_runs(table: pa.Table, names: Sequence[str], rows: I64 | None) -> tuple[I32, pa.Table]:
    """`factorise` of rows in order of the table: one of each run, where runs are long."""
    count = table.num_rows if rows is None else len(rows)
    change = np.zeros(count, dtype=np.bool_)
    change[:1] = True
    for name in reversed(names):  # the last changes most
        for values in _compared(table.column(name)):
            mine = values if rows is None else values[rows]
            change[1:] |= mine[1:] != mine[:-1]
        if np.count_nonzero(change) * _SHORT_RUN > count:
            return _by_row(table, names, rows)
    starts = np.flatnonzero(change)
    code, keys = _by_row(table, names, starts if rows is None else rows[starts])
    return np.repeat(code, np.diff(np.append(starts, count))), keys


def _compared(column: pa.ChunkedArray) -> list[npt.NDArray[np.generic]]:
    """Arrays that change where the column does."""
    if not pa.types.is_integer(column.type):
        return [_dictionary_codes(column)[0]]
    values, valid = numbers(column)
    return [values] if valid is None else [values, valid]


def _by_row(table: pa.Table, names: Sequence[str], rows: I64 | None) -> tuple[I32, pa.Table]:
    count = table.num_rows if rows is None else len(rows)
    code: AnyInt | None = None
    columns, sizes = [], []
    for name in names:
        mine, words = dictionary(table.column(name), rows)
        columns.append(words)
        sizes.append(len(words))
        if len(words) > 1:
            code = mine if code is None else code.astype(np.int64) * len(words) + mine
    if code is None:
        code = np.zeros(count, dtype=np.int64)
    if math.prod(sizes) > max(1 << 20, count):
        used, inverse = np.unique(code, return_inverse=True)
    else:
        used = np.flatnonzero(np.bincount(code, minlength=1)) if count else np.empty(0, np.int64)
        rank = np.zeros(math.prod(sizes) or 1, dtype=np.int32)
        rank[used] = np.arange(len(used))
        inverse = rank[code]
    keys = _keys(used.astype(np.int64), columns, names)
    order = pc.sort_indices(keys, [(name, "ascending") for name in names]).to_numpy()
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order))
    if (order[1:] < order[:-1]).any():
        inverse = place[inverse]
    return inverse.astype(np.int32), keys.take(pa.array(order))


def _keys(used: I64, words: list[pa.Array], names: Sequence[str]) -> pa.Table:
    """What each combined code stands for."""
    columns = []
    for values in reversed(words):
        at = used % len(values) if len(values) else used
        columns.append(values.take(pa.array(at)))
        used = used // max(1, len(values))
    return pa.table(dict(zip(names, reversed(columns), strict=True)))


def dictionary(column: pa.ChunkedArray, rows: I64 | None = None) -> tuple[AnyInt, pa.Array]:
    """(code of each row, distinct values; null is the last of them where it occurs)."""
    if pa.types.is_integer(column.type):
        return _distinct(column, rows)
    codes, words = _dictionary_codes(column)
    return (codes if rows is None else codes[rows]), words


def _dictionary_codes(column: pa.ChunkedArray) -> tuple[AnyInt, pa.Array]:
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = one_chunk(column.unify_dictionaries() if column.num_chunks > 1 else column)
    words = array.dictionary
    codes, valid = numbers(pa.chunked_array([array.indices]))
    if valid is not None:
        codes = np.where(valid, codes, len(words)).astype(codes.dtype)
        words = pa.concat_arrays([words, pa.nulls(1, words.type)])
    return codes, words


def _distinct(column: pa.ChunkedArray, rows: I64 | None) -> tuple[AnyInt, pa.Array]:
    """`dictionary` of numbers: by counting where they lie close together, else by hash."""
    values, valid = numbers(column)
    if rows is not None and len(rows) and _is_same(values, valid, rows):
        return np.zeros(len(rows), dtype=np.int64), pa.array(values[rows[:1]], column.type)
    if rows is not None:
        values, valid = values[rows], None if valid is None else valid[rows]
    if valid is not None and valid.all():
        valid = None
    starts = _run_starts(values, valid)
    if len(starts) * _SHORT_RUN > len(values):
        return _distinct_values(values, valid, column.type)
    few = None if valid is None else valid[starts]
    codes, words = _distinct_values(values[starts], few, column.type)
    if len(words) == 1:
        return np.zeros(len(values), dtype=np.int64), words
    return np.repeat(codes, np.diff(np.append(starts, len(values)))), words


def _is_same(values: AnyInt, valid: Mask | None, rows: I64) -> bool:
    """Whether all the column is null or like the first of `rows`, and none of those is null."""
    same = values == values[rows[0]]
    if valid is not None:
        same |= ~valid
    return bool(same.all()) and (valid is None or bool(valid[rows].all()))


def _distinct_values(
    values: AnyInt, valid: Mask | None, kind: pa.DataType
) -> tuple[AnyInt, pa.Array]:
    if valid is not None:
        values = np.where(valid, values, values[valid][0] if valid.any() else 0)
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    codes: AnyInt
    if low == high:
        codes, words = np.zeros(len(values), dtype=np.int64), np.array([low])
    elif high - low < 1 << 16:
        near = (values - values.dtype.type(low)).astype(np.int32)
        used = np.flatnonzero(np.bincount(near, minlength=high - low + 1))
        rank = np.zeros(high - low + 1, dtype=np.int32)
        rank[used] = np.arange(len(used))
        codes, words = rank[near], used + low
    else:
        coded = pa.array(values).dictionary_encode()
        codes, words = coded.indices.to_numpy(), coded.dictionary.to_numpy()
    distinct = pa.array(words, kind)
    if valid is not None:
        codes = np.where(valid, codes, len(distinct))
        distinct = pa.concat_arrays([distinct, pa.nulls(1, kind)])
    return codes, distinct


def find(wanted: I64, among: I64) -> I64:
    """Where each wanted id is in `among`, -1 for nowhere. Shape of `wanted`.

    Ids of a producer follow each other, so a table over the pages they lie in is small, and
    rows that lie together ask for the same page.
    """
    if not len(among):
        return np.full(len(wanted), -1, dtype=np.int64)
    asked_run = _run_starts(wanted)
    if len(asked_run) * _SHORT_RUN <= len(wanted):
        found = _find(wanted[asked_run], among)
        return np.repeat(found, np.diff(np.append(asked_run, len(wanted))))
    return _find(wanted, among)


def _find(wanted: I64, among: I64) -> I64:
    page, inside = among >> _PAGE_BITS, among & ((1 << _PAGE_BITS) - 1)
    run = _run_starts(page)
    pages = np.unique(page[run])
    asked = wanted >> _PAGE_BITS
    asked_run = _run_starts(asked)
    is_small = len(pages) << _PAGE_BITS <= max(_PAGES_PER_ID * len(among), 1 << 20)
    if not is_small or len(asked_run) * 2 > len(wanted):
        return _find_by_hash(wanted, among)
    table = np.full(len(pages) << _PAGE_BITS, -1, dtype=np.int32)
    first = np.repeat(np.searchsorted(pages, page[run]), np.diff(np.append(run, len(among))))
    # Backwards, so that of equal ids the first stays.
    table[((first << _PAGE_BITS) | inside)[::-1]] = np.arange(len(among) - 1, -1, -1)
    place = np.searchsorted(pages, asked[asked_run])
    place[place == len(pages)] = 0
    place = np.where(pages[place] == asked[asked_run], place, -1)
    base = np.repeat(place, np.diff(np.append(asked_run, len(wanted))))
    found = table[(np.maximum(base, 0) << _PAGE_BITS) | (wanted & ((1 << _PAGE_BITS) - 1))]
    return np.where(base >= 0, found, -1).astype(np.int64)


def _find_by_hash(wanted: I64, among: I64) -> I64:
    if _native.is_worth_it(len(wanted) + len(among)):
        return _native.find(wanted, among)
    found = pc.index_in(pa.array(wanted), value_set=pa.array(among))
    return np.asarray(found.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _run_starts(values: AnyInt, valid: Mask | None = None) -> I64:
    change = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=change[1:])
    if valid is not None:
        change[1:] |= valid[1:] != valid[:-1]
    return np.flatnonzero(change)


def argsort(values: I64, stable: bool = False) -> I64:
    """Order by value; fast where the values come in few sorted runs."""
    falls = int((values[1:] < values[:-1]).sum())
    if not falls:
        return np.arange(len(values))
    # A stable sort merges the runs that are there; of many, the other is faster.
    return np.argsort(values, kind="stable" if stable or falls * 64 < len(values) else None)


def by_code(code: I32) -> I64:
    """Order by code, stable."""
    if len(code) and int(code.max()) < 1 << 15 and int(code.min()) >= -(1 << 15):
        code = code.astype(np.int16)  # radix sort
    return np.argsort(code, kind="stable")
