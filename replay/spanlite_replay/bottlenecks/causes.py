"""What made slow windows slow: two groups of windows compared, causes ranked by the time they
explain. Where nothing differs by more than chance, there is no cause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from spanlite.kinds import SpanKind

from spanlite_replay.bottlenecks.compared import Comparison
from spanlite_replay.bottlenecks.recorded import ancestor
from spanlite_replay.bottlenecks.report import Analysis
from spanlite_replay.bottlenecks.rules import RULES, TITLES

#: A cause explains at least this share of the difference, and of a usual window.
SHARE_OF_DIFFERENCE, SHARE_OF_WINDOW = 0.15, 0.02
#: A request this many times the median, among at least so many.
LONG_TAIL, FEWEST_REQUESTS = 3.0, 4
#: and of the next longest: lengths of requests have a tail by nature, an outlier stands alone.
STANDS_ALONE = 2.0


@dataclass(frozen=True)
class Cause:
    """One cause, the time that it explains, and what speaks for it."""

    name: str
    title: str
    explained_ns: float  # of all slow windows
    share: float  # of the difference between slow and usual windows
    evidence: list[str]


def find_long_tail(analysis: Analysis) -> list[Cause]:
    """A request that takes several times as long as the others, with as many more steps."""
    rec, windows = analysis.rec, analysis.rec.windows
    request = np.flatnonzero(rec.kind == SpanKind.REQUEST)
    if windows.unit != "step" or len(request) < FEWEST_REQUESTS:
        return []
    place = np.full(len(rec.start), -1, np.int64)
    place[request] = np.arange(len(request))
    source, goal = rec.work.link_from, rec.work.link_to
    linked = np.isin(source, windows.span) & (place[goal] >= 0)
    within = ancestor(rec.parent, rec.kind == SpanKind.REQUEST, rec.parent[windows.span])
    served = np.concatenate((place[goal[linked]], place[within[within >= 0]]))
    steps = np.bincount(served, minlength=len(request)).astype(np.float64)
    took = (rec.end - rec.start)[request].astype(np.float64)
    usual, usual_steps = float(np.median(took)), float(np.median(steps))
    worst = int(took.argmax())
    if took[worst] < LONG_TAIL * usual or steps[worst] < LONG_TAIL * max(usual_steps, 1):
        return []
    if took[worst] < STANDS_ALONE * np.sort(took)[-2]:
        return []
    name = rec.names[int(rec.name[request[worst]])]
    said = (
        f"{name}: {took[worst] / 1e6:,.1f} ms and {steps[worst]:,.0f} steps; the median of "
        f"{len(request):,} requests {usual / 1e6:,.1f} ms and {usual_steps:,.0f}"
    )
    title = TITLES["long_tail_request"]
    return [Cause("long_tail_request", title, float(took[worst] - usual), 1.0, [said])]


def find_causes(comparison: Comparison) -> list[Cause]:
    """Causes, the one that explains most first; none where the groups do not differ."""
    if not comparison.is_significant:
        return []
    difference = comparison.difference_ns
    floor = max(SHARE_OF_DIFFERENCE * difference, SHARE_OF_WINDOW * comparison.usual.length_ns)
    found: dict[str, Cause] = {}
    for rule in RULES:
        for name, explained, evidence in rule(comparison):
            excluded = _EXCLUDES.get(name, ())
            if explained < floor or any(other in found for other in excluded):
                continue
            share = min(explained / difference, 1.0)
            total = share * difference * comparison.slow.windows
            if name not in found or total > found[name].explained_ns:
                found[name] = Cause(name, TITLES[name], total, share, evidence)
    return sorted(found.values(), key=lambda cause: -cause.explained_ns)


#: A cause that another one already explains is not named beside it.
_EXCLUDES = {
    "more_work": ("fragmented_batch",),
    "stray_sync": ("fragmented_batch",),
    "serialised_streams": ("stray_sync",),
    "launch_starvation": ("fragmented_batch", "stray_sync", "serialised_streams"),
    "more_launches": ("fragmented_batch", "stray_sync", "serialised_streams"),
    "clock_throttled": ("fragmented_batch",),
    "slow_kernel": ("fragmented_batch",),
    "gemm_regression": ("fragmented_batch",),
}
