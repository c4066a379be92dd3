"""The bottleneck report: critical paths of a window of an archive, summed up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.ids import trace_id_strings
from spanlite.kinds import SpanKind

from spanlite_replay.bottlenecks.bounds import I64, REASONS, Bound, Reason, Stretches
from spanlite_replay.bottlenecks.kernels import Kernels, find_kernels, judge
from spanlite_replay.bottlenecks.labels import innermost, split_overhead
from spanlite_replay.bottlenecks.recorded import Recorded, read
from spanlite_replay.bottlenecks.walk import critical_paths
from spanlite_replay.fidelity.measures import quantile
from spanlite_replay.recording import Recording
from spanlite_replay.work import WORK_COLUMNS

#: Columns of the archive that the report needs.
BOTTLENECK_COLUMNS = (*WORK_COLUMNS, "resource")
EVIDENCE_SHOWN, KERNELS_SHOWN = 5, 50


@dataclass(frozen=True)
class Evidence:
    """Why time is counted as it is: what was seen, about what."""

    what: str
    seen: str
    ns: int
    stretches: int


@dataclass(frozen=True)
class Share:
    """All of the critical paths that is bound by one thing."""

    bound: str
    ns: int
    share: float
    evidence: list[Evidence]


@dataclass(frozen=True)
class PathKernel:
    """Kernels of one name, grid and block, as far as they were on a critical path."""

    name: str
    blocks: int
    ns: int
    share: float
    times: int
    bound: str
    known_by: str
    evidence: str
    slowed_ns: int


@dataclass(frozen=True)
class WindowRow:
    """One step (or request, or process)."""

    name: str
    trace_id: str
    start_ns: int
    ns: int
    shares: dict[str, float]


@dataclass(frozen=True)
class Lengths:
    """How long windows were, in ns."""

    p50: float
    p95: float
    max: float


@dataclass(frozen=True)
class Analysis:
    """What the report is made of, for further questions."""

    rec: Recorded
    stretches: Stretches
    kernels: Kernels
    about: I64  # position of the span that each stretch is about


@dataclass(frozen=True)
class Bottlenecks:
    """The whole report."""

    unit: str
    windows: int
    spans: int
    total_ns: int
    lengths_ns: Lengths
    shares: list[Share]
    kernels: list[PathKernel]
    rows: list[WindowRow]
    gpu: str
    notes: list[str]
    causes: list[Any] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """One sentence."""
        if not self.shares:
            return "nothing ran"
        first = self.shares[0]
        if first.bound == Bound.UNEXPLAINED.word:
            return f"{first.share * 100:.0f} % of the critical path is not explained"
        if first.bound == Bound.PROFILER.word:
            return (
                f"{first.share * 100:.0f} % of the critical path is the profiler's own work, which "
                "runs without it do not have"
            )
        return f"{first.bound}-bound: {first.share * 100:.0f} % of the critical path"

    def to_json(self) -> str:
        """One JSON object."""
        body = asdict(self) | {"headline": self.headline}
        return json.dumps(body, ensure_ascii=False, allow_nan=False)


def analyse(recording: Recording) -> Analysis:
    """Walk and judge every window. Raises InputError where nothing ran on a device."""
    rec = read(recording)
    kernels = find_kernels(rec)
    stretches = judge(critical_paths(rec), rec, kernels)
    stretches = split_overhead(stretches, rec)
    return Analysis(rec, stretches, kernels, innermost(rec, stretches))


def summarise(analysis: Analysis, causes: Sequence[Any] = ()) -> Bottlenecks:
    """Sum the stretches up."""
    rec, stretches = analysis.rec, analysis.stretches
    windows = rec.windows
    total = int(stretches.ns.sum())
    lengths = np.bincount(stretches.window, weights=stretches.ns, minlength=len(windows))
    return Bottlenecks(
        unit=windows.unit,
        windows=len(windows),
        spans=len(rec.start),
        total_ns=total,
        lengths_ns=Lengths(*(quantile(lengths, at) or 0.0 for at in (0.5, 0.95, 1.0))),
        shares=_shares(analysis, total),
        kernels=_path_kernels(analysis, total),
        rows=_rows(analysis, lengths),
        gpu=analysis.kernels.gpu.name,
        notes=_notes(analysis, total),
        causes=list(causes),
    )


def describe(analysis: Analysis, rows: npt.NDArray[np.bool_], most: int) -> list[Evidence]:
    """The chosen stretches by what was seen and about what, the longest first."""
    rec, stretches = analysis.rec, analysis.stretches
    about = analysis.about[rows]
    name = np.where(about >= 0, rec.name[np.maximum(about, 0)], len(rec.names))
    names = [*rec.names, "nothing recorded"]
    key = stretches.reason[rows] * (len(names) + 1) + name
    keys, place, count = np.unique(key, return_inverse=True, return_counts=True)
    ns = np.bincount(place, weights=stretches.ns[rows], minlength=len(keys)).astype(np.int64)
    longest = np.argsort(-ns, kind="stable")[:most]
    return [
        Evidence(
            names[int(keys[i] % (len(names) + 1))],
            REASONS[Reason(int(keys[i] // (len(names) + 1)))],
            int(ns[i]),
            int(count[i]),
        )
        for i in longest.tolist()
    ]


def _shares(analysis: Analysis, total: int) -> list[Share]:
    stretches = analysis.stretches
    found = []
    for bound in Bound:
        rows = stretches.bound == bound
        ns = int(stretches.ns[rows].sum())
        if ns:
            evidence = describe(analysis, rows, EVIDENCE_SHOWN)
            found.append(Share(bound.word, ns, ns / max(total, 1), evidence))
    return sorted(found, key=lambda one: -one.ns)


def _path_kernels(analysis: Analysis, total: int) -> list[PathKernel]:
    stretches, kernels = analysis.stretches, analysis.kernels
    rows = np.flatnonzero(np.isin(stretches.reason, (Reason.KERNEL, Reason.SLOWED)))
    of = kernels.of[stretches.span[rows]]
    rows, of = rows[of >= 0], of[of >= 0]
    count = len(kernels.signatures)
    slowed = stretches.reason[rows] == Reason.SLOWED
    ns, lost, times = (
        np.bincount(of, weights=weights, minlength=count).astype(np.int64)
        for weights in (stretches.ns[rows], stretches.ns[rows] * slowed, ~slowed)
    )
    longest = np.argsort(-ns, kind="stable")[:KERNELS_SHOWN]
    return [
        PathKernel(
            one.name,
            one.blocks,
            int(ns[i]),
            int(ns[i]) / max(total, 1),
            int(times[i]),
            one.bound.word,
            one.known_by,
            _filled(one.evidence, one.blocks, kernels.gpu.sms),
            int(lost[i]),
        )
        for i in longest.tolist()
        if ns[i]
        for one in [kernels.signatures[i]]
    ]


def _filled(evidence: str, blocks: int, sms: int) -> str:
    return f"{evidence}; {blocks} blocks on {sms} SMs" if blocks < sms else evidence


def _rows(analysis: Analysis, lengths: npt.NDArray[Any]) -> list[WindowRow]:
    rec, stretches = analysis.rec, analysis.stretches
    windows = rec.windows
    table = np.zeros((len(windows), len(Bound)))
    np.add.at(table, (stretches.window, stretches.bound), stretches.ns)
    span = windows.span
    trace = rec.recording.trace[rec.work.row[np.maximum(span, 0)]]
    ids = trace_id_strings(rec.recording.trace_low[trace], rec.recording.trace_high[trace])
    return [
        WindowRow(
            rec.names[int(rec.name[span[i]])] if span[i] >= 0 else "all of a process",
            ids[i] if span[i] >= 0 else "",
            int(windows.start_ns[i]),
            int(lengths[i]),
            {
                bound.word: float(table[i, bound] / max(lengths[i], 1))
                for bound in Bound
                if table[i, bound]
            },
        )
        for i in range(len(windows))
    ]


def _notes(analysis: Analysis, total: int) -> list[str]:
    rec, stretches, kernels = analysis.rec, analysis.stretches, analysis.kernels
    notes = []
    outside = int((rec.is_device & (rec.window < 0)).sum())
    if outside:
        notes.append(f"{outside:,} device spans belong to no {rec.windows.unit}")
    running = np.flatnonzero(stretches.reason == Reason.KERNEL)
    of = kernels.of[stretches.span[running]]
    never = np.array([one.alone_ns is None for one in kernels.signatures] or [True])
    company = kernels.accompanied[stretches.span[running]] > 0.1
    unjudged = int(stretches.ns[running][company & never[of]].sum()) if len(running) else 0
    if unjudged * 100 > total:
        notes.append(
            f"{unjudged / total * 100:.0f} % of the path are kernels beside other work that never "
            "ran alone here: contention in them cannot be told"
        )
    known = {one.known_by for one in kernels.signatures}
    if not known & {"counters", "shapes"}:
        notes.append("compute or memory is told by kernels' names: no counters, no shapes recorded")
    if rec.work.waits_unknown:
        notes.append(f"{rec.work.waits_unknown:,} waits for events whose event was not recorded")
    if not (rec.kind == SpanKind.STEP).any():
        notes.append("no steps are recorded: name them and each one is analysed")
    return notes
