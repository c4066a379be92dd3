"""Order that the plan had and the replay must keep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spanlite_replay.fidelity.spans import I64

#: Two steps of the GPU's timer. A start this little before the end it waits for is no
#: violation: recordings of healthy GPUs have such.
TOLERANCE_NS = 64


@dataclass(frozen=True)
class Order:
    """Edges of one kind, and how many the replay broke."""

    edges: int
    violations: int


def stream_order(
    track: I64, planned_start: I64, planned_end: I64, start: I64, end: I64, tolerance_ns: int
) -> Order:
    """Neighbours on a stream: the later starts after the earlier, and after its end where the
    plan has them one after the other."""
    order = np.lexsort((planned_end, planned_start, track))
    before, after = order[:-1], order[1:]
    same = track[before] == track[after]
    before, after = before[same], after[same]
    one_by_one = planned_start[after] >= planned_end[before]
    broken = start[after] < start[before]
    broken |= one_by_one & (start[after] < end[before] - tolerance_ns)
    return Order(len(before), int(broken.sum()))


def dependencies(
    before: I64, after: I64, start: I64, end: I64, tolerance_ns: int, from_start: bool = False
) -> Order:
    """Edges between rows: `after` starts no earlier than `before` ends.

    `from_start`: than it starts (a kernel may run while the call that launched it returns).
    """
    ready = start[before] if from_start else end[before]
    broken = start[after] < ready - tolerance_ns
    return Order(len(before), int(broken.sum()))
