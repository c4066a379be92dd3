"""What each transform promises, for any input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite.errors import UsageError
from spanlite_replay import transforms as tf

times = st.lists(st.integers(0, 10**13), min_size=1, max_size=40).map(
    lambda v: np.array(sorted(v), dtype=np.int64)
)
dense = st.lists(st.integers(0, 3_000), min_size=1, max_size=50).map(
    lambda v: np.array(sorted(v), dtype=np.int64) * 1_000_000
)
ratios = st.fractions(Fraction(1, 1000), 1000, max_denominator=1000)
rates = st.fractions(Fraction(1, 3), 40, max_denominator=7)
bursts = st.integers(1, 9)


def most_in_any_window(moments: Sequence[int], window_ns: int) -> int:
    """By counting: how many lie in the fullest half-open window."""
    return max(sum(start <= m < start + window_ns for m in moments) for start in moments)


@given(times, ratios)
def test_speed_is_the_exact_quotient(offset: np.ndarray, speed: Fraction) -> None:
    expected = [math.floor(value / speed) for value in offset.tolist()]
    assert tf.change_speed(offset, speed).tolist() == expected


@given(times, st.integers(1, 1000))
def test_slowing_down_is_undone_by_speeding_up(offset: np.ndarray, factor: int) -> None:
    slow = tf.change_speed(offset, Fraction(1, factor))
    assert tf.change_speed(slow, Fraction(factor)).tolist() == offset.tolist()


def test_speed_two_is_faster() -> None:
    assert tf.change_speed(np.array([0, 10, 21]), Fraction(2)).tolist() == [0, 5, 10]


def test_a_speed_beyond_64_bits_is_refused() -> None:
    with pytest.raises(UsageError, match="146 years"):
        tf.change_speed(np.array([10**15]), Fraction(1, 10**6))


@given(times, st.lists(st.integers(0, 10**9), min_size=40, max_size=40), st.integers(0, 10**10))
def test_gap_cap(start: np.ndarray, lengths: list[int], cap: int) -> None:
    end = start + np.array(lengths[: len(start)])
    removed = tf.cap_gaps(start, end, cap)
    new_start, new_end = start - removed, end - removed
    assert removed[0] == 0 and (np.diff(removed) >= 0).all()
    assert (np.diff(new_start) >= 0).all()
    idle = np.maximum(start[1:] - np.maximum.accumulate(end)[:-1], 0)
    new_idle = np.maximum(new_start[1:] - np.maximum.accumulate(new_end)[:-1], 0)
    assert new_idle.tolist() == np.minimum(idle, cap).tolist()
    # What overlaps stays as it was.
    busy = idle == 0
    assert (np.diff(new_start)[busy] == np.diff(start)[busy]).all()


@given(dense, rates, bursts)
def test_delay_keeps_the_rate_and_every_arrival(
    arrival: np.ndarray, qps: Fraction, burst: int
) -> None:
    window = tf.rate_window(qps, burst)
    due = tf.delay(arrival, burst, window)
    assert len(due) == len(arrival)
    assert (due >= arrival).all() and (np.diff(due) >= 0).all()
    assert most_in_any_window(due.tolist(), math.floor(window)) <= burst
    if burst == 1:
        assert most_in_any_window(due.tolist(), tf.NS_PER_SECOND) <= math.ceil(qps)


@given(dense, rates, bursts)
def test_delay_is_no_longer_than_needed(arrival: np.ndarray, qps: Fraction, burst: int) -> None:
    window = tf.rate_window(qps, burst)
    due = tf.delay(arrival, burst, window)
    for i, moment in enumerate(due.tolist()):
        free = i < burst or due[i - burst] + math.floor(window) - 1 < moment
        assert free
        earliest = (
            int(arrival[i])
            if i < burst
            else max(int(arrival[i]), int(due[i - burst]) + math.floor(window))
        )
        assert moment - earliest in (0, 1)


def test_delay_does_not_drift() -> None:
    # A third of a second is no whole number of ns; after 30,000 arrivals nothing has added up.
    due = tf.delay(np.zeros(30_001, dtype=np.int64), 1, tf.rate_window(Fraction(3), 1))
    assert due[-1] == 10_000 * tf.NS_PER_SECOND


@given(dense, rates, bursts)
def test_drop_takes_whatever_fits(arrival: np.ndarray, qps: Fraction, burst: int) -> None:
    window_ns = math.ceil(tf.rate_window(qps, burst))
    keep = tf.drop(arrival, burst, tf.rate_window(qps, burst))
    kept: list[int] = []
    for moment, taken in zip(arrival.tolist(), keep.tolist(), strict=True):
        fits = sum(moment - window_ns < other for other in kept) < burst
        assert taken == fits
        if taken:
            kept.append(moment)
    assert most_in_any_window(kept, window_ns) <= burst


@given(dense, rates, bursts, st.integers(0, 2**32))
def test_thin_keeps_the_largest_random_share_that_fits(
    arrival: np.ndarray, qps: Fraction, burst: int, seed: int
) -> None:
    ids = np.arange(len(arrival), dtype=np.uint64)
    rank = tf.seeded_rank(ids, ids, seed)
    window = tf.rate_window(qps, burst)
    keep = tf.thin(arrival, rank, burst, window)
    window_ns = math.ceil(window)
    assert most_in_any_window(arrival[keep].tolist(), window_ns) <= burst
    assert not keep.all() or not tf.exceeds(arrival, burst, window_ns)
    if not keep.all():
        assert rank[keep].max() < rank[~keep].min()
        one_more = keep | (rank == rank[~keep].min())
        assert most_in_any_window(arrival[one_more].tolist(), window_ns) > burst


@given(st.fractions(Fraction(1, 100), 1, max_denominator=100), st.integers(-5, 2**70))
def test_a_smaller_sample_is_a_subset(share: Fraction, seed: int) -> None:
    low = np.arange(500, dtype=np.uint64)
    high = np.zeros(500, dtype=np.uint64)
    large = tf.sample_traces(low, high, share, seed)
    small = tf.sample_traces(low, high, share / 2, seed)
    assert not (small & ~large).any()


def test_sample_is_fair_and_follows_the_seed() -> None:
    low = np.arange(100_000, dtype=np.uint64)
    high = np.zeros_like(low)
    one, two = (tf.sample_traces(low, high, Fraction(1, 4), seed) for seed in (1, 2))
    # Five standard deviations of a fair draw.
    assert abs(one.sum() - 25_000) < 700
    assert abs((one & two).sum() - 6_250) < 400


@pytest.mark.parametrize("text", ["0", "-1", "fast", "1/0", "1e12", "0.1234567891"])
def test_bad_ratios(text: str) -> None:
    with pytest.raises(UsageError, match="--speed"):
        tf.check_ratio("--speed", text)


@pytest.mark.parametrize(
    ("text", "value"), [("2", 2), ("0.1", Fraction(1, 10)), ("1/3", Fraction(1, 3))]
)
def test_ratios_are_exact(text: str, value: Fraction) -> None:
    assert tf.check_ratio("--speed", text) == value


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60), st.integers(1, 10**11))
def test_smooth_spaces_evenly_and_keeps_the_count_of_each_window(
    times: list[int], window_ns: int
) -> None:
    before = 1_700_000_000_000_000_000 + np.sort(np.array(times, dtype=np.int64))
    after = tf.smooth(before, window_ns)
    assert after[0] == before[0] and (np.diff(after) >= 0).all()
    window = (before - before[0]) // window_ns
    assert ((after - before[0]) // window_ns == window).all()
    assert (np.abs(after - before) < window_ns).all()
    for number in np.unique(window):
        gaps = np.diff(after[window == number])
        assert not len(gaps) or gaps.max() - gaps.min() <= 1
