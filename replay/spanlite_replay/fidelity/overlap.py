"""What ran at the same time as what, in the plan and in the replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spanlite_replay.fidelity.spans import I64, group_rows

#: Pairs compared on a device at most (500 MB); spans beyond that are counted in `cut`.
MOST_PAIRS = 20_000_000


@dataclass(frozen=True)
class StreamPair:
    """Overlap of two streams' spans. `iou` is None where nothing overlaps in either."""

    first: int
    second: int
    planned_ns: int
    observed_ns: int
    iou: float | None


@dataclass(frozen=True)
class Overlaps:
    """Pairs of rows that ran at once on different tracks of a device: `low` < `high`."""

    low: I64
    high: I64
    ns: I64
    #: Spans left out since too much ran at once.
    cut: int


def overlaps(track: I64, device: I64, start: I64, end: I64) -> Overlaps:
    """Every pair of spans of one device and different tracks that ran at once, and how long."""
    order = np.lexsort((start, device))
    starts = start[order]
    cut = 0
    parts = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for one in np.unique(device):
        rows = np.flatnonzero(device[order] == one)
        first = rows[0]
        until = first + np.searchsorted(starts[rows], end[order[rows]], side="left")
        count = np.maximum(until - rows - 1, 0)
        fits = np.cumsum(count) <= MOST_PAIRS
        rows, count = rows[fits], count[fits]
        cut += int((~fits).sum())
        left = np.repeat(rows, count)
        right = left + 1 + np.arange(len(left)) - np.repeat(np.cumsum(count) - count, count)
        parts.append((order[left], order[right]))
    a, b = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    apart = track[a] != track[b]
    a, b = a[apart], b[apart]
    shared = np.minimum(end[a], end[b]) - np.maximum(start[a], start[b])
    real = shared > 0
    low, high = np.minimum(a, b), np.maximum(a, b)
    return Overlaps(low[real], high[real], shared[real], cut)


def compare_overlap(
    track: I64, planned: Overlaps, observed: Overlaps, rows: int
) -> tuple[float | None, list[StreamPair]]:
    """(IoU of all overlap, one row a pair of tracks).

    Intersection over union of the overlap times, kernel pair by kernel pair: it asks whether
    the same kernels ran beside each other for as long, and no shift of the whole changes it.
    """
    key = np.concatenate((planned.low * rows + planned.high, observed.low * rows + observed.high))
    if not len(key):
        return None, []
    pair, first = group_rows(key)
    count = len(first)
    split = len(planned.low)
    was = np.bincount(pair[:split], weights=planned.ns, minlength=count)
    now = np.bincount(pair[split:], weights=observed.ns, minlength=count)
    one, other = track[key[first] // rows], track[key[first] % rows]
    one, other = np.minimum(one, other), np.maximum(one, other)
    streams, example = group_rows(one, other)
    both, either, planned_ns, observed_ns = (
        np.bincount(streams, weights=values).astype(np.int64)
        for values in (np.minimum(was, now), np.maximum(was, now), was, now)
    )
    pairs = [
        StreamPair(
            int(one[example[i]]),
            int(other[example[i]]),
            int(planned_ns[i]),
            int(observed_ns[i]),
            float(both[i] / either[i]) if either[i] else None,
        )
        for i in range(len(example))
    ]
    total = int(either.sum())
    return (float(both.sum() / total) if total else None), pairs
