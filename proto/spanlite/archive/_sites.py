"""Columns that a span has from its site: name, kind, stream, launch configuration, ...

All of them are small tables looked up by the one site number of a span. So a column is
handled by its table, and the rows are touched once, when its indexes are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spanlite.archive._columns import Array, Coded, Mask, Numbers, code_dtype, constant, take
from spanlite.codec import BatchView
from spanlite.codec._columns import distinct
from spanlite.schema import LAUNCH_COLUMNS

#: Columns of the site table that are numbers.
SITE_NUMBERS = (
    "kind", "status", "device", "context", "stream", "thread_id", "graph_id", "graph_node_id",
    "bytes", "copy_kind", "flags",
)  # fmt: skip


class SiteRows:
    """The site number of each row, and what several columns need of it."""

    def __init__(self, codes: npt.NDArray[np.int64], sites: int) -> None:
        self.codes = codes
        self.sites = sites
        self._part: tuple[Any, SiteRows] | None = None
        self._split: dict[bytes, tuple[Mask, Array]] = {}

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def used(self) -> Mask:
        """Which sites have rows here, shape (sites,)."""
        return np.bincount(self.codes, minlength=self.sites) > 0

    def rows(self, rows: Array | slice) -> SiteRows:
        """Some of the rows; the same object for the columns that ask one after the other."""
        if self._part is None or self._part[0] is not rows:
            codes = self.codes[rows] if isinstance(rows, slice) else take(self.codes, rows)
            self._part = (rows, SiteRows(codes, self.sites))
        return self._part[1]

    def without(self, null: Mask) -> tuple[Mask, Array]:
        """Which rows are not at one of the `null` sites, and the codes of those."""
        key = null.tobytes()
        if key not in self._split:
            valid = ~null[self.codes]
            self._split[key] = (valid, self.codes[valid])
        return self._split[key]


@dataclass(frozen=True)
class Sited:
    """A column by its sites: `local[site]` points into `words`; -1 is null."""

    sites: SiteRows
    local: Array
    words: pa.StringArray | Array

    def __len__(self) -> int:
        return len(self.sites)

    def rows(self, rows: Array | slice) -> Sited:
        """The column at these rows."""
        return Sited(self.sites.rows(rows), self.local, self.words)

    def trimmed(self) -> Sited:
        """The same with only the words that are used."""
        seen = self.local[self.sites.used]
        kept = np.unique(seen[seen >= 0])
        if len(kept) == len(self.words):
            return self
        local = np.searchsorted(kept, self.local).astype(self.local.dtype)
        local[~np.isin(self.local, kept)] = -1
        return Sited(self.sites, local, self.words.take(kept))

    def indexes(self, kind: type[np.unsignedinteger[Any]]) -> tuple[Mask | None, Array]:
        """Which rows are valid (None: all), and the word index of each valid row.

        Constant arrays where nothing varies.
        """
        count = len(self.sites)
        seen = self.local[self.sites.used]
        null = seen < 0
        if null.all():
            return constant(False, count), np.zeros(0, kind)
        valid, codes = None, self.sites.codes
        if null.any():
            valid, codes = self.sites.without(self.local < 0)
        first = seen[~null][0]
        if (seen[~null] == first).all():
            return valid, constant(kind(first), len(codes))
        return valid, self.local.astype(kind).take(codes)


#: A column of a file: links alone are Arrow already.
Column: TypeAlias = Numbers | Coded | Sited | pa.Array


def rows_of(column: Column, rows: Array | slice) -> Column:
    """Some rows of a column."""
    if isinstance(column, (Numbers, Coded, Sited)):
        return column.rows(rows)
    if isinstance(rows, slice):
        return column.slice(rows.start, rows.stop - rows.start)
    return column.take(pa.array(rows))


@dataclass(frozen=True)
class SiteTable:
    """The distinct sites of some batches, as numpy columns of shape (sites,)."""

    rows: SiteRows
    columns: dict[str, Array]


def merge_sites(
    views: Sequence[BatchView], picks: Sequence[Array | None], names: Array, order: Array
) -> SiteTable:
    """The sites of some batches as one table, and the site of each of their picked rows.

    `names`: for each string of each batch's pool its number, all batches one after the
    other. `order`: the order that the rows come in.
    """
    columns = _concatenated(views, names)
    index, first = distinct(list(columns.values()), len(columns["name"]))
    codes, base = [], 0
    for view, pick in zip(views, picks, strict=True):
        size = len(view.site_column("name"))
        codes.append(index[base : base + size].take(take(view.site_index, pick).view(np.int64)))
        base += size
    rows = SiteRows(np.concatenate(codes).take(order).astype(np.int64), len(first))
    return SiteTable(rows, {name: values[first] for name, values in columns.items()})


def _concatenated(views: Sequence[BatchView], names: Array) -> dict[str, Array]:
    out: dict[str, list[Array]] = {}
    base = 0
    for view in views:
        out.setdefault("name", []).append(names[base + view.site_column("name").astype(np.int64)])
        base += len(view.strings)
        for name in SITE_NUMBERS:
            out.setdefault(name, []).append(view.site_column(name))
        launch = view.site_column("launch")
        for name in LAUNCH_COLUMNS:
            out.setdefault(name, []).append(view.launch_table(name)[launch])
    return {name: np.concatenate(parts) for name, parts in out.items()}


def site_numbers(
    table: SiteTable, name: str, kind: type[np.signedinteger[Any]], null: Mask
) -> Sited:
    """A column of numbers; `null` says at which sites it is null."""
    words, place = np.unique(table.columns[name][~null].astype(kind), return_inverse=True)
    local = np.full(len(null), -1, code_dtype(len(words)))
    local[~null] = place
    return Sited(table.rows, local, words)


def site_words(table: SiteTable, name: str, words: pa.StringArray, null: int | None) -> Sited:
    """A column of text; the site's number is its word's index. `null`: the number of null."""
    local = table.columns[name].astype(code_dtype(len(words)))
    return Sited(table.rows, np.where(local == null, -1, local).astype(local.dtype), words)


def site_values(rows: SiteRows, values: Sequence[str | int | None]) -> Sited:
    """A column given by its value at each site: all text or all numbers."""
    words = list(dict.fromkeys(value for value in values if value is not None))
    index = {word: number for number, word in enumerate(words)}
    local = np.array([-1 if v is None else index[v] for v in values], code_dtype(len(words)))
    is_text = any(isinstance(word, str) for word in words)
    return Sited(rows, local, pa.array(words, pa.string()) if is_text else np.array(words, "i8"))
