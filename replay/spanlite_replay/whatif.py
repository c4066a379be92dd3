"""What-if questions: a recording with one thing changed, run on the simulator.

Every answer is a ratio of two simulations, with and without the change, times what was recorded;
its error bar holds the noise of the recording, the simulator's own error on it, and the range
that the assumptions leave open.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from spanlite.errors import UsageError
from spanlite.kinds import CopyKind, SpanKind

from spanlite_replay.bottlenecks.bounds import Bound
from spanlite_replay.bottlenecks.kernels import Kernels, find_kernels
from spanlite_replay.bottlenecks.recorded import Recorded
from spanlite_replay.recording import Recording, factorise
from spanlite_replay.sim import GpuModel, fit_model, simulate
from spanlite_replay.sim.model import Class, classes, default_model
from spanlite_replay.sim.waits import waits_until
from spanlite_replay.work import EdgeKind, Edges, Work

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

#: A call that launches a whole graph takes so long on the host.
GRAPH_CALL_NS = 10_000
#: Fewer kernels than this are not worth a graph.
SMALLEST_GRAPH = 3
_WHOLE_DEVICE = re.compile(
    r"(cu(da)?|hip)(device|ctx|context|thread)synchronize|(context|device) sync", re.IGNORECASE
)
#: Two-sided 95 % of a median, from the median absolute deviation of normal values.
_MEDIAN_95 = 1.96 * 1.2533 * 1.4826


@dataclass(frozen=True)
class Case:
    """What is simulated; the arrays of `rec` and `work` have shape (spans,) each."""

    work: Work
    rec: Recording
    duration_ns: I64


Change = Callable[["Ground", Case], list[Case]]
"""The likely case first, then others that the recording does not rule out."""


@dataclass(frozen=True)
class Ground:
    """A recording, its model, and how well the model repeats it."""

    recorded: Recorded
    kernels: Kernels
    model: GpuModel
    lengths_ns: F64  # of each window as recorded
    base_ns: F64  # as simulated without a change, dependencies as observed
    loose_ns: F64  # the same with recorded dependencies only

    @property
    def noise(self) -> float:
        """95 % of the median's chance error, as a share of it; nan with fewer than 3 windows."""
        if len(self.lengths_ns) < 3:
            return math.nan
        middle = float(np.median(self.lengths_ns))
        spread = float(np.median(np.abs(self.lengths_ns - middle)))
        return _MEDIAN_95 * spread / math.sqrt(len(self.lengths_ns)) / middle

    @property
    def simulator_error(self) -> float:
        """How far the simulated median is from the recorded one, as a share of that."""
        recorded = float(np.median(self.lengths_ns))
        return abs(float(np.median(self.base_ns)) - recorded) / recorded

    @property
    def case(self) -> Case:
        """Nothing changed."""
        work = waits_for_all(self.recorded)
        return Case(work, self.recorded.recording, work.duration_ns.copy())


@dataclass(frozen=True)
class Answer:
    """How long the median step (or request, or process) would take. Times in ns."""

    question: str
    unit: str
    windows: int
    recorded_ns: float
    predicted_ns: float
    error_ns: float  # of noise and simulator; nan where the noise is not known
    low_ns: float  # with the error and the least favourable assumptions
    high_ns: float
    noise: float
    simulator_error: float
    assumptions: list[str] = field(default_factory=list)

    @property
    def change(self) -> float:
        """-0.2 is a fifth less time."""
        return self.predicted_ns / self.recorded_ns - 1


def prepare(recorded: Recorded, model: GpuModel | None = None) -> Ground:
    """Fit the model and measure it on the recording itself."""
    work, rec = recorded.work, recorded.recording
    fitted = fitted_model(recorded.work, rec, model)
    recorded_ns = lengths_of(recorded, recorded.start, recorded.end)
    case = Case(work, rec, work.duration_ns)
    ground = Ground(recorded, find_kernels(recorded), fitted, recorded_ns, recorded_ns, recorded_ns)
    return replace(
        ground, base_ns=_lengths(ground, case), loose_ns=_lengths(ground, _without_observed(case))
    )


