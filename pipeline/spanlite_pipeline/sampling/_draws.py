"""Chance, made repeatable: one number in [0, 1) for each trace and salt.

The number comes from the trace id alone, so every host and every restart draws the same.
`trace_hash` is mixed again with the salt: a bucket holds one value of the hash's low bits,
and head sampling uses the hash too; neither may bias what is drawn here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from spanlite.bucket import trace_hash

Mask = npt.NDArray[np.bool_]
Share = npt.NDArray[np.float64]
#: More would make each decision slow; each random policy with a salt of its own doubles it.
MAX_CELLS = 4096


class Chance(Protocol):
    """Says which traces a random policy lets through."""

    def below(self, salt: str, threshold: float) -> Any:
        """Whether the draw under `salt` is below `threshold`: a mask (n,), or one bool for all."""
        ...


def salt_number(salt: str) -> np.uint64:
    """64 bits of a salt, the same everywhere."""
    return np.uint64(int.from_bytes(hashlib.blake2b(salt.encode(), digest_size=8).digest()))


def draw(hashes: npt.NDArray[np.uint64], salt: str) -> Share:
    """Uniform numbers in [0, 1) for trace hashes, shape (n,)."""
    x = trace_hash(hashes, salt_number(salt))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


class TraceDraws:
    """The draws of real traces."""

    def __init__(self, low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]) -> None:
        self._hashes = trace_hash(low, high)
        self._draws: dict[str, Share] = {}

    def below(self, salt: str, threshold: float) -> Mask:
        """See `Chance`."""
        if salt not in self._draws:
            self._draws[salt] = draw(self._hashes, salt)
        return self._draws[salt] < threshold


class Cell:
    """A part of all possible draws in which every policy's answer is the same."""

    def __init__(self, lower: Mapping[str, float], mass: float) -> None:
        self._lower = lower
        self.mass = mass

    def below(self, salt: str, threshold: float) -> bool:
        """See `Chance`."""
        return self._lower[salt] < threshold


def cells(thresholds: Mapping[str, Sequence[float]]) -> Iterator[Cell]:
    """All cells between the thresholds of each salt; their masses add up to 1."""
    axes = []
    for values in thresholds.values():
        edges = [0.0, *sorted({t for t in values if 0.0 < t < 1.0}), 1.0]
        axes.append([(a, b - a) for a, b in pairwise(edges)])
    for corner in product(*axes):
        mass = 1.0
        for _, width in corner:
            mass *= width
        yield Cell(dict(zip(thresholds, (low for low, _ in corner), strict=True)), mass)


def probability(
    answer: Callable[[Chance], Any], thresholds: Mapping[str, Sequence[float]], count: int
) -> Share:
    """How probable it was, before the draw, that `answer` is true for each trace, shape (n,)."""
    out = np.zeros(count)
    for cell in cells(thresholds):
        out += cell.mass * np.asarray(answer(cell), dtype=np.float64)
    return np.minimum(out, 1.0)


#: For policies that draw nothing.
NOTHING: Chance = Cell({}, 1.0)
