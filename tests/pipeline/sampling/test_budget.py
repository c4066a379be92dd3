"""Token buckets and their bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from spanlite_pipeline.sampling import Budget
from spanlite_pipeline.sampling.budget import MIN_SHARE, MINUTES

SECOND = 1_000_000_000


def test_starts_full_and_refills() -> None:
    budget = Budget(2)  # half of each rate
    assert budget.admit("l", rate=100, burst=200, offered=100, now_ns=0) == 1.0
    assert budget.admit("l", rate=100, burst=200, offered=100, now_ns=SECOND) == 0.5
    assert budget.admit("l", rate=100, burst=200, offered=10, now_ns=SECOND) == MIN_SHARE
    assert budget.admit("l", rate=100, burst=200, offered=1000, now_ns=99 * SECOND) == 0.1


def test_time_running_backwards_refills_nothing() -> None:
    budget = Budget(1)
    budget.admit("l", rate=10, burst=10, offered=10, now_ns=5 * SECOND)
    assert budget.admit("l", rate=10, burst=10, offered=10, now_ns=SECOND) == MIN_SHARE
    assert budget.admit("l", rate=10, burst=10, offered=10, now_ns=6 * SECOND) == 1.0


@given(
    st.integers(1, 4096),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**6), st.integers(0, 10**10))),
    st.lists(st.tuples(st.integers(-(2**40), 2**40), st.text(), st.integers(1, 5))),
)
def test_bytes_round_trip(
    buckets: int, asked: list[tuple[str, int, int]], counted: list[tuple[int, str, int]]
) -> None:
    budget = Budget(buckets)
    for name, offered, now_ns in asked:
        budget.admit(name, 1000, 2000, offered, now_ns)
    for minute, name, times in counted:
        budget.count(minute, name, times)
    again = Budget.from_bytes(budget.to_bytes())
    assert again.to_bytes() == budget.to_bytes()
    for minute, name, _ in counted:
        assert again.seen(minute, name) == budget.seen(minute, name)
    assert again.admit("a", 1000, 2000, 77, 10**11) == budget.admit("a", 1000, 2000, 77, 10**11)


def test_only_the_last_minutes_are_kept() -> None:
    budget = Budget(1)
    for minute in range(100):
        budget.count(minute, "a", 1)
        budget.count(0, "a", 1)  # a host whose clock is behind keeps its own minute
    assert budget.seen(0, "a") == 101
    assert budget.seen(99, "a") == 1 and budget.seen(99 - MINUTES, "a") == 0