def fitted_model(work: Work, rec: Recording, model: GpuModel | None) -> GpuModel:
    """The model fitted, but for launches of a kind that never found their stream free: how long
    those take the recording does not show, so they keep the default."""
    usual = default_model() if model is None else model
    fitted = fit_model(work, rec, usual)
    device, bounds = work.stream_order()
    kinds = classes(work, device)
    start = rec.start_ns[work.row] - rec.start_ns.min()
    end = start + np.maximum(rec.duration_ns[work.row], 0)
    free = waits_until(work, device, bounds, end)
    call = work.launched_by[device]
    shown = (call >= 0) & (free <= start[np.maximum(call, 0)])
    launch, from_start = list(fitted.launch_ns), list(fitted.from_start)
    for one in Class:
        if not shown[kinds == one].any():
            launch[one], from_start[one] = usual.launch_ns[one], usual.from_start[one]
    return replace(
        fitted,
        launch_ns=(launch[0], launch[1], launch[2]),
        from_start=(from_start[0], from_start[1], from_start[2]),
    )


def waits_for_all(recorded: Recorded) -> Work:
    """The work with waits for a whole device as they are: for the last of each stream.

    Of a recording the one that ended last is enough; once times change, it may be another.
    """
    work = recorded.work
    whole = np.array([bool(_WHOLE_DEVICE.match(name)) for name in recorded.names])
    calls = np.flatnonzero(work.is_call & whole[recorded.name])
    launch = np.where(
        work.launched_by >= 0, recorded.start[np.maximum(work.launched_by, 0)], recorded.start
    )
    order, bounds = work.stream_order()
    before, after = [work.edges.before], [work.edges.after]
    for stream in range(len(bounds) - 1):
        mine = order[bounds[stream] : bounds[stream + 1]]
        if not len(mine):
            continue
        here = calls[recorded.process[calls] == recorded.process[mine[0]]]
        at = np.searchsorted(np.maximum.accumulate(launch[mine]), recorded.start[here]) - 1
        before.append(mine[at[at >= 0]])
        after.append(here[at >= 0])
    more = sum(len(one) for one in before[1:])
    kind = np.concatenate((work.edges.kind, np.full(more, EdgeKind.SYNC, np.uint8)))
    inferred = np.concatenate((work.edges.inferred, np.ones(more, np.bool_)))
    columns = (np.concatenate(before), np.concatenate(after), kind, inferred)
    by_call = np.lexsort((kind, columns[0], columns[1]))
    return replace(work, edges=Edges(*(column[by_call] for column in columns)))


def ask(
    ground: Ground,
    question: str,
    changes: Sequence[Change],
    assumptions: Sequence[str],
    reordered: bool = False,
) -> Answer:
    """Apply the changes one after the other and simulate every case that they leave open.

    `reordered`: the change launches work in another order, so that what happened to end before
    what, on another stream, is no sign of a dependency; else it is taken for one. The other
    way goes into the range.
    """
    cases = [ground.case]
    for change in changes:
        cases = [one for case in cases for one in change(ground, case)]
    ratios = []
    for case in cases:
        both = [
            _ratio(_lengths(ground, case), ground.base_ns),
            _ratio(_lengths(ground, _without_observed(case)), ground.loose_ns),
        ]
        ratios += both[::-1] if reordered else both
    recorded = float(np.median(ground.lengths_ns))
    chance = math.hypot(0.0 if math.isnan(ground.noise) else ground.noise, ground.simulator_error)
    predicted = ratios[0] * recorded
    return Answer(
        question,
        ground.recorded.windows.unit,
        len(ground.lengths_ns),
        recorded,
        predicted,
        predicted * (math.hypot(ground.noise, ground.simulator_error)),
        min(ratios) * recorded * (1 - chance),
        max(ratios) * recorded * (1 + chance),
        ground.noise,
        ground.simulator_error,
        list(assumptions),
    )


def lengths_of(recorded: Recorded, start: I64, end: I64) -> F64:
    """From each window's start to its own end or its last device span's. Shape (windows,)."""
    windows = recorded.windows
    device = np.flatnonzero(recorded.is_device & (recorded.window >= 0))
    mine = recorded.window[device]
    first = np.full(len(windows), np.iinfo(np.int64).max)
    last = np.full(len(windows), np.iinfo(np.int64).min)
    np.minimum.at(first, mine, start[device])
    np.maximum.at(last, mine, end[device])
    named = windows.span >= 0
    first[named] = start[windows.span[named]]
    last[named] = np.maximum(last[named], end[windows.span[named]])
    return np.asarray(last - first, np.float64)


