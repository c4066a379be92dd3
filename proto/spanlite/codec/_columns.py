"""The small vectorised steps a column takes between numpy and the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spanlite.errors import WireError

Array = npt.NDArray[Any]


def delta(values: Array) -> npt.NDArray[np.int64]:
    """Differences to the value before, the first to 0, modulo 2^64. Shape (n,) -> (n,)."""
    bits = np.ascontiguousarray(values).view(np.uint64)
    out = bits.copy()
    out[1:] -= bits[:-1]
    return out.view(np.int64)


def undelta(deltas: Array, count: int) -> npt.NDArray[np.uint64]:
    """Inverse of `delta` for a column of 0, 1 or `count` values."""
    if len(deltas) == 0:
        return np.zeros(count, dtype=np.uint64)
    bits = deltas.view(np.uint64) if deltas.dtype.itemsize == 8 else deltas.astype(np.uint64)
    if len(deltas) == 1 and count != 1:
        return bits[0] * np.arange(1, count + 1, dtype=np.uint64)
    return np.cumsum(bits, dtype=np.uint64)


def collapse(values: Array) -> Array:
    """The column as it goes on the wire: none where all are 0, one where all are equal."""
    if len(values) == 0:
        return values
    if (values == values[0]).all():
        return values[:0] if values[0] == 0 else values[:1]
    return values


def expand(values: Array, count: int) -> Array:
    """Inverse of `collapse`; a read-only view where one value stands for all."""
    if len(values) == count:
        return values
    if len(values) == 0:
        return np.broadcast_to(np.zeros((), dtype=values.dtype), (count,))
    return np.broadcast_to(values[0], (count,))


def encode_parent(span_id: Array, parent: Array) -> npt.NDArray[np.int64]:
    """Distance to the parent, 0 for none; a bijection for every pair of ids."""
    distance = np.where(parent == 0, np.uint64(0), span_id - parent)
    own = (parent == span_id) & (parent != 0)
    return np.where(own, span_id, distance).view(np.int64)


def decode_parent(span_id: Array, distance: Array) -> npt.NDArray[np.uint64]:
    """Inverse of `encode_parent`."""
    bits = distance.view(np.uint64)
    parent = np.where(bits == 0, np.uint64(0), span_id - bits)
    return np.where((bits == span_id) & (bits != 0), span_id, parent)


def check_length(name: str, length: int, count: int) -> None:
    """A column holds 0, 1 or `count` values."""
    if length not in (0, 1, count):
        raise WireError("malformed", f"column {name} has {length} values for {count} spans")


def check_below(name: str, values: Array, limit: int) -> None:
    """Every value is below `limit`."""
    if len(values) and int(values.max()) >= limit:
        raise WireError("malformed", f"column {name} holds {int(values.max())}, limit {limit}")
