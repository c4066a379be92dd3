"""Who knows of whose work: vector clocks of a block's warps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spanlite_analytics.lab.audit.values import Ints, Mask


class Clocks:
    """`seen[a, b]`: up to which of b's times warp a is ordered behind it."""

    def __init__(self, warps: int) -> None:
        self.now: NDArray[np.int64] = np.ones(warps, np.int64)
        self.seen: NDArray[np.int64] = np.zeros((warps, warps), np.int64)

    def meet(self, warps: Mask) -> None:
        """Warps meet at a barrier: each is now ordered behind all that the others did."""
        at = np.flatnonzero(warps)
        self.seen[at, at] = self.now[at]
        self.seen[at] = self.seen[at].max(axis=0)
        self.now[at] += 1

    def meet_within(self, warps: Mask) -> None:
        """The lanes of each of these warps meet."""
        at = np.flatnonzero(warps)
        self.seen[at, at] = self.now[at]
        self.now[at] += 1

    def ordered(self, warp: Ints, other: Ints, time: Ints) -> Mask:
        """Whether what `other` did at `time` is ordered before what `warp` does now."""
        return np.asarray(self.seen[warp, other] >= time)
