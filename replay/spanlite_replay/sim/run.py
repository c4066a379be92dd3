"""Run a plan's work on a model."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spanlite_replay.recording import Recording, factorise
from spanlite_replay.sim import engine as events
from spanlite_replay.sim import native
from spanlite_replay.sim.flat import Fan, Flat, Ran
from spanlite_replay.sim.host import Threads, host_times, threads_of
from spanlite_replay.sim.model import (
    GpuModel,
    Host,
    classes,
    engine,
    launch_lead,
    room,
    solo_ns,
    table_devices,
)
from spanlite_replay.sim.serial import is_serial, run_serial
from spanlite_replay.sim.waits import with_untold_waits
from spanlite_replay.work import EdgeKind, Work

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Simulated:
    """Start and end of each span of the work, shape (spans,), on the plan's time line."""

    start_ns: I64
    end_ns: I64
    events: int  # starts and ends of device spans and of calls
    given_up: int  # waits that could never have ended (a clock anomaly), let go

    @property
    def makespan_ns(self) -> int:
        """From the first start to the last end."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self.start_ns) else 0


def simulate(
    work: Work,
    rec: Recording,
    model: GpuModel,
    host: Host = "open",
    duration_ns: I64 | None = None,
) -> Simulated:
    """Run it. `duration_ns`: other durations than recorded, shape (spans,), for what-ifs.

    Each process is run by itself. Kernels share a GPU with those of their own process; of a
    process with several GPUs, they do not slow each other down.
    """
    work = with_untold_waits(work, rec)
    base = int(work.start_ns[0]) if len(work) else 0
    start = (work.start_ns - base).astype(np.float64)
    took = work.duration_ns if duration_ns is None else duration_ns
    end = start + np.maximum(took, 0)
    threads = threads_of(work, rec, model, host, base)
    device, bounds = work.stream_order()
    with _no_collection():
        parts = Parts(work, rec, model, host, threads, device, bounds, start, took)
        given_up = parts.run(start, end)
    return Simulated(
        np.rint(start).astype(np.int64) + base,
        np.rint(end).astype(np.int64) + base,
        2 * len(device) + 2 * int(work.is_call.sum()),
        given_up,
    )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of small objects, none in a cycle: the collector would look at them in vain."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Parts:
    """What each process's program is cut from. Arrays by place in `device` (stream order)."""

    def __init__(
        self,
        work: Work,
        rec: Recording,
        model: GpuModel,
        host: Host,
        threads: Threads,
        device: I64,
        bounds: I64,
        due: F64,
        took: I64,
    ) -> None:
        self.work, self.rec, self.model, self.threads = work, rec, model, threads
        self.device = device
        self.kinds = classes(work, device)
        row, kind = work.row[device], work.kind[device]
        self.engine = engine(rec, row, kind)
        self.room = room(rec, row, kind, model)
        self.lane = work.stream[device]
        self.gpu = table_devices(work)[self.lane] if len(device) else self.lane
        # Sorted by value as streams and threads are: what is of one process lies together.
        processes, _ = factorise(rec.table, ("host", "process_id"))
        self.process = processes[row]
        calls = work.launch_order()[0]
        self.waiting = calls[threads.waits[calls]]
        self.waiting_process = processes[work.row[self.waiting]]
        heads = np.flatnonzero(np.diff(threads.segment[calls], prepend=-1))
        self.segment_process = processes[work.row[calls[heads]]]
        self.solo = self._solo(took[device], work.duration_ns[device])
        self.first = np.zeros(len(device), dtype=np.bool_)
        self.first[bounds[:-1][np.diff(bounds) > 0]] = True
        self._launches(host, due)

    def _solo(self, took: I64, recorded: I64) -> F64:
        start = self.rec.start_ns[self.work.row[self.device]]
        kernel = self.engine == 0
        alone = solo_ns(start, start + recorded, kernel, self.room, self.model, self.gpu)
        # A kernel made twice as fast is so alone as well.
        scale = np.maximum(took, 0) / np.maximum(recorded, 1)
        return np.where(took == recorded, alone, alone * scale)

    def _launches(self, host: Host, due: F64) -> None:
        """When each can start as far as its launch goes: segment, after, floor, gap."""
        call = self.work.launched_by[self.device]
        known = call >= 0
        start = self.rec.start_ns[self.work.row]
        lead = launch_lead(self.work, call, self.threads.took, self.kinds, self.model)
        lead += self._behind_the_graph(call, start)
        self.segment = np.where(known, self.threads.segment[call], -1)
        self.after = np.where(known, self.threads.after[call] + lead, 0.0)
        self.floor = np.where(known, self.threads.floor[call] + lead, due[self.device])
        self.gap = np.asarray(self.model.gap_ns)[self.kinds]
        if host == "closed":
            # Its launch was not recorded: it follows its stream as it did.
            lone = np.flatnonzero(~known & ~self.first)
            begin = (start[self.device] - start.min()).astype(np.float64)
            end = begin + np.maximum(self.work.duration_ns[self.device], 0)
            self.gap[lone] = np.maximum(begin[lone] - end[lone - 1], 0)
            self.floor[lone] = -np.inf

    def _behind_the_graph(self, call: I64, start: I64) -> F64:
        """A graph's first node on each further stream starts so long after its first of all."""
        out = np.zeros(len(call))
        nodes = np.flatnonzero(self.kinds == 2)
        if not len(nodes):
            return out
        begin = start[self.device[nodes]]
        first = np.full(len(self.work), np.iinfo(np.int64).max)
        np.minimum.at(first, call[nodes], begin)
        pair = call[nodes] * (int(self.lane.max()) + 1) + self.lane[nodes]
        _, head = np.unique(pair, return_index=True)  # the first of each: nodes lie in order
        out[nodes[head]] = begin[head] - first[call[nodes[head]]]
        return out

    def run(self, start: F64, end: F64) -> int:
        """Write the times of all spans; returns how many waits were given up."""
        given_up = 0
        returned = np.full(len(self.work), np.nan)
        begins = self.threads.begins.copy()
        for process in np.unique(self.process):
            one = self.one(int(process))
            ran = one.run()
            given_up += ran.given_up
            start[self.device[one.spans]] = ran.start
            end[self.device[one.spans]] = ran.end
            returned[self.waiting[one.calls]] = ran.returned
            begins[one.segments] = ran.begins
        host_times(self.work, self.threads, begins, returned, start, end)
        return given_up

    def one(self, process: int) -> Process:
        """The part of a process, by the number it has in `process`."""
        spans, calls, segments = (
            slice(*np.searchsorted(codes, [process, process + 1]).tolist())
            for codes in (self.process, self.waiting_process, self.segment_process)
        )
        several = len(np.unique(self.gpu[spans])) > 1
        return Process(self, spans, calls, segments, not several)