def _lengths(ground: Ground, case: Case) -> F64:
    ran = simulate(case.work, case.rec, ground.model, "closed", case.duration_ns)
    return lengths_of(ground.recorded, ran.start_ns, ran.end_ns)


def _ratio(changed: F64, base: F64) -> float:
    return float(np.median(changed) / np.median(base))


def _without_observed(case: Case) -> Case:
    """Without dependencies of kernels that are told from times alone. Those of copies stay: a
    copy on a stream of its own brings or takes what kernels of others use."""
    work = case.work
    edges = work.edges
    known = (edges.kind != EdgeKind.OBSERVED) | (work.kind[edges.after] == SpanKind.MEMCPY)
    columns = (edges.before, edges.after, edges.kind, edges.inferred)
    return replace(case, work=replace(work, edges=Edges(*(one[known] for one in columns))))


# ---- changes ---------------------------------------------------------------------------


def kernels_times(pattern: str, faster: float) -> Change:
    """Kernels whose name holds the pattern (a regular expression), so many times as fast."""
    try:
        wanted = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise UsageError(f"--kernel '{pattern}' is no regular expression: {error}") from None

    def change(ground: Ground, case: Case) -> list[Case]:
        rec = ground.recorded
        hit = np.array([bool(wanted.search(name)) for name in rec.names])[rec.name]
        hit &= rec.kind == SpanKind.KERNEL
        if not hit.any():
            raise UsageError(f"--kernel '{pattern}' names no kernel of this window{_kernels(rec)}")
        return [_scaled(case, hit, faster)]

    return change


def _kernels(rec: Recorded) -> str:
    """The names of kernels to choose from, those that run most first."""
    codes = rec.name[rec.kind == SpanKind.KERNEL]
    counts = np.bincount(codes, minlength=len(rec.names))
    most = np.argsort(-counts, kind="stable")[:3]
    names = [rec.names[code][:60] for code in most.tolist() if counts[code]]
    rest = int((counts > 0).sum()) - len(names)
    more = f" and {rest} more" if rest else ""
    return f", which has {', '.join(names)}{more}" if names else ", which has none"


def clock_times(faster: float) -> Change:
    """The SMs' clock; memory keeps its own. What a kernel is bound by may be uncertain."""

    def change(ground: Ground, case: Case) -> list[Case]:
        signatures = ground.kernels.signatures
        bound = np.array([one.bound == Bound.COMPUTE for one in signatures] or [False])
        sure = np.array([one.known_by in ("counters", "shapes") for one in signatures] or [False])
        of, kernel = ground.kernels.of, ground.recorded.kind == SpanKind.KERNEL
        cases = [bound[of], bound[of] & sure[of], np.ones(len(of), np.bool_)]
        return [_scaled(case, kernel & one, faster) for one in cases]

    return change


def copies_dropped(direction: str | None) -> Change:
    """Copies (of one direction) that take no time; their calls stay."""
    words = {one.name.lower() for one in CopyKind}
    if direction is not None and direction not in words:
        raise UsageError(f"--drop-copies '{direction}': choose htod, dtoh, dtod or ptop")

    def change(ground: Ground, case: Case) -> list[Case]:
        rec = ground.recorded
        copies = rec.kind == SpanKind.MEMCPY
        if direction is not None:
            codes, names = rec.recording.dictionary("copy_kind")
            right = np.array([name == direction for name in names] or [False])
            copies &= right[codes[rec.work.row]]
        if not copies.any():
            what = "copies" if direction is None else f"copies of direction {direction}"
            raise UsageError(f"--drop-copies: this window holds no {what}: leave it out")
        return [_scaled(case, copies, math.inf)]

    return change


