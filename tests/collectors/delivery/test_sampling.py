"""Head sampling: whole traces, the same on every host, at the asked rate."""

from __future__ import annotations

import numpy as np
import pytest
from spanlite.bucket import bucket_of, trace_hash
from spanlite_collectors.delivery import head_keep

RNG = np.random.default_rng(7)
LOW = RNG.integers(0, 1 << 63, 200_000).astype(np.uint64)
HASHES = trace_hash(LOW, np.zeros_like(LOW))


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.9])
def test_the_share_is_as_asked(probability: float) -> None:
    kept = head_keep(HASHES, probability).mean()
    five_sigma = 5 * np.sqrt(probability * (1 - probability) / len(HASHES))
    assert abs(kept - probability) < five_sigma


def test_all_and_nearly_all() -> None:
    assert head_keep(HASHES, 1.0).all()
    assert head_keep(HASHES, np.nextafter(1.0, 0.0)).all()


def test_a_lower_rate_keeps_a_subset() -> None:
    assert not (head_keep(HASHES, 0.1) & ~head_keep(HASHES, 0.3)).any()


def test_it_does_not_favour_buckets() -> None:
    kept = bucket_of(LOW, np.zeros_like(LOW))[head_keep(HASHES, 0.1)]
    counts = np.bincount(kept, minlength=64)
    expected = len(kept) / 64
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected)).all()
