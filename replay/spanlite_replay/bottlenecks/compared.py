"""Slow windows against usual ones: how much more of what a slow one has."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spanlite_replay.bottlenecks.bounds import Bound, Reason
from spanlite_replay.bottlenecks.groups import Group

#: So many windows a comparison needs on each side.
FEWEST = 3
#: A slow window takes so much longer, or there is nothing to explain.
LEAST_DIFFERENCE = 0.04


@dataclass(frozen=True)
class Comparison:
    """Slow windows against usual ones."""

    usual: Group
    slow: Group
    #: What a window is: `step`, `request`, `process`.
    unit: str = "step"

    @property
    def difference_ns(self) -> float:
        """How much longer a slow window takes."""
        return self.slow.length_ns - self.usual.length_ns

    def more(self, *which: Bound | Reason) -> float:
        """How much more of some bounds or reasons a slow window has."""
        total = 0.0
        for one in which:
            table = "bound_ns" if isinstance(one, Bound) else "reason_ns"
            total += float(getattr(self.slow, table)[one] - getattr(self.usual, table)[one])
        return total

    @property
    def slower_kernels_ns(self) -> float:
        """How much more time a slow window takes in those kernels that take more."""
        a, b = self.usual.kernels, self.slow.kernels
        took = {name: a[name].times * a[name].mean_ns for name in a}
        return sum(max(b[n].times * b[n].mean_ns - took.get(n, 0.0), 0.0) for n in b)

    @property
    def is_significant(self) -> bool:
        """Enough windows, enough of a difference, and more than chance."""
        a, b = self.usual, self.slow
        if min(a.windows, b.windows) < FEWEST:
            return False
        error = math.sqrt(a.spread_ns**2 / a.windows + b.spread_ns**2 / b.windows)
        return self.difference_ns > max(3 * error, LEAST_DIFFERENCE * a.length_ns)
