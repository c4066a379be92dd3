"""What differs between two plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from spanlite_replay.plan import Plan
from spanlite_replay.planfile import settings_to_dict

I64 = npt.NDArray[np.int64]
Key = npt.NDArray[np.void]
_KEY = np.dtype([("high", np.uint64), ("low", np.uint64), ("span", np.uint64)])


@dataclass(frozen=True)
class PlanDiff:
    """`first` and `second` are counts of each; differences in time are second minus first."""

    same: bool
    settings: dict[str, list[Any]] = field(default_factory=dict)  # [first, second]
    events: list[int] = field(default_factory=list)
    only_in_first: int = 0
    only_in_second: int = 0
    in_both: int = 0
    fate_changed: int = 0
    duration_changed: int = 0
    moved: int = 0  # whose deadline differs, counted from the first event of each plan
    moved_median_ns: int = 0
    moved_max_ns: int = 0
    start_moved_ns: int = 0  # by how much the whole plan moved
    edges: dict[str, list[int]] = field(default_factory=dict)


def diff_plans(first: Plan, second: Plan) -> PlanDiff:
    """Compare event by event; an event is known by its trace id and span id."""
    same = first.digest() == second.digest()
    at, other = _matched(_keys(first), _keys(second))
    origin, its = int(first.due_ns[0]), int(second.due_ns[0])
    by = (second.due_ns[other] - its) - (first.due_ns[at] - origin)
    moved = by[by != 0]
    told, asked = settings_to_dict(first.settings), settings_to_dict(second.settings)
    return PlanDiff(
        same,
        {name: [told[name], asked[name]] for name in told if told[name] != asked[name]},
        [len(first), len(second)],
        len(first) - len(at),
        len(second) - len(at),
        len(at),
        int((first.fate[at] != second.fate[other]).sum()),
        int((first.duration_ns[at] != second.duration_ns[other]).sum()),
        len(moved),
        int(np.median(moved)) if len(moved) else 0,
        int(moved[np.argmax(np.abs(moved))]) if len(moved) else 0,
        its - origin,
        _edges(first, second),
    )


def _keys(plan: Plan) -> Key:
    rec = plan.recording
    keys = np.empty(len(plan), dtype=_KEY)
    keys["high"], keys["low"] = rec.trace_high[plan.trace], rec.trace_low[plan.trace]
    keys["span"] = rec.span_id[plan.row]
    return keys


def _matched(first: Key, second: Key) -> tuple[I64, I64]:
    """(places in the first, places in the second) of the keys that both have."""
    _, at, other = np.intersect1d(first, second, return_indices=True)
    return at, other


def _edges(first: Plan, second: Plan) -> dict[str, list[int]]:
    counts = [{} if plan.work is None else plan.work.edges.counts() for plan in (first, second)]
    return {
        word: [counts[0].get(word, 0), counts[1].get(word, 0)]
        for word in sorted({*counts[0], *counts[1]})
    }