def streams_remapped(count: int) -> Change:
    """Each process's streams folded onto so many, in turn."""
    if count < 1:
        raise UsageError(f"--streams {count} must be 1 or more")

    def change(ground: Ground, case: Case) -> list[Case]:
        work = case.work
        home, _ = factorise(work.streams, ("host", "process_id", "device"))
        place = np.empty(len(home), np.int64)
        for one in np.unique(home):
            mine = np.flatnonzero(home == one)
            place[mine] = mine[np.arange(len(mine)) % min(count, len(mine))]
        stream = np.where(work.stream >= 0, place[work.stream], -1).astype(np.int32)
        return [replace(case, work=replace(work, stream=stream))]

    return change


def merged_into_graphs() -> Change:
    """All kernels that a trace launches on a stream between two waits: one graph launch."""

    def change(ground: Ground, case: Case) -> list[Case]:
        start, duration = case.rec.start_ns.copy(), case.rec.duration_ns.copy()
        launched = case.work.launched_by.copy()
        for thread in _parts(case):
            sooner = 0
            for part in thread:
                sooner = _merge(case.work, part, sooner, start, duration, launched)
        rec = replace(case.rec, start_ns=start, duration_ns=duration)
        return [replace(case, work=replace(case.work, launched_by=launched), rec=rec)]

    return change


@dataclass(frozen=True)
class _Part:
    """Calls of one thread and one trace up to a wait; positions."""

    calls: I64
    device: I64  # what they launched
    wait: int  # the call that waits at the end, -1 for none


def _merge(work: Work, part: _Part, sooner: int, start: I64, duration: I64, launched: I64) -> int:
    """Make graph launches of a part whose calls come `sooner` by so much; returns by how much
    the next part does. A wait ends that: what follows it counts from its return."""
    row = work.row
    calls = row[part.calls]
    if len(part.device) < SMALLEST_GRAPH:
        start[calls] -= sooner
    else:
        begin = int(start[calls[0]]) - sooner
        ended = int(start[calls[-1]] + duration[calls[-1]])
        _, first, inverse = np.unique(
            work.stream[part.device], return_index=True, return_inverse=True
        )
        heads = work.launched_by[part.device[first]]
        launched[part.device] = heads[inverse]
        heads = np.unique(heads)
        start[calls], duration[calls] = begin, 0
        start[row[heads]] = begin + GRAPH_CALL_NS * np.arange(len(heads))
        duration[row[heads]] = GRAPH_CALL_NS
        sooner = ended - begin - GRAPH_CALL_NS * len(heads)
    if part.wait < 0:
        return sooner
    wait = row[part.wait]
    start[wait] -= sooner
    duration[wait] += sooner
    return 0


def _parts(case: Case) -> Iterator[list[_Part]]:
    """Of each thread, in order."""
    work, rec = case.work, case.rec
    order, bounds = work.launch_order()
    waits = np.zeros(len(work), np.bool_)
    waits[work.edges.after[work.edges.kind == EdgeKind.SYNC]] = True
    device = np.flatnonzero(work.is_device & (work.launched_by >= 0))
    by_call = device[np.argsort(work.launched_by[device], kind="stable")]
    cuts = np.searchsorted(work.launched_by[by_call], np.arange(len(work) + 1))
    for thread in range(len(bounds) - 1):
        calls = order[bounds[thread] : bounds[thread + 1]]
        trace = rec.trace[work.row[calls]]
        new = np.zeros(len(calls), np.bool_)
        new[1:] = waits[calls[:-1]] | (trace[1:] != trace[:-1])
        yield [
            _part(part, waits, by_call, cuts)
            for part in np.split(calls, np.flatnonzero(new))
            if len(part)
        ]


def _part(part: I64, waits: BOOL, by_call: I64, cuts: I64) -> _Part:
    wait = int(part[-1]) if waits[part[-1]] else -1
    calls = part[:-1] if wait >= 0 else part
    launched = [by_call[cuts[call] : cuts[call + 1]] for call in calls.tolist()]
    device = np.concatenate(launched) if launched else np.empty(0, np.int64)
    return _Part(calls, device, wait)


def _scaled(case: Case, rows: BOOL, faster: float) -> Case:
    duration = case.duration_ns.copy()
    duration[rows] = np.rint(duration[rows] / faster).astype(np.int64)
    return replace(case, duration_ns=duration)
