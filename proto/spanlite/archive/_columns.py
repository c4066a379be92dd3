"""Columns on their way into a file, as numpy arrays.

A column that holds one value throughout is a broadcast view (stride 0): it takes no
memory and no time until the file is written, and most columns of a file are such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

#: More distinct values than this and a column of numbers is not written as a dictionary.
#: It leaves room for -1 and for one more in 16 bits.
MAX_DISTINCT = 30_000


def constant(value: Any, count: int) -> Array:
    """A read-only column of `count` times the value."""
    one = np.asarray(value)
    # What np.broadcast_to does, ten times as fast: there are many small batches.
    return np.ndarray((count,), one.dtype, one, strides=(0,))


def is_constant(values: Array) -> bool:
    """Whether the array is known, without looking at it, to hold one value throughout."""
    return values.strides == (0,) and len(values) > 0


def take(values: Array, rows: Array | None) -> Array:
    """The values at these rows (None: all); a constant stays one."""
    if rows is None:
        return values
    if is_constant(values):
        return constant(values[0], len(rows))
    return values.take(rows)


def concat(parts: Sequence[Array]) -> Array:
    """The parts one after the other; a constant where all of them are the same one."""
    if len(parts) == 1:
        return parts[0]
    if all(is_constant(part) and part[0] == parts[0][0] for part in parts):
        return constant(parts[0][0], sum(map(len, parts)))
    return np.concatenate(parts)


@dataclass(frozen=True)
class Numbers:
    """Integers or floats, written as they are. `valid` is None where no value is null."""

    values: Array
    valid: Mask | None = None

    def rows(self, rows: Array | slice) -> Numbers:
        """The column at these rows."""
        if isinstance(rows, slice):
            valid = None if self.valid is None else self.valid[rows]
            return Numbers(self.values[rows], valid)
        valid = None if self.valid is None else take(self.valid, rows)
        return Numbers(take(self.values, rows), valid)


@dataclass(frozen=True)
class Coded:
    """A column with few distinct values: `codes` point into `words`; -1 is null.

    `words` is a StringArray for text, else a numpy array.
    """

    codes: Array
    words: pa.StringArray | Array

    def rows(self, rows: Array | slice) -> Coded:
        """The column at these rows."""
        if isinstance(rows, slice):
            return Coded(self.codes[rows], self.words)
        return Coded(take(self.codes, rows), self.words)

    def __len__(self) -> int:
        return len(self.codes)

    def indexes(self, kind: type[np.unsignedinteger[Any]]) -> tuple[Mask | None, Array]:
        """Which rows are valid (None: all), and the word index of each valid row.

        Constant arrays where the column is known to be constant.
        """
        codes = self.codes
        if is_constant(codes):
            if codes[0] < 0:
                return constant(False, len(codes)), np.zeros(0, kind)
            return None, constant(kind(codes[0]), len(codes))
        valid = codes >= 0
        if valid.all():
            return None, codes.astype(kind)
        return valid, codes[valid].astype(kind)

    def trimmed(self) -> Coded:
        """The same with only the words that are used."""
        if is_constant(self.codes):
            code = int(self.codes[0])
            words = self.words[max(code, 0) : max(code, 0) + int(code >= 0)]
            return Coded(constant(min(code, 0), len(self.codes)), words)
        used = np.bincount(self.codes + 1, minlength=len(self.words) + 1) > 0
        used[0] = False
        if used[1:].all():
            return self
        renumber = (np.cumsum(used) - 1).astype(self.codes.dtype)
        return Coded(renumber[self.codes + 1], self.words.take(np.flatnonzero(used[1:])))


def code_dtype(words: int) -> type[np.signedinteger[Any]]:
    """The smallest type for codes -1 to words - 1."""
    return np.int16 if words < 1 << 15 else np.int32


def encode(values: Array) -> Coded | Numbers:
    """Numbers without nulls, by their distinct values where those are few."""
    if is_constant(values):
        return Coded(constant(np.int16(0), len(values)), values[:1].copy())
    encoded = pa.array(values).dictionary_encode()
    if len(encoded.dictionary) > MAX_DISTINCT:
        return Numbers(values)
    return Coded(encoded.indices.to_numpy().astype(np.int16), encoded.dictionary.to_numpy())
