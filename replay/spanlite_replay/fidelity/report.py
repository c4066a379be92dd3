"""The fidelity report: a replay against what was recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from spanlite.kinds import CALL_KINDS, SpanKind, kind_word

from spanlite_replay.fidelity import measures
from spanlite_replay.fidelity.grade import Grade, grade
from spanlite_replay.fidelity.measures import Dispatch, Durations, KernelRow, Starts
from spanlite_replay.fidelity.order import TOLERANCE_NS, Order, dependencies, stream_order
from spanlite_replay.fidelity.overlap import StreamPair, compare_overlap, overlaps
from spanlite_replay.fidelity.pairing import Pairs, pair
from spanlite_replay.fidelity.spans import BOOL, I64, Spans, group_rows

#: Edges that somebody recorded or inferred: rows of the recorded table, before and after.
Edges = tuple[I64, I64]
#: Keys of an observed table's metadata that say how it came about.
_OURS = b"spanlite."


@dataclass(frozen=True)
class Coverage:
    """How much of the plan ran, of one kind of span."""

    planned: int
    observed: int
    planned_ns: int
    observed_planned_ns: int  # planned time of the spans that ran

    @property
    def count(self) -> float:
        """Share of the spans."""
        return self.observed / self.planned if self.planned else 0.0

    @property
    def time(self) -> float:
        """Share of the planned time."""
        return self.observed_planned_ns / self.planned_ns if self.planned_ns else self.count


@dataclass(frozen=True)
class Pair:
    """A figure of the plan, of the replay, and the error (in percent or points)."""

    planned: float | None
    observed: float | None
    error: float | None


@dataclass(frozen=True)
class Steps:
    """Makespan errors of single traces (steps, requests), in percent, unsigned."""

    traces: int
    p50_pct: float | None
    p95_pct: float | None
    max_pct: float | None


@dataclass(frozen=True)
class Fidelity:
    """Everything about one replay. None: not defined for this recording."""

    judged: str
    spans: int
    lost: int
    repeated: int
    unknown: int
    dispatch: Dispatch
    makespan_ms: Pair
    steps: Steps
    durations: Durations
    starts: Starts
    idle_pct: Pair
    overlap_iou: float | None
    overlap_cut: int
    stream_pairs: list[StreamPair]
    order: dict[str, Order]
    coverage: dict[str, Coverage]
    conservation: str
    closes: bool
    grade: Grade
    kernels: list[KernelRow]
    environment: dict[str, Any]
    #: The same measures between two replays of the plan, by their path; empty without an A/A.
    noise: dict[str, float] = field(default_factory=dict)

    @property
    def violations(self) -> int:
        """Broken edges of all kinds."""
        return sum(order.violations for order in self.order.values())

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the fields, the derived shares, and the streams of the pairs."""
        body = asdict(self)
        for kind, one in self.coverage.items():
            body["coverage"][kind] |= {"count": one.count, "time": one.time}
        body["violations"] = self.violations
        return body

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, default=str)

    def figures(self) -> dict[str, float]:
        """The errors by their path, such as `starts.p99_us`; only those that are defined."""
        found: dict[str, float | None] = {
            "dispatch.p50_us": self.dispatch.p50_us,
            "dispatch.p99_us": self.dispatch.p99_us,
            "makespan_pct": self.makespan_ms.error,
            "steps.p50_pct": self.steps.p50_pct,
            "steps.p95_pct": self.steps.p95_pct,
            "durations.mape_pct": self.durations.mape_pct,
            "durations.p95_pct": self.durations.p95_pct,
            "durations.p95_us": self.durations.p95_us,
            "durations.bias_pct": self.durations.bias_pct,
            "durations.r": self.durations.r,
            "starts.p50_us": self.starts.p50_us,
            "starts.p99_us": self.starts.p99_us,
            "starts.max_us": self.starts.max_us,
            "starts.drift_us_per_s": self.starts.drift_us_per_s,
            "idle_points": self.idle_pct.error,
            "overlap_iou": self.overlap_iou,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Extras:
    """What only the one who ran the replay knows."""

    #: Rows of the recorded table: dependencies across streams.
    edges: Edges | None = None
    #: The conservation line of the replay, and whether it closes.
    conservation: str | None = None
    closes: bool = True
    #: GPU, driver, clocks, throttle reasons, seed, exact flags: whatever is known.
    environment: Mapping[str, Any] = field(default_factory=dict)
    tolerance_ns: int = TOLERANCE_NS


def compare(
    recorded: pa.Table,
    observed: pa.Table,
    extras: Extras | None = None,
    again: pa.Table | None = None,
) -> Fidelity:
    """Compare a replay with its recording.

    `recorded`: the planned rows of the archive's `spans`. `observed`: OBSERVED_SCHEMA.
    `again`: the observed table of a second run of the same plan (A/A): the differences between
    the two runs are the noise floor, in `noise`. Raises InputError where a column is missing.
    """
    extras = extras or Extras()
    result = _compare(recorded, observed, extras)
    if again is None:
        return result
    return replace(result, noise=noise_floor(recorded, observed, again, extras))


def noise_floor(
    recorded: pa.Table, first: pa.Table, second: pa.Table, extras: Extras | None = None
) -> dict[str, float]:
    """How far two replays of one plan differ: the first run is taken for the plan."""
    names = ["trace_id_low", "trace_id_high", "span_id"]
    base = pair(recorded, first)
    other = pair(recorded, second)
    both = pa.array(base.seen & other.seen)
    s = base.spans
    ids = dict(zip(names, (s.trace_low, s.trace_high, s.span_id), strict=True))
    times = {
        "planned_start_ns": base.start_ns,
        "planned_end_ns": base.end_ns,
        "start_ns": other.start_ns,
        "end_ns": other.end_ns,
    }
    table = pa.table({**ids, **times}).filter(both)
    extras = replace(extras or Extras(), edges=_edges_of(extras, base.seen & other.seen))
    return _compare(recorded.filter(both), table, extras).figures()


def _edges_of(extras: Extras | None, kept: BOOL) -> Edges | None:
    """The edges between rows that are kept, by their new numbers."""
    if extras is None or extras.edges is None:
        return None
    before, after = extras.edges
    number = np.cumsum(kept) - 1
    both = kept[before] & kept[after]
    return number[before[both]], number[after[both]]


def _compare(recorded: pa.Table, observed: pa.Table, extras: Extras) -> Fidelity:
    everything = pair(recorded, observed)
    rows, judged = _judged(everything)
    pairs = everything.of(rows)
    seen = pairs.of(pairs.seen)
    spans = seen.spans
    planned_ns = seen.planned_end_ns - seen.planned_start_ns
    observed_ns = seen.end_ns - seen.start_ns
    kernels = _kernels(spans)
    overlap_iou, cut, stream_pairs = _overlap(seen)
    order = _orders(everything, extras)
    covered = _coverage(pairs)
    makespan = _makespan(pairs, seen)
    starts = measures.starts(seen.planned_start_ns, seen.start_ns)
    durations = measures.durations(planned_ns[kernels], observed_ns[kernels])
    edges = sum(one.edges for one in order.values())
    broken = sum(one.violations for one in order.values())
    every = covered["all"]
    return Fidelity(
        judged=judged,
        spans=len(pairs.spans),
        lost=len(pairs.spans) - len(spans),
        repeated=everything.repeated,
        unknown=everything.unknown,
        dispatch=_dispatch(everything, seen),
        makespan_ms=makespan,
        steps=_steps(seen),
        durations=durations,
        starts=starts,
        idle_pct=_idle(seen),
        overlap_iou=overlap_iou,
        overlap_cut=cut,
        stream_pairs=stream_pairs,
        order=order,
        coverage=covered,
        conservation=extras.conservation or _conservation(len(pairs.spans), len(spans)),
        closes=extras.closes,
        grade=grade(
            makespan.error,
            starts.p99_us,
            durations.p95_of_limit,
            broken / edges if edges else 0.0,
            min(every.count, every.time),
        ),
        kernels=measures.by_kernel(
            spans.name[kernels], spans.names, planned_ns[kernels], observed_ns[kernels]
        ),
        environment=_facts(observed) | dict(extras.environment),
    )


def _judged(pairs: Pairs) -> tuple[BOOL, str]:
    """The rows that the replay is judged by: what runs on a device, else all kinds it ran."""
    on_device = pairs.spans.on_device
    if on_device.any():
        return on_device, "device spans"
    ran = np.unique(pairs.spans.kind[pairs.seen])
    return np.isin(pairs.spans.kind, ran), "spans of the kinds that were observed"


def _kernels(spans: Spans) -> BOOL:
    kernels = spans.is_kind(SpanKind.KERNEL)
    return kernels if kernels.any() else np.ones(len(spans), np.bool_)


def _dispatch(everything: Pairs, seen: Pairs) -> Dispatch:
    calls = everything.spans.is_kind(*CALL_KINDS) & everything.seen
    if calls.any():
        rows = everything.of(calls)
        return measures.dispatch("launch calls", rows.planned_start_ns, rows.start_ns)
    trace, _ = group_rows(seen.spans.trace_high, seen.spans.trace_low)
    order = np.lexsort((seen.planned_start_ns, trace))
    first = order[
        np.concatenate((np.ones(min(1, len(order)), np.bool_), np.diff(trace[order]) > 0))
    ]
    return measures.dispatch(
        "the first span of each trace", seen.planned_start_ns[first], seen.start_ns[first]
    )


def _makespan(pairs: Pairs, seen: Pairs) -> Pair:
    planned = measures.makespan_ns(pairs.planned_start_ns, pairs.planned_end_ns)
    observed = measures.makespan_ns(seen.start_ns, seen.end_ns)
    error = measures.error_pct(planned, observed) if len(seen.spans) else None
    return Pair(planned / 1e6, observed / 1e6, error)


def _steps(seen: Pairs) -> Steps:
    trace, first = group_rows(seen.spans.trace_high, seen.spans.trace_low)
    if not len(first):
        return Steps(0, None, None, None)
    lengths = []
    for start, end in ((seen.planned_start_ns, seen.planned_end_ns), (seen.start_ns, seen.end_ns)):
        low = np.full(len(first), np.iinfo(np.int64).max)
        high = np.full(len(first), np.iinfo(np.int64).min)
        np.minimum.at(low, trace, start)
        np.maximum.at(high, trace, end)
        lengths.append(high - low)
    some = lengths[0] > 0
    error = np.abs(lengths[1] - lengths[0])[some] / lengths[0][some] * 100
    return Steps(len(first), *(measures.quantile(error, at) for at in (0.5, 0.95, 1.0)))


def _idle(seen: Pairs) -> Pair:
    device, _ = group_rows(seen.spans.process, seen.spans.device)
    planned = measures.idle_pct(device, seen.planned_start_ns, seen.planned_end_ns)
    observed = measures.idle_pct(device, seen.start_ns, seen.end_ns)
    error = None if planned is None or observed is None else observed - planned
    return Pair(planned, observed, error)


def _overlap(seen: Pairs) -> tuple[float | None, int, list[StreamPair]]:
    spans = seen.spans
    track, example = spans.tracks()
    device, _ = group_rows(spans.process, spans.device)
    planned = overlaps(track, device, seen.planned_start_ns, seen.planned_end_ns)
    observed = overlaps(track, device, seen.start_ns, seen.end_ns)
    iou, found = compare_overlap(track, planned, observed, len(spans))
    stream = spans.stream[example]
    named = [
        replace(one, first=int(stream[one.first]), second=int(stream[one.second])) for one in found
    ]
    return iou, max(planned.cut, observed.cut), named


def _orders(everything: Pairs, extras: Extras) -> dict[str, Order]:
    spans, seen = everything.spans, everything.seen
    rows = spans.on_device & seen
    track, _ = spans.tracks()
    planned_start, planned_end = everything.planned_start_ns, everything.planned_end_ns
    found = {
        "stream order": stream_order(
            track[rows],
            planned_start[rows],
            planned_end[rows],
            everything.start_ns[rows],
            everything.end_ns[rows],
            extras.tolerance_ns,
        )
    }
    parent = spans.parent_rows()
    launched = rows & (parent >= 0)
    launched[launched] = seen[parent[launched]] & spans.is_kind(*CALL_KINDS)[parent[launched]]
    # A clock anomaly of the recording is not the replay's fault.
    launched[launched] = planned_start[launched] >= planned_start[parent[launched]]
    after = np.flatnonzero(launched)
    found["launches"] = dependencies(
        parent[after],
        after,
        everything.start_ns,
        everything.end_ns,
        extras.tolerance_ns,
        from_start=True,
    )
    if extras.edges is not None:
        both = seen[extras.edges[0]] & seen[extras.edges[1]]
        before, after = extras.edges[0][both], extras.edges[1][both]
        found["dependencies"] = dependencies(
            before, after, everything.start_ns, everything.end_ns, extras.tolerance_ns
        )
    return found


def _coverage(pairs: Pairs) -> dict[str, Coverage]:
    lasted = pairs.planned_end_ns - pairs.planned_start_ns
    found = {}
    for kind in [None, *np.unique(pairs.spans.kind).tolist()]:
        rows = np.ones(len(lasted), np.bool_) if kind is None else pairs.spans.kind == kind
        ran = rows & pairs.seen
        word = "all" if kind is None else kind_word(kind)
        found[word] = Coverage(
            int(rows.sum()), int(ran.sum()), int(lasted[rows].sum()), int(lasted[ran].sum())
        )
    return found


def _conservation(planned: int, observed: int) -> str:
    return f"{planned:,} planned = {observed:,} observed + {planned - observed:,} lost"


def _facts(observed: pa.Table) -> dict[str, Any]:
    """What the target wrote into the table's metadata: target, digest, clocks, throttling, ..."""
    metadata = observed.schema.metadata or {}
    return {
        key[len(_OURS) :].decode(): value.decode(errors="replace")
        for key, value in metadata.items()
        if key.startswith(_OURS)
    }
