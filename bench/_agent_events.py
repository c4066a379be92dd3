"""What a window costs, read from one process's step times alone: an event study.

A window's steps, and some after it, are held against the steps before and after it, which no
window touched; so what two processes differ by, and what drifts over seconds, plays no part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench._agent_turns import I64

F64 = npt.NDArray[np.float64]
#: The parts of a window's cost, in the order of the columns of `Study.costs`.
PARTS = ("open", "inside", "close", "after")
#: Steps after the one that closes that may still be slower: caches and clocks settle.
AFTER = 30
#: Steps on each side of a window, untouched by any, that it is compared with; and at least so many.
NEAR, FEWEST = 30, 8
RESAMPLES = 1000


@dataclass(frozen=True)
class Study:
    """Windows of one load. All times in ns."""

    #: [windows, parts]: what the steps of each part took longer than those around the window.
    costs: F64
    #: [windows]: a step around the window.
    usual: F64
    #: [windows]: whole steps, those that open and close it too.
    steps: I64
    #: Steps of windows and of their aftermath, and steps that no window touched.
    touched: I64
    calm: I64
    #: [windows, places]: by how much each touched step exceeds the middle one around the window, by
    #: its place in the window; NaN past its end.
    excess: F64
    #: Which part each place belongs to.
    part_of: I64

    @property
    def whole(self) -> F64:
        """[windows]: what each window cost."""
        return np.asarray(self.costs.sum(axis=1))


def study(edges: I64, opened_ns: I64, closed_ns: I64) -> Study:
    """Costs of the windows that opened and closed at these host times, among the steps that lie
    between the edges (host times too, one more than steps).

    A window too near the ends, or to another one, to be compared is left out. Raises ValueError
    where none is left.
    """
    took = np.diff(edges).astype(np.float64)
    first = np.searchsorted(edges, opened_ns, side="right") - 1
    last = np.searchsorted(edges, closed_ns, side="right") - 1
    inside = (first >= 0) & (last + AFTER < len(took))
    first, last = first[inside], last[inside]
    touched = np.zeros(len(took), bool)
    for begin, end in zip(first, last, strict=True):
        touched[begin : end + 1 + AFTER] = True
    calm = np.flatnonzero(~touched)
    found = []
    for begin, end in zip(first, last, strict=True):
        before, after = calm[calm < begin][-NEAR:], calm[calm > end][:NEAR]
        if min(len(before), len(after)) >= FEWEST:
            found.append((begin, end, took[np.concatenate([before, after])]))
    if not found:
        raise ValueError("no window lies between enough steps that none touched")
    return _study(took, found, took[touched], took[calm])


def _study(took: F64, found: list[tuple[int, int, F64]], touched: F64, calm: F64) -> Study:
    inner = max(end - begin - 1 for begin, end, _ in found)
    part_of = np.repeat(np.arange(4), [1, max(inner, 0), 1, AFTER])
    excess = np.full((len(found), len(part_of)), np.nan)
    usual = np.array([near.mean() for *_, near in found])
    for row, (begin, end, _) in enumerate(found):
        more = took[begin : end + 1 + AFTER] - usual[row]
        excess[row, 0] = more[0]
        excess[row, 1 : max(1, end - begin)] = more[1 : max(1, end - begin)]
        if end > begin:  # else one step both opens and closes it
            excess[row, -AFTER - 1] = more[end - begin]
        excess[row, -AFTER:] = more[-AFTER:]
    costs = np.stack([np.nansum(excess[:, part_of == part], axis=1) for part in range(4)], axis=1)
    steps = np.array([end - begin + 1 for begin, end, _ in found], np.int64)
    # The middle step is shorter than the mean one, which a median of excesses would be off by.
    lean = float(np.median(np.concatenate([near - near.mean() for *_, near in found])))
    return Study(costs, usual, steps, touched.astype(np.int64), calm.astype(np.int64),
                 excess - lean, part_of)  # fmt: skip


def typical(found: Study, windows: I64 | None = None) -> F64:
    """[parts]: what a window costs where each step counts by the median over windows, so that
    a neighbour's noise in some of them does not; what happens in few windows does not, either."""
    excess = found.excess if windows is None else found.excess[windows]
    reached = ~np.isnan(excess).all(axis=0)
    middle = np.nanmedian(excess[:, reached], axis=0)
    return np.bincount(found.part_of[reached], middle, len(PARTS)).astype(np.float64)


def typical_interval(found: Study) -> list[float]:
    """95 % bootstrap interval over windows of the sum of `typical`, in us."""
    random, count = np.random.default_rng(7), len(found.usual)
    sums = [typical(found, random.integers(count, size=count)).sum() for _ in range(RESAMPLES // 4)]
    return [round(float(edge) / 1e3, 1) for edge in np.percentile(sums, [2.5, 97.5])]


def ratio_interval(costs: F64, against: F64 | float, scale: float) -> list[float]:
    """95 % bootstrap interval over windows of the costs' sum over that of `against`."""
    against = np.broadcast_to(np.asarray(against, np.float64), costs.shape)
    draws = np.random.default_rng(7).integers(len(costs), size=(RESAMPLES, len(costs)))
    ratios = costs[draws].sum(axis=1) / against[draws].sum(axis=1) * scale
    return [round(float(edge), 3) for edge in np.percentile(ratios, [2.5, 97.5])]


def tail_cost_pct(calm: I64, touched: I64, share: float, quantile: float = 0.99) -> float:
    """How much larger a quantile of all step times is where that share of the steps is touched by
    windows, in per cent of the quantile of those that none touched."""
    values = np.concatenate([calm, touched])
    weights = np.repeat([(1 - share) / len(calm), share / len(touched)], [len(calm), len(touched)])
    order = np.argsort(values)
    at = int(np.searchsorted(np.cumsum(weights[order]), quantile))
    mixed = float(values[order][min(at, len(values) - 1)])
    quiet = float(np.quantile(calm, quantile, method="inverted_cdf"))
    return (mixed / quiet - 1) * 100


def tail_interval(found: Study, share: float) -> list[float]:
    """95 % bootstrap interval of `tail_cost_pct` over steps."""
    random, costs = np.random.default_rng(7), []
    for _ in range(RESAMPLES // 4):
        draws = [random.choice(steps, len(steps)) for steps in (found.calm, found.touched)]
        costs.append(tail_cost_pct(draws[0], draws[1], share))
    return [round(float(edge), 3) for edge in np.percentile(costs, [2.5, 97.5])]
