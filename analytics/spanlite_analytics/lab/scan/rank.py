"""Ranks configurations by time; those within noise of each other share a rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: From the median absolute deviation of a normal distribution to its standard deviation.
_FROM_MAD = 1.4826
#: The median of n normal values spreads this much wider than their mean.
_OF_MEDIAN = 1.2533
#: Standard errors of a difference that noise alone rarely makes (one time in twenty).
_SIGMAS = 2.0
#: Two runs of one kernel differ by about this even where each is quiet.
FLOOR = 0.002


@dataclass(frozen=True, slots=True)
class Timed:
    """A configuration's median and the standard error of that, ns."""

    median_ns: float
    error_ns: float


def timed(times_ns: Sequence[float], floor: float = FLOOR) -> Timed:
    """The median of repetitions and how far noise may have moved it."""
    values = np.asarray(times_ns, np.float64)
    median = float(np.median(values))
    deviation = _FROM_MAD * float(np.median(np.abs(values - median)))
    error = _OF_MEDIAN * deviation / math.sqrt(len(values))
    return Timed(median, math.hypot(error, floor * median))


def within_noise(one: Timed, other: Timed) -> bool:
    """Whether noise alone may explain their difference."""
    error = math.hypot(one.error_ns, other.error_ns)
    return abs(one.median_ns - other.median_ns) <= _SIGMAS * error


def ranks(found: Sequence[Timed]) -> list[int]:
    """1 for the fastest and all within noise of it; the next that is not starts a rank.

    A rank's number is one more than how many are faster, as in sport. Shape of `found`.
    """
    order = sorted(range(len(found)), key=lambda i: found[i].median_ns)
    result = [0] * len(found)
    leader, rank = -1, 1
    for place, index in enumerate(order):
        if leader < 0 or not within_noise(found[leader], found[index]):
            leader, rank = index, place + 1
        result[index] = rank
    return result
