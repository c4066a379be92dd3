"""What each device span and each call came after, ready to be followed backwards."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from spanlite.kinds import SpanKind

from spanlite_replay.bottlenecks.recorded import BOOL, I64, Recorded
from spanlite_replay.sim.model import default_model, room, table_devices
from spanlite_replay.work import EdgeKind

#: A launch on an idle stream takes at least this share of all such launches' time.
QUICK_SHARE = 0.1
#: Without any launch on an idle stream: what an H100 takes.
USUAL_LATENCY_NS = 4_000
#: A kernel that fills the GPU lets others in as its last blocks end, this long before its end; and
#: they start this long after it at most.
LAST_BLOCKS_NS, AFTER_FULL_NS = 30_000, 10_000
#: So much of all room is as good as all of it.
FULL = 0.99
#: Calls that wait for the device, and CUPTI's synchronisation records.
WAITS = re.compile(r"synchroni[sz]e|\bsync\b|cu(da)?memcpy(?!.*async)", re.IGNORECASE)


@dataclass(frozen=True)
class Links:
    """Plain lists, as the walk takes one span at a time; -1 says "none"."""

    before: list[int]  # the span before it on its stream
    launch: list[int]  # the call that launched it
    other: list[int]  # what ended last on another stream before it started
    other_known: list[bool]  # that was recorded as a dependency, not told from the times
    made_room: list[int]  # the kernel of another stream that filled the GPU until it started
    waited_for: list[int]  # of a call: the device span whose end it waited for
    calls: dict[int, tuple[list[int], list[int]]]  # thread -> (starts, positions)
    launches: BOOL  # which spans are calls that launched something
    latency_ns: list[int]  # from a call's start to the device's at best, by the call's name


def link(rec: Recorded) -> Links:
    """Find them all; vectorised."""
    work = rec.work
    count = len(rec.start)
    order, bounds = work.stream_order()
    before = np.full(count, -1, np.int64)
    before[order[1:]] = order[:-1]
    before[order[bounds[:-1][bounds[:-1] < len(order)]]] = -1
    other, known = _others(rec)
    launches = np.zeros(count, np.bool_)
    launches[work.launched_by[work.launched_by >= 0]] = True
    return Links(
        before.tolist(),
        work.launched_by.tolist(),
        other.tolist(),
        known.tolist(),
        _made_room(rec).tolist(),
        _waits(rec).tolist(),
        _calls(rec),
        launches,
        _latency(rec, before),
    )


def _others(rec: Recorded) -> tuple[I64, BOOL]:
    edges = rec.work.edges
    other = np.full(len(rec.start), -1, np.int64)
    known = np.zeros(len(rec.start), np.bool_)
    for kind, sure in ((EdgeKind.OBSERVED, False), (EdgeKind.EVENT, True)):
        rows = np.flatnonzero((edges.kind == kind) & rec.is_device[edges.after])
        rows = rows[np.argsort(rec.end[edges.before[rows]], kind="stable")]
        other[edges.after[rows]] = edges.before[rows]  # of several the one that ended last
        known[edges.after[rows]] = sure
    return other, known


def _made_room(rec: Recorded) -> I64:
    """For each kernel the one of another stream that held all SMs and was ending as it started."""
    kernel = np.flatnonzero(rec.kind == SpanKind.KERNEL)
    found = np.full(len(rec.start), -1, np.int64)
    held = room(rec.recording, rec.work.row[kernel], rec.kind[kernel], default_model())
    gpu = table_devices(rec.work)[rec.work.stream[kernel]]
    for one in np.unique(gpu):
        mine = kernel[gpu == one]
        full = mine[held[gpu == one] >= FULL]
        full = full[np.argsort(rec.end[full], kind="stable")]
        if not len(full):
            continue
        at = np.searchsorted(rec.end[full], rec.start[mine] - AFTER_FULL_NS)
        near = full[np.minimum(at, len(full) - 1)]
        good = (at < len(full)) & (rec.end[near] <= rec.start[mine] + LAST_BLOCKS_NS)
        good &= (rec.start[near] < rec.start[mine]) & (
            rec.work.stream[near] != rec.work.stream[mine]
        )
        found[mine[good]] = near[good]
    return found


def _waits(rec: Recorded) -> I64:
    edges = rec.work.edges
    waited = np.full(len(rec.start), -1, np.int64)
    rows = np.flatnonzero(edges.kind == EdgeKind.SYNC)
    before, after = edges.before[rows], edges.after[rows]
    done = rec.end[before] <= rec.end[after]
    before, after = before[done], after[done]
    order = np.argsort(rec.end[before], kind="stable")
    waited[after[order]] = before[order]
    return _waits_for_orphans(rec, waited)


def _waits_for_orphans(rec: Recorded, waited: I64) -> I64:
    """Work whose launch is not recorded may have been waited for too: what ended last."""
    named = np.array([bool(WAITS.search(name)) for name in rec.names])[rec.name]
    calls = np.flatnonzero(rec.work.is_call & (named | (waited >= 0)))
    orphans = np.flatnonzero(rec.is_device & (rec.work.launched_by < 0))
    waited = waited.copy()
    for one in np.unique(rec.process[orphans]):
        mine = orphans[rec.process[orphans] == one]
        mine = mine[np.argsort(rec.end[mine], kind="stable")]
        rows = calls[rec.process[calls] == one]
        at = np.searchsorted(rec.end[mine], rec.end[rows], side="right") - 1
        near = mine[np.maximum(at, 0)]
        known = np.where(waited[rows] >= 0, rec.end[waited[rows]], rec.start[rows])
        later = (at >= 0) & (rec.end[near] > np.maximum(known, rec.start[rows]))
        waited[rows[later]] = near[later]
    return waited


def _calls(rec: Recorded) -> dict[int, tuple[list[int], list[int]]]:
    order, bounds = rec.work.launch_order()
    return {
        thread: (rec.start[mine].tolist(), mine.tolist())
        for thread in range(len(bounds) - 1)
        if len(mine := order[bounds[thread] : bounds[thread + 1]])
    }


def _latency(rec: Recorded, before: I64) -> list[int]:
    """From call to start of launches on an idle stream, the quick ones of each call's name."""
    work = rec.work
    device = np.flatnonzero(rec.is_device & (work.launched_by >= 0))
    call = work.launched_by[device]
    ahead = before[device]
    idle = (ahead < 0) | (rec.end[np.maximum(ahead, 0)] <= rec.start[call])
    took = (rec.start[device] - rec.start[call])[idle]
    name = rec.name[call[idle]]
    found = [USUAL_LATENCY_NS] * len(rec.names)
    for one in np.unique(name).tolist():
        mine = took[(name == one) & (took > 0)]
        if len(mine):
            found[one] = int(np.quantile(mine, QUICK_SHARE))
    return found
