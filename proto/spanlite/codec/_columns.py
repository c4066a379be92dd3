"""The small vectorised steps a column takes between numpy and the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spanlite.errors import WireError

Array = npt.NDArray[Any]
I64s = npt.NDArray[np.int64]
U64s = npt.NDArray[np.uint64]
U64 = np.uint64

#: Odd multipliers whose bits look random, one a column: the sum of products is then a
#: good hash of a row.
_MULTIPLIERS = np.random.default_rng(0x5350414E).integers(1, 1 << 64, 256, dtype=U64) | U64(1)
#: Entropy in bits of 8 low bits, from which they are kept apart.
_NOISE_BITS = 6.5


def delta(values: Array) -> I64s:
    """Differences to the value before, the first to 0, modulo 2^64. Shape (n,) -> (n,)."""
    bits = values.view(U64)
    out = np.empty(len(bits), dtype=U64)
    out[:1] = bits[:1]
    np.subtract(bits[1:], bits[:-1], out=out[1:])
    return out.view(np.int64)


def undelta(deltas: Array, count: int) -> U64s:
    """Inverse of `delta` for a column of 0, 1 or `count` 64-bit values."""
    bits: U64s = deltas.view(U64)
    if len(bits) == 0 or (len(bits) == 1 and count != 1 and not bits[0]):
        return np.broadcast_to(U64(0), (count,))
    if len(bits) == 1 and count != 1:
        bits = np.broadcast_to(bits[0], (count,))
    return np.cumsum(bits, dtype=U64)


def is_constant(values: Array) -> bool:
    """Whether all values are equal; True for none. Cheap where they are not."""
    if len(values) < 2 or values.strides == (0,):
        return True
    return bool(values[0] == values[-1] and (values == values[0]).all())


def collapse(values: Array) -> Array:
    """The column as it goes on the wire: none where all are 0, one where all are equal."""
    if len(values) and is_constant(values):
        return values[:0] if values[0] == 0 else values[:1]
    return values


def expand(values: Array, count: int) -> Array:
    """Inverse of `collapse`; a read-only view where one value stands for all."""
    if len(values) == count:
        return values
    if len(values) == 0:
        return np.broadcast_to(np.zeros((), dtype=values.dtype), (count,))
    return np.broadcast_to(values[0], (count,))


def encode_parent(span_id: U64s, parent: U64s) -> I64s:
    """Distance to the parent, 0 for none; a bijection for every pair of ids."""
    distance: U64s = (span_id - parent) * (parent != 0)
    own = (parent == span_id) & (parent != 0)
    if own.any():
        distance[own] = span_id[own]
    return distance.view(np.int64)


def decode_parent(span_id: U64s, distance: Array) -> U64s:
    """Inverse of `encode_parent`."""
    bits = distance.view(U64)
    parent: U64s = (span_id - bits) * (bits != 0)
    own = (parent == 0) & (bits != 0)
    if own.any():
        parent = np.where(own, span_id, parent)
    return parent


def encode_starts(start: I64s, duration: I64s, from_end: Array) -> I64s:
    """Differences to the start of the span before, or where `from_end` to its end."""
    out = delta(start)
    out[1:] -= duration[:-1] * from_end[1:]
    return out


def decode_starts(deltas: Array, duration: Array, from_end: Array, count: int) -> I64s:
    """Inverse of `encode_starts`; a column of 0, 1 or `count` differences."""
    steps = expand(deltas, count).view(U64)
    if not from_end.any() or count < 2:
        return np.cumsum(steps, dtype=U64).view(np.int64)
    steps = steps.copy()
    steps[1:] += duration[:-1].view(U64) * from_end[1:].astype(U64)
    return np.cumsum(steps, dtype=U64).view(np.int64)


def split_low_bits(values: I64s) -> tuple[I64s, bytes]:
    """Values shifted right by 8 bits, and those bits; or the values and b"" if that is better.

    Low bits that are noise cost the same anywhere, but spoil the compression of what
    they are mixed with.
    """
    low = values.astype(np.uint8)
    if len(low) < 16:
        return values, b""
    share = np.bincount(low[:: 1 + len(low) // 8192], minlength=256) / len(
        low[:: 1 + len(low) // 8192]
    )
    share = share[share > 0]
    entropy = -(share * np.log2(share)).sum()
    if entropy < _NOISE_BITS:
        return values, b""
    return values >> 8, low.tobytes()


def join_low_bits(name: str, values: Array, low: bytes, count: int) -> I64s:
    """Inverse of `split_low_bits`, for a column of 0, 1 or `count` values; shape (count,)."""
    values = expand(values, count)
    if not low:
        return values
    if len(low) != count:
        raise WireError("malformed", f"column {name} has {len(low)} values for {count} rows")
    return (values << 8) | np.frombuffer(low, dtype=np.uint8)


def encode_sparse(index: I64s) -> U64s:
    """0 where the index is -1, else 1 + zigzag of the difference to the index before."""
    there = index >= 0
    step = delta(index[there])
    out = np.zeros(len(index), dtype=U64)
    out[there] = ((step << 1) ^ (step >> 63)).view(U64) + U64(1)
    return out


def decode_sparse(codes: Array, count: int) -> I64s:
    """Inverse of `encode_sparse`, plus 1: 0 is none. Codes have 32 bits."""
    codes = expand(codes, count)
    if is_constant(codes) and (count == 0 or codes[0] == 0):
        return np.broadcast_to(np.int64(0), (count,))
    there = codes != 0
    zigzag = codes[there].astype(np.int64) - 1
    out = np.zeros(count, dtype=np.int64)
    out[there] = np.cumsum((zigzag >> 1) ^ -(zigzag & 1)) + 1
    return out


def plus_1(name: str, values: Array) -> U64s:
    """Values from -1 (none) up, as they go on the wire. Raises WireError below -1."""
    if len(values) and values.min() < -1:
        raise WireError("malformed", f"{name} {values.min()}: only -1 (none) and up can be sent")
    return values.astype(np.int64).view(U64) + U64(1)


def distinct(columns: Sequence[Array], count: int) -> tuple[npt.NDArray[np.int32], I64s]:
    """Number the distinct rows of integer columns, in order of first appearance.

    Returns each row's number, shape (count,), and where each distinct row appears first.
    Rows are told apart by a hash and then compared, so the answer is exact.
    """
    varying = [values for values in columns if not is_constant(values)]
    if not varying or count == 0:
        return np.zeros(count, dtype=np.int32), np.zeros(min(count, 1), dtype=np.int64)
    for attempt in range(4):
        index, first = _number(_row_hash(varying, attempt))
        if all((values.take(first).take(index) == values).all() for values in varying):
            return index, first
    return _sorted_distinct(varying)


def _row_hash(columns: Sequence[Array], attempt: int) -> U64s:
    total: U64s = np.zeros(len(columns[0]), dtype=U64)
    for i, values in enumerate(columns):
        total += values.astype(U64) * _MULTIPLIERS[(attempt * 61 + i) % len(_MULTIPLIERS)]
    # A hash table looks at low bits, into which a product never carries high ones.
    return total ^ (total >> U64(29))


def _number(values: Array) -> tuple[npt.NDArray[np.int32], I64s]:
    coded = pa.array(values).dictionary_encode()
    index = coded.indices.to_numpy()
    first = np.empty(len(coded.dictionary), dtype=np.int64)
    # Of repeated positions the last one written stays: the first row of each.
    first[index[::-1]] = np.arange(len(index) - 1, -1, -1)
    return index, first


def _sorted_distinct(columns: Sequence[Array]) -> tuple[npt.NDArray[np.int32], I64s]:
    table = np.stack([values.astype(U64) for values in columns], axis=1)
    _, where, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    by_place = np.argsort(where)
    rank = np.empty(len(where), dtype=np.int32)
    rank[by_place] = np.arange(len(where))
    return rank[inverse.ravel()], where[by_place]


def check_length(name: str, length: int, count: int) -> None:
    """A column holds 0, 1 or `count` values."""
    if length not in (0, 1, count):
        raise WireError("malformed", f"column {name} has {length} values for {count} rows")


def check_below(name: str, values: Array, limit: int) -> None:
    """Every value is at least 0 and below `limit`."""
    if not len(values):
        return
    if values.strides == (0,):
        values = values[:1]
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= limit:
        bad = low if low < 0 else high
        raise WireError("malformed", f"column {name} holds {bad}; it must be below {limit}")
