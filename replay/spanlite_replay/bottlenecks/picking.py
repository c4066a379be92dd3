"""Which windows of one recording are slow: those that stand out, else those after a change."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from spanlite_replay.bottlenecks.compared import FEWEST
from spanlite_replay.bottlenecks.recorded import BOOL
from spanlite_replay.bottlenecks.report import Analysis

#: A slow window takes this much longer than the usual ones, and stands out of their spread. The
#: spread is that of the faster half. Where nothing is slow that is half of one normal
#: distribution: its deviation (1.4826 MAD) is 0.59 sigma and its middle lies 0.67 sigma below the
#: mean, so that eight of them reach four sigma above the mean.
SLOWER, SPREADS = 1.15, 8.0
#: Deviations of the rank sum at which one moment parts the windows. By chance the best of all
#: moments reaches it in 0.3 % of recordings of 20 windows, 1 % of 50, 5 % of 1,000; the lengths of
#: both sides must then differ as well before there is a cause.
CHANGED = 3.2

F64 = npt.NDArray[np.float64]


def pick_slow(analysis: Analysis) -> tuple[BOOL, BOOL]:
    """(usual, slow) windows of one recording; the first of each thread is warm-up, in neither.

    Where one moment parts them into usual and slower ones, that is the comparison; else slow are
    those that stand out by their length. A change is looked for in the device's work too: the
    noise of the host hides many a change from the lengths, but not from what the device did.
    """
    warm, lengths = _warm(analysis), _lengths(analysis)
    if warm.sum() <= FEWEST:
        return warm, np.zeros(len(warm), np.bool_)
    slow = warm & (lengths > _limit(lengths[warm]))
    after = _after_change(analysis, warm, lengths)
    if after is None:
        return warm & ~slow, slow
    before = warm & ~after
    much = lengths[after].mean() > SLOWER * lengths[before].mean()
    return (before, after) if much or slow.sum() < FEWEST else (warm & ~slow, slow)


def _after_change(analysis: Analysis, warm: BOOL, lengths: F64) -> BOOL | None:
    """The slower side of the moment at which something changed; None where nothing did."""
    start_ns = analysis.rec.windows.start_ns
    order = np.flatnonzero(warm)[np.argsort(start_ns[warm], kind="stable")]
    # Of both the one that tells more.
    found = [_change(measure[order]) for measure in (_device_work(analysis), lengths)]
    place, _ = max(found, key=lambda one: one[1])
    if not place:
        return None
    sides = (order[:place], order[place:])
    after = np.zeros(len(warm), np.bool_)
    after[max(sides, key=lambda side: float(lengths[side].mean()))] = True
    return after


def _lengths(analysis: Analysis) -> F64:
    """Of each window, in ns."""
    stretches = analysis.stretches
    count = len(analysis.rec.windows)
    return np.bincount(stretches.window, weights=stretches.ns, minlength=count).astype(np.float64)


def _warm(analysis: Analysis) -> BOOL:
    """All but the first window of each thread."""
    windows = analysis.rec.windows
    warm = np.ones(len(windows), np.bool_)
    for thread in np.unique(windows.thread):
        mine = np.flatnonzero(windows.thread == thread)
        warm[mine[np.argmin(windows.start_ns[mine])]] = False
    return warm


def _limit(lengths: F64) -> float:
    """What is longer stands out."""
    ordered = np.sort(lengths)
    fast = ordered[: (len(ordered) + 1) // 2]
    middle = float(np.median(fast))
    spread = 1.4826 * float(np.median(np.abs(fast - middle)))
    return max(SLOWER * middle, middle + SPREADS * spread)


def _device_work(analysis: Analysis) -> F64:
    """Summed time of the device's work of each window, in ns."""
    rec = analysis.rec
    device = np.flatnonzero(rec.is_device & (rec.window >= 0))
    took = (rec.end - rec.start)[device].astype(np.float64)
    return np.bincount(rec.window[device], took, len(rec.windows)).astype(np.float64)


def _change(values: F64) -> tuple[int, float]:
    """Where one moment parts values in order of time: (the first place after it, 0 for nowhere;
    deviations).

    The rank-sum test at each place that leaves enough on both sides; the strongest counts.
    """
    count = len(values)
    before = np.arange(FEWEST, count - FEWEST + 1)
    if not len(before):
        return 0, 0.0
    ranks = np.empty(count)
    ranks[np.argsort(values, kind="stable")] = np.arange(1, count + 1)
    off = np.cumsum(ranks)[before - 1] - before * (count + 1) / 2
    deviations = np.abs(off) / np.sqrt(before * (count - before) * (count + 1) / 12)
    best = int(deviations.argmax())
    parted = not math.isclose(float(values.min()), float(values.max()))
    changed = parted and deviations[best] >= CHANGED
    return (int(before[best]), float(deviations[best])) if changed else (0, 0.0)
