"""What replay does to time, one step a function, over numpy arrays of integer ns.

The order is fixed: window, sample whole traces, loop, gap cap, speed, shift, smooth, QPS.
Times go in and come out sorted; nothing here ever passes through a float.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from spanlite.bucket import trace_hash
from spanlite.errors import UsageError

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

NS_PER_SECOND = 1_000_000_000
#: Terms of a speed or a rate: below this, no step of the arithmetic leaves 64 bits.
MAX_TERM = 10**9


def check_ratio(what: str, text: str) -> Fraction:
    """A positive exact ratio such as `2`, `0.25` or `1/3`. Raises UsageError."""
    try:
        ratio = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"{what} '{text}' is not a number: write 2, 0.5 or 1/3") from None
    if ratio <= 0:
        raise UsageError(f"{what} {text} must be above 0")
    if max(ratio.numerator, ratio.denominator) > MAX_TERM:
        raise UsageError(f"{what} {text} needs more than nine digits: round it")
    return ratio


def sample_traces(low: U64, high: U64, share: Fraction, seed: int) -> Mask:
    """Which traces a sample keeps, shape (traces,): decided by id and seed alone.

    A smaller share with the same seed keeps a subset of what a larger one keeps.
    """
    if share >= 1:
        return np.ones(len(low), dtype=np.bool_)
    limit = share.numerator * 2**64 // share.denominator
    return seeded_rank(low, high, seed) < np.uint64(limit)


def seeded_rank(low: U64, high: U64, seed: int) -> U64:
    """A uniform 64-bit number for each trace, another one for each seed. Shape (traces,)."""
    # Hashed twice, so that it is independent of the bucket and of head sampling.
    return trace_hash(trace_hash(low, high), np.full(len(low), seed % 2**64, dtype=np.uint64))


def cap_gaps(start_ns: I64, end_ns: I64, max_gap_ns: int) -> I64:
    """How far each event moves earlier so that no idle stretch exceeds `max_gap_ns`.

    Idle is the time in which no event runs, so what overlaps stays as it was. `start_ns`
    is sorted; shapes are (n,), the result is non-decreasing.
    """
    removed = np.zeros(len(start_ns), dtype=np.int64)
    if len(start_ns) > 1:
        busy_until = np.maximum.accumulate(np.maximum(start_ns, end_ns))[:-1]
        idle = start_ns[1:] - busy_until
        np.cumsum(np.maximum(idle - min(max_gap_ns, 2**62), 0), out=removed[1:])
    return removed


def change_speed(offset_ns: I64, speed: Fraction) -> I64:
    """`floor(offset / speed)`, exact: speed 2 halves every offset. Shape (n,) -> (n,).

    Raises UsageError where a slow speed would leave the range of 64-bit nanoseconds.
    """
    num, den = speed.numerator, speed.denominator
    if num == den:
        return offset_ns
    if len(offset_ns) and int(np.abs(offset_ns).max()) * den // num >= 2**62:
        raise UsageError(f"speed {speed} stretches the window beyond 146 years: use a higher one")
    if den == 1:
        return offset_ns // num
    whole, rest = np.divmod(offset_ns, num)
    return whole * den + rest * den // num


def check_times(due_ns: I64, add_ns: int, what: str) -> None:
    """Raises UsageError where `due_ns + add_ns` leaves what 64 bits hold (1678 to 2262)."""
    if len(due_ns) and not (
        int(due_ns.min()) + add_ns >= -(2**63) and int(due_ns.max()) + add_ns < 2**63
    ):
        raise UsageError(f"{what} puts events beyond the years 1678 to 2262: choose another")


def smooth(arrival_ns: I64, window_ns: int) -> I64:
    """Arrivals evenly spaced within each window, as many in each as before; shape (n,), sorted.

    Windows count from the first arrival, which stays. No arrival moves by a window or more.
    """
    if not len(arrival_ns):
        return arrival_ns
    # The last window ends at most one length after the last arrival.
    check_times(arrival_ns[-1:], window_ns, f"--smooth over {window_ns:,} ns")
    origin = arrival_ns[0]
    window = (arrival_ns - origin) // window_ns
    _, first, count = np.unique(window, return_index=True, return_counts=True)
    each = np.repeat(count, count)
    place = np.arange(len(arrival_ns)) - np.repeat(first, count)
    # place * window_ns / each without leaving 64 bits: the whole part and the rest apart.
    whole, rest = np.divmod(window_ns, each)
    even: I64 = origin + window * window_ns + place * whole + place * rest // each
    return even


def rate_window(qps: Fraction, burst: int) -> Fraction:
    """Length in ns of the window in which at most `burst` arrivals may lie.

    Exact where arrivals are spaced one by one; rounded up to whole ns for bursts.
    """
    exact = NS_PER_SECOND * burst / qps
    return exact if burst == 1 else Fraction(math.ceil(exact))


def delay(arrival_ns: I64, burst: int, window: Fraction) -> I64:
    """Each arrival as soon as the rate allows, never before its time and in order.

    In the result no half-open window of `floor(window)` ns holds more than `burst`
    arrivals, and the long-run rate is exact. Shape (n,), sorted -> (n,), sorted.
    """
    count = len(arrival_ns)
    rows = -(-count // burst)
    if rows * window >= 2**61:
        raise UsageError("--qps is so low that the last arrival would lie 70 years ahead: raise it")
    # due[i] = max(arrival[i], due[i - burst] + window): a running maximum down each column.
    grid = np.full(rows * burst, np.iinfo(np.int64).max // 2, dtype=np.int64)
    grid[:count] = arrival_ns
    ramp = _multiples(rows, window)[:, None]
    due: I64 = np.maximum.accumulate(grid.reshape(rows, burst) - ramp, axis=0) + ramp
    return due.reshape(-1)[:count]


def _multiples(count: int, step: Fraction) -> I64:
    """`ceil(i * step)` for i from 0 to count - 1, exact."""
    index = np.arange(count, dtype=np.int64)
    whole, rest = divmod(step.numerator, step.denominator)
    return index * whole - (-index * rest) // step.denominator


def drop(arrival_ns: I64, burst: int, window: Fraction) -> Mask:
    """Which arrivals to keep: in order, each that the rate allows. Shape (n,), sorted."""
    keep = np.ones(len(arrival_ns), dtype=np.bool_)
    window_ns = math.ceil(window)
    if not exceeds(arrival_ns, burst, window_ns):
        return keep
    times = arrival_ns.tolist()
    recent = [times[0] - window_ns] * burst  # the last `burst` accepted, a ring
    at = 0
    for i, moment in enumerate(times):
        if moment - recent[at] >= window_ns:
            recent[at] = moment
            at = (at + 1) % burst
        else:
            keep[i] = False
    return keep


def thin(arrival_ns: I64, rank: U64, burst: int, window: Fraction) -> Mask:
    """Which arrivals to keep: one random share of all, the largest that the rate allows.

    `rank` orders them at random (`seeded_rank`). Peaks and valleys lose the same share, so
    the shape of the traffic stays. Shapes (n,), arrivals sorted.
    """
    window_ns = math.ceil(window)
    order = np.argsort(rank, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    good, bad = 0, len(order) + 1
    while bad - good > 1:  # a subset never holds more than its superset, so this bisects
        half = (good + bad) // 2
        if exceeds(arrival_ns[place < half], burst, window_ns):
            bad = half
        else:
            good = half
    return place < good


def exceeds(arrival_ns: I64, burst: int, window_ns: int) -> bool:
    """Whether some half-open window of `window_ns` holds more than `burst` arrivals."""
    return bool((arrival_ns[burst:] - arrival_ns[:-burst] < window_ns).any())
