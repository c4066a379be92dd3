"""A recording seen as steps, calls and device work: what the walk needs, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from spanlite.errors import InputError
from spanlite.kinds import CALL_KINDS, DEVICE_KINDS, SpanKind

from spanlite_replay.fidelity.spans import match_rows
from spanlite_replay.plan import PlanSettings, build_plan
from spanlite_replay.recording import Recording, factorise
from spanlite_replay.work import Work, build_work

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]

#: Deeper trees than this are cut off; Python stacks in Kineto files are about 60 deep.
DEEPEST = 256


@dataclass(frozen=True)
class Windows:
    """The stretches of time that are analysed: steps, else requests, else whole processes."""

    unit: str
    span: I64  # position of the step or request, -1 for a process
    process: I64
    thread: I64  # -1: no host thread is known
    start_ns: I64
    end_ns: I64  # of the span itself; device work may end later

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class Recorded:
    """Spans in order of their start; arrays of shape (spans,) unless said otherwise."""

    recording: Recording
    work: Work
    start: I64
    end: I64
    kind: npt.NDArray[np.uint8]
    name: I64
    names: list[str]
    parent: I64  # position, -1: none
    process: I64
    windows: Windows
    window: I64  # which window a span belongs to, -1: none

    @property
    def is_device(self) -> BOOL:
        """Which spans run on a stream."""
        return self.work.is_device


def read(recording: Recording) -> Recorded:
    """Find windows and owners. Raises InputError where there is no device work at all."""
    plan = build_plan(recording, PlanSettings())
    work = build_work(plan, "observed")
    if not work.is_device.any():
        raise InputError(
            "the window holds no kernels, copies or memsets: choose one in which kernels were "
            "recorded (`spanlite report` shows where)"
        )
    start, end = work.start_ns, work.start_ns + np.maximum(work.duration_ns, 0)
    codes, names = recording.dictionary("name")
    process, _ = factorise(recording.table, ("host", "process_id"), work.row)
    parent = _parents(recording, work)
    windows, window = _windows(work, start, end, parent, process.astype(np.int64))
    return Recorded(
        recording,
        work,
        start,
        end,
        work.kind,
        codes[work.row].astype(np.int64),
        names,
        parent,
        process.astype(np.int64),
        windows,
        window,
    )


def _parents(recording: Recording, work: Work) -> I64:
    trace = recording.trace[work.row]
    mine = recording.span_id[work.row]
    parent = recording.integers("parent_span_id", work.row, 0)
    place = trace.astype(np.uint64)
    row, _, _ = match_rows((place, parent.view(np.uint64)), (place, mine))
    return np.where(parent == 0, -1, row)


def ancestor(parent: I64, wanted: BOOL, start_at: I64 | None = None) -> I64:
    """The nearest of `wanted` on each span's way up, itself included; -1 for none."""
    current = np.arange(len(parent)) if start_at is None else start_at.copy()
    found = np.full(len(current), -1, np.int64)
    for _ in range(DEEPEST):
        live = (found < 0) & (current >= 0)
        if not live.any():
            break
        hit = live.copy()
        hit[live] = wanted[current[live]]
        found[hit] = current[hit]
        live &= ~hit
        current[live] = parent[current[live]]
    return found


def _windows(work: Work, start: I64, end: I64, parent: I64, process: I64) -> tuple[Windows, I64]:
    for unit, kind in (("step", SpanKind.STEP), ("request", SpanKind.REQUEST)):
        span = np.flatnonzero(work.kind == kind)
        if not len(span):
            continue
        is_unit = work.kind == kind
        owner = ancestor(parent, is_unit)
        owner = _by_launch(work, owner)
        owner = _by_time(work, span, start, end, process, owner)
        if not (owner[work.is_device] >= 0).any():
            continue
        used = np.unique(owner[work.is_device & (owner >= 0)])
        place = np.full(len(start), -1, np.int64)
        place[used] = np.arange(len(used))
        windows = Windows(
            unit, used, process[used], work.thread[used].astype(np.int64), start[used], end[used]
        )
        return windows, np.where(owner >= 0, place[np.maximum(owner, 0)], -1)
    return _whole_processes(work, start, end, process)


def _by_launch(work: Work, owner: I64) -> I64:
    """Device work belongs to what launched it."""
    launched = work.launched_by >= 0
    owner = owner.copy()
    known = launched & (owner < 0)
    owner[known] = owner[work.launched_by[known]]
    return owner


def _by_time(work: Work, span: I64, start: I64, end: I64, process: I64, owner: I64) -> I64:
    """Calls and device work without parents: the window of their thread that holds them, else
    the only one of their process."""
    owner = owner.copy()
    calls = np.isin(work.kind, (*CALL_KINDS, SpanKind.SYNC)) & (owner < 0) & (work.thread >= 0)
    for thread in np.unique(work.thread[span]):
        mine = span[work.thread[span] == thread]
        rows = np.flatnonzero(calls & (work.thread == thread))
        owner[rows] = _holding(mine, start, end, start[rows])
    owner = _by_launch(work, owner)
    lost = np.isin(work.kind, DEVICE_KINDS) & (owner < 0) & (work.launched_by < 0)
    for one in np.unique(process[span]):
        mine = span[process[span] == one]
        rows = np.flatnonzero(lost & (process == one))
        alone = _holding(mine, start, end, start[rows])
        # Where windows overlap nobody can say whose it was.
        open_at = np.searchsorted(np.sort(start[mine]), start[rows], side="right")
        closed = np.searchsorted(np.sort(end[mine]), start[rows], side="right")
        owner[rows] = np.where(open_at - closed == 1, alone, -1)
    return owner


def _holding(windows: I64, start: I64, end: I64, moments: I64) -> I64:
    """The window that began last before each moment and still runs; -1 for none."""
    if not len(windows):
        return np.full(len(moments), -1, np.int64)
    order = windows[np.argsort(start[windows], kind="stable")]
    at = np.searchsorted(start[order], moments, side="right") - 1
    near = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (end[near] > moments), near, -1)


def _whole_processes(work: Work, start: I64, end: I64, process: I64) -> tuple[Windows, I64]:
    """One window a process with device work; its thread is the one that launched most."""
    device = np.flatnonzero(work.is_device)
    used, place = np.unique(process[device], return_inverse=True)
    first = np.full(len(used), np.iinfo(np.int64).max)
    last = np.full(len(used), np.iinfo(np.int64).min)
    np.minimum.at(first, place, start[device])
    np.maximum.at(last, place, end[device])
    thread = np.full(len(used), -1, np.int64)
    for number, one in enumerate(used.tolist()):
        calls = work.launched_by[device[process[device] == one]]
        calls = calls[calls >= 0]
        if len(calls):
            thread[number] = np.bincount(work.thread[calls]).argmax()
            first[number] = min(first[number], start[calls].min())
    window = np.full(len(start), -1, np.int64)
    window[device] = place
    none = np.full(len(used), -1, np.int64)
    return Windows("process", none, used.astype(np.int64), thread, first, last), window