@dataclass(frozen=True)
class Process:
    """The part of one process: slices of `device`, of the waiting calls, of the segments."""

    parts: Parts
    spans: slice
    calls: slice
    segments: slice
    shares: bool  # whether its kernels share one GPU

    def run(self) -> Ran:
        """The same times whichever way."""
        if self.spans.stop - self.spans.start >= native.WORTH_IT and native.is_there():
            return native.run(self.flat())
        return run_serial(self) if is_serial(self) else events.run(self.flat())

    def edges(self, sync: bool) -> tuple[I64, I64]:
        """(place of what ends first, place of what waits: of a span, or of a waiting call)."""
        work, parts = self.parts.work, self.parts
        mine = (work.edges.kind == EdgeKind.SYNC) == sync
        place = np.full(len(work), -1, dtype=np.int64)
        place[parts.device[self.spans]] = np.arange(self.spans.stop - self.spans.start)
        before = place[work.edges.before[mine]]
        if sync:
            place[parts.waiting[self.calls]] = np.arange(self.calls.stop - self.calls.start)
        after = place[work.edges.after[mine]]
        inside = (before >= 0) & (after >= 0)
        return before[inside], after[inside]

    def flat(self) -> Flat:
        """For the event loop."""
        p, count = self.parts, self.spans.stop - self.spans.start
        before, after = self.edges(sync=False)
        first = p.first[self.spans]
        waiting_for = (~first).astype(np.int64) + np.bincount(after, minlength=count)
        span, call = self.edges(sync=True)
        waiting = p.waiting[self.calls]
        segment = p.threads.segment[waiting] - self.segments.start
        begins = p.threads.begins[self.segments]
        last_call = np.full(len(begins), -1, dtype=np.int64)
        last_call[segment] = np.arange(len(waiting))
        following = np.full(len(waiting), -1, dtype=np.int64)
        follows = p.threads.follows[self.segments]
        place = np.full(len(p.work), -1, dtype=np.int64)
        place[waiting] = np.arange(len(waiting))
        has = follows >= 0
        following[place[follows[has]]] = np.flatnonzero(has)
        known = p.segment[self.spans] >= 0
        streams = len(np.unique(p.lane[self.spans]))
        contention = p.model.contention if self.shares else 0.0
        followed = np.flatnonzero(~np.append(first[1:], True))  # by the next of their stream
        return Flat(
            segment=np.where(known, p.segment[self.spans] - self.segments.start, -1),
            after=p.after[self.spans],
            floor=p.floor[self.spans],
            gap=np.where(waiting_for > 0, p.gap[self.spans], 0.0),
            solo=p.solo[self.spans],
            engine=p.engine[self.spans].astype(np.int64),
            room=p.room[self.spans] * (1.0 if self.shares else 0.0),
            waiting_for=waiting_for,
            then=Fan.of(
                np.concatenate((followed, before)), np.concatenate((followed + 1, after)), count
            ),
            wakes=Fan.of(span, call, count),
            call_segment=segment,
            call_after=p.threads.after[waiting],
            call_floor=p.threads.floor[waiting],
            call_cost=p.threads.cost[waiting],
            call_delay=p.threads.delay[waiting],
            call_waits=np.bincount(call, minlength=len(waiting)),
            call_next=following,
            begins=begins,
            last_call=last_call,
            by_plan=np.argsort(p.device[self.spans]),
            pace=np.array([max(1, running) ** contention for running in range(streams + 1)]),
        )
