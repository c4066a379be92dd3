"""The bucket function against an independent reference; its vectors are published."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite.bucket import bucket_of, check_bucket_count, trace_hash
from spanlite.errors import UsageError

MASK = (1 << 64) - 1
#: (low, high, hash, bucket of 64). Also in docs/wire.md: whoever ports the function
#: checks it against these.
VECTORS = [
    (0x0000000000000000, 0x0000000000000000, 0xB7F7AA78AC6B68B0, 48),
    (0x0000000000000001, 0x0000000000000000, 0x6313368C00BF464A, 10),
    (0x0000000000000000, 0x0000000000000001, 0xF799C2403D979E87, 7),
    (0x8000000000000000, 0x0000000000000000, 0x2EF216E81F6A4769, 41),
    (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0xBFFF52A5CF9F32A7, 39),
    (0x0123456789ABCDEF, 0x0000000000000000, 0x2F6B6446FF817A79, 57),
    (0xA3CE929D0E0E4736, 0x4BF92F3577B34DA6, 0x93FA854BA37401FF, 63),
]
U64 = st.integers(0, MASK) | st.sampled_from([0, 1, 1 << 63, MASK])


def reference(low: int, high: int) -> int:
    """In Python's unbounded integers, from docs/wire.md."""

    def mix(x: int) -> int:
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
        return x ^ x >> 31

    return mix(mix((low + 0x5350414E4C495445) & MASK) ^ high)


def signed(x: int) -> int:
    """The same bits as Java's long."""
    return x - (1 << 64) if x >> 63 else x


def reference_signed(low: int, high: int) -> int:
    """As Java computes it: long arithmetic that wraps, and `>>>`."""

    def shift(x: int, by: int) -> int:
        return signed((x & MASK) >> by)

    def times(x: int, y: int) -> int:
        return signed((x * signed(y)) & MASK)

    def mix(x: int) -> int:
        x = times(x ^ shift(x, 30), 0xBF58476D1CE4E5B9)
        x = times(x ^ shift(x, 27), 0x94D049BB133111EB)
        return x ^ shift(x, 31)

    return mix(mix(signed((signed(low) + 0x5350414E4C495445) & MASK)) ^ signed(high))


@pytest.mark.parametrize(("low", "high", "digest", "bucket"), VECTORS)
def test_vectors(low: int, high: int, digest: int, bucket: int) -> None:
    assert int(trace_hash([low], [high])[0]) == digest == reference(low, high)
    assert int(bucket_of([low], [high])[0]) == bucket == digest & 63


@given(U64, U64)
def test_agrees_with_both_references(low: int, high: int) -> None:
    digest = int(trace_hash(np.array([low], np.uint64), np.array([high], np.uint64))[0])
    assert digest == reference(low, high)
    assert signed(digest) == reference_signed(low, high)
    for count in (1, 2, 64, 4096):
        # Java: (int) (hash & (count - 1)), with no sign to care about.
        assert int(bucket_of([low], [high], count)[0]) == reference_signed(low, high) & count - 1


def test_fewer_buckets_merge_whole_buckets() -> None:
    low = np.arange(10_000, dtype=np.uint64)
    fine, coarse = bucket_of(low, low, 256), bucket_of(low, low, 16)
    assert (fine % 16 == coarse).all()


@pytest.mark.parametrize("ids", ["sequential", "high_half_only", "multiples"])
def test_shares_are_even_for_ids_that_are_not_random(ids: str) -> None:
    n = np.arange(64_000, dtype=np.uint64)
    zero = np.zeros_like(n)
    low, high = {
        "sequential": (n, zero),
        "high_half_only": (zero, n),
        "multiples": (n * np.uint64(1 << 20), zero),
    }[ids]
    counts = np.bincount(bucket_of(low, high), minlength=64)
    # 1,000 expected in each; six standard deviations.
    assert abs(counts - 1_000).max() < 190


@pytest.mark.parametrize("count", [0, -1, 3, 48, 8192])
def test_counts_that_are_no_power_of_two_are_refused(count: int) -> None:
    with pytest.raises(UsageError, match=str(count)):
        check_bucket_count(count)
