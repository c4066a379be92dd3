"""Columns on their way into a file, as numpy arrays.

A column that holds one value throughout is a broadcast view (stride 0): it takes no
memory and no time until the file is written, and most columns of a file are such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


def constant(value: Any, count: int) -> Array:
    """A read-only column of `count` times the value."""
    return np.broadcast_to(np.asarray(value), (count,))


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
    """An integer or float column. `valid` is None where no value is null."""

    values: Array
    valid: Mask | None = None

    def cut(self, start: int, stop: int) -> Numbers:
        """Rows start to stop."""
        valid = None if self.valid is None else self.valid[start:stop]
        return Numbers(self.values[start:stop], valid)

    def to_arrow(self, kind: pa.DataType) -> pa.Array:
        """The column as an Arrow array."""
        mask = None if self.valid is None else ~self.valid
        return pa.array(np.ascontiguousarray(self.values), kind, mask=mask)


@dataclass(frozen=True)
class Words:
    """A text column: `codes` point into `words`; -1 is null."""

    codes: Array
    words: pa.StringArray

    def cut(self, start: int, stop: int) -> Words:
        """Rows start to stop, with only the words that they use."""
        codes = self.codes[start:stop]
        if is_constant(codes):
            code = int(codes[0])
            words = self.words.slice(max(code, 0), int(code >= 0))
            return Words(constant(min(code, 0), len(codes)), words)
        used = np.bincount(codes + 1, minlength=len(self.words) + 1) > 0
        used[0] = False
        renumber = np.cumsum(used) - 1
        words = self.words.take(pa.array(np.flatnonzero(used[1:])))
        return Words(renumber[codes + 1], words)

    def to_arrow(self) -> pa.DictionaryArray:
        """The column as an Arrow dictionary array."""
        codes = np.ascontiguousarray(self.codes, dtype=np.int32)
        return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), self.words)


#: A column of a file: links alone are Arrow already.
Column: TypeAlias = Numbers | Words | pa.Array
