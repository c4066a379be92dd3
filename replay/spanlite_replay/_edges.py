"""Finds what waits for what among the spans of a plan; see `work`. All vectorised."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.kinds import SpanKind

from spanlite_replay import _native
from spanlite_replay._columns import argsort, by_code, factorise

if TYPE_CHECKING:
    from spanlite_replay.recording import Recording

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Found = tuple[I64, I64, Mask]  # before, after, inferred

#: Names of calls and of CUPTI's synchronisation records, of all versions of the API.
_WAITS_FOR_DEVICE = re.compile(
    r"cu(da)?(device|ctx|context|thread)synchronize|(context|device) sync", re.IGNORECASE
)
_WAITS_FOR_SOME = re.compile(
    r"cu(da)?(stream|event)synchronize|(stream|event) sync|cu(da)?memcpy(?!.*async)", re.IGNORECASE
)
#: Copies of pinned memory, or within devices, let their call return at once.
_NEVER_HELD = re.compile(r"pinned|dtod|ptop|device\]?( -> |-to-)\[?device|peer", re.IGNORECASE)
_STREAM_WAITS = re.compile(r"cu(da)?streamwaitevent|stream wait event", re.IGNORECASE)


class Finder:
    """Positions, times, threads and streams of a plan's spans, shape (spans,) each.

    `device`: those that run on a stream. `launcher`: the call of each of them, or -1.
    """

    def __init__(
        self,
        rec: Recording,
        row: I64,
        start: I64,
        duration: I64,
        kind: npt.NDArray[np.uint8],
        thread: I32,
        stream: I32,
        device: I64,
        launcher: I64,
    ) -> None:
        self.rec, self.row, self.kind = rec, row, kind
        self.start, self.end = start, start + np.maximum(duration, 0)
        self.thread, self.stream = thread, stream
        self.device = device
        self._launcher = launcher
        #: When each of the device was launched, as far as known; by place in `device`.
        self._launch = np.where(launcher >= 0, start[launcher], start[device])
        host = (kind == SpanKind.RUNTIME_CALL) | (kind == SpanKind.DRIVER_CALL)
        self._host = np.flatnonzero(host | (kind == SpanKind.SYNC))
        codes, words = rec.dictionary("name")
        self._name, self._words = codes[row[self._host]], words
        self._processes = factorise(rec.table, ("host", "process_id"))[0]
        self._process_of_device = self._process(device)
        self._stream_waits = self._named(_STREAM_WAITS)
        adopted = self._adopt()
        self._inferred = set(adopted.tolist())
        self.is_call, self._leader = self._outermost()

    @functools.cached_property
    def launched_by(self) -> I64:
        """The outermost call that launched each span, -1 for none or not recorded."""
        out = np.full(len(self.row), -1, dtype=np.int64)
        known = self._launcher >= 0
        out[self.device[known]] = self._leader[self._launcher[known]]
        return out

    def _named(self, pattern: re.Pattern[str]) -> I64:
        """The calls whose name begins so; each name is looked at once."""
        hit = np.array([pattern.match(word) is not None for word in self._words], dtype=np.bool_)
        found: I64 = self._host[hit[self._name]]
        return found

    def _process(self, positions: I64) -> I32:
        codes: I32 = self._processes[self.row[positions]]
        return codes

    def _numbers(self, name: str, positions: I64) -> I64:
        return self.rec.integers(name, self.row[positions])

    def _by_process(self) -> Iterator[tuple[int, I64]]:
        """(process, places in `device`) of each."""
        for places in _by_group(self._process_of_device, np.arange(len(self.device))):
            yield int(self._process(self.device[places[:1]])[0]), places

    def _by_stream(self, places: I64) -> list[I64]:
        return _by_group(self.stream[self.device[places]], places)

    def _adopt(self) -> I64:
        """A synchronisation that names no thread is of the one that launched last before it."""
        syncs = self._host[(self.kind[self._host] == SpanKind.SYNC)]
        lost = np.setdiff1d(syncs[self.thread[syncs] < 0], self._stream_waits)
        if not len(lost):
            return lost
        number, home = self._numbers("stream", lost), self._process(lost)
        for process, places in self._by_process():
            for mine in (*self._by_stream(places), places):
                same = -1 if mine is places else self._number_of(mine)
                at = lost[(home == process) & (number == same)]
                last, found = self._last_launched(at, mine, longest=False)
                caller = self._launcher[last]
                self.thread[found[caller >= 0]] = self.thread[caller[caller >= 0]]
        return lost

    def _number_of(self, places: I64) -> int:
        return int(self._numbers("stream", self.device[places[:1]])[0])

    def _outermost(self) -> tuple[Mask, I64]:
        """Calls inside a call of the same thread are part of it: (calls, leader of each)."""
        calls = np.zeros(len(self.row), dtype=np.bool_)
        leader = np.arange(len(self.row))
        at = self._host[self.thread[self._host] >= 0]
        waits = self._stream_waits
        at = np.setdiff1d(at, waits[self.kind[waits] == SpanKind.SYNC], assume_unique=True)
        if not len(at):
            return calls, leader
        if _native.is_worth_it(len(at)):
            _native.outermost(at, self.start, self.end, self.thread, calls, leader)
            return calls, leader
        mine = at[by_code(self.thread[at])]
        # A running maximum that starts anew with each thread: threads lie apart in time.
        base = int(self.start[mine].min())
        wide = int(self.end[mine].max()) - base + 1
        lane = self.thread[mine].astype(np.int64) * wide
        start, end = self.start[mine] - base + lane, self.end[mine] - base + lane
        first = np.ones(len(mine), dtype=np.bool_)
        first[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
        index = np.maximum.accumulate(np.where(first, np.arange(len(mine)), 0))
        leader[mine] = mine[index]
        calls[mine[first]] = True
        return calls, leader

    # ---- events ----------------------------------------------------------------------

    def events(self) -> Found:
        """Edges of `cudaStreamWaitEvent` whose event is recorded with the wait (Kineto)."""
        is_record = self.kind[self._stream_waits] == SpanKind.SYNC
        known = self._known_waits(self._stream_waits[is_record])
        self.waits_unknown = max(0, int((~is_record).sum()) - len(known))
        if not known:
            return _none()
        correlation = self._numbers("correlation_id", self.device)
        at = np.array([wait[0] for wait in known])
        own, number = self._numbers("correlation_id", at), self._numbers("stream", at)
        home = list(zip(self._process(at), self._numbers("context", at), strict=True))
        lanes = self._lanes()
        pairs = set()
        for i, (_, source, recorded) in enumerate(known):
            before = lanes.get((*home[i], source))
            after = lanes.get((*home[i], number[i]))
            if before is None or after is None:
                continue
            last = before[correlation[before] <= recorded]
            first = after[correlation[after] >= own[i]]
            if len(last) and len(first):
                pairs.add((int(self.device[last[-1]]), int(self.device[first[0]])))
        both = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1], np.zeros(len(both), dtype=np.bool_)

    def _lanes(self) -> dict[tuple[int, int, int], I64]:
        """Places in `device` by process, context and number of the stream."""
        lanes = {}
        for process, places in self._by_process():
            for mine in self._by_stream(places):
                context = int(self._numbers("context", self.device[mine[:1]])[0])
                lanes[process, context, self._number_of(mine)] = mine
        return lanes

    def _known_waits(self, waits: I64) -> list[tuple[int, int, int]]:
        """(position, stream waited for, correlation id of the record call) where all is told."""
        texts = self.rec.table.column("attributes").take(pa.array(self.row[waits])).to_pylist()
        out = []
        for at, text in zip(waits.tolist(), texts, strict=True):
            told = json.loads(text) if text else {}
            source = told.get("wait_on_stream")
            recorded = told.get("wait_on_cuda_event_record_corr_id")
            if isinstance(source, int) and isinstance(recorded, int) and source >= 0 <= recorded:
                out.append((at, source, recorded))
        return out

    # ---- calls that wait -------------------------------------------------------------

    def syncs(self) -> Found:
        """Calls that returned only when the device had come so far."""
        whole, some = self._named(_WAITS_FOR_DEVICE), self._named(_WAITS_FOR_SOME)
        whole, some = whole[self.thread[whole] >= 0], some[self.thread[some] >= 0]
        home_whole, home_some = self._process(whole), self._process(some)
        parts = [self._own_copies()]
        for process, places in self._by_process():
            last, call = self._last_launched(whole[home_whole == process], places)
            parts.append((self.device[last], call, np.zeros(len(call), dtype=np.bool_)))
            parts.append(self._some(some[home_some == process], places))
        before, after = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        adopted = np.isin(after, list(self._inferred)) if self._inferred else False
        inferred = np.concatenate([part[2] for part in parts]) | adopted
        after = self._leader[after]
        # One edge a pair; the recorded one where there are both.
        order = np.lexsort((inferred, before, after))
        before, after, inferred = before[order], after[order], inferred[order]
        keep = self.is_call[after]
        keep[1:] &= (before[1:] != before[:-1]) | (after[1:] != after[:-1])
        return before[keep], after[keep], inferred[keep]

    def _last_launched(self, calls: I64, places: I64, longest: bool = True) -> tuple[I64, I64]:
        """(place, call) where one was launched before: the last, or that which ends last."""
        if not len(calls):
            return calls, calls
        launch = self._launch[places]
        if (launch[1:] < launch[:-1]).any():
            order = np.argsort(launch, kind="stable")
            places, launch = places[order], launch[order]
        at = np.searchsorted(launch, self.start[calls], side="left") - 1
        there = at >= 0
        last = at[there]
        if longest:
            end = self.end[self.device[places]]
            is_latest = end == np.maximum.accumulate(end)
            last = np.maximum.accumulate(np.where(is_latest, np.arange(len(places)), 0))[last]
        return places[last], calls[there]

    def _some(self, calls: I64, places: I64) -> Found:
        """A stream or an event: known with CUPTI's record, else told from the times.

        What ended last while the call waited, and was launched before, is what it waited for.
        """
        if not len(calls):
            return _none()
        told = self.kind[calls] == SpanKind.SYNC
        stream = self._numbers("stream", calls)
        parts = [
            self._last_launched(calls[told & (stream == self._number_of(mine))], mine)
            for mine in self._by_stream(places)
        ]
        before, after = (np.concatenate(column) for column in zip(*parts, strict=True))
        rest = np.setdiff1d(calls, after)
        order = places[np.argsort(self.end[self.device[places]], kind="stable")]
        end = self.end[self.device[order]]
        at = np.searchsorted(end, self.end[rest], side="right") - 1
        waited = (at >= 0) & (end[at] > self.start[rest])
        waited &= self._launch[order[at]] < self.start[rest]
        before = self.device[np.concatenate((before, order[at[waited]]))]
        inferred = np.arange(len(before)) >= len(after)
        return before, np.concatenate((after, rest[waited])), inferred

    def _own_copies(self) -> Found:
        """A copy from or to pageable memory holds its call until it is done."""
        codes, words = self.rec.dictionary("name")
        free = np.array([_NEVER_HELD.search(word) is not None for word in words], dtype=np.bool_)
        copies = (self.kind[self.device] == SpanKind.MEMCPY) & (self._launcher >= 0)
        copies &= ~free[codes[self.row[self.device]]]
        copy, call = self.device[copies], self._leader[self._launcher[copies]]
        held = self.end[call] >= self.end[copy]
        return copy[held], call[held], np.ones(int(held.sum()), dtype=np.bool_)

    # ---- graphs ----------------------------------------------------------------------

    def graphs(self) -> Found:
        """A graph is one item of its stream: nothing of it starts before what came before it
        there, and what comes next waits for all of it. Its stream is taken for that of its
        first node."""
        lanes, _ = self._in_lanes
        first, last, call = self._branches()
        # The branch that starts first lies on the graph's own stream.
        branch = np.lexsort((lanes[first], call))
        heads = np.flatnonzero(np.diff(call[branch], prepend=-1))
        home = np.repeat(branch[heads], np.diff(np.append(heads, len(branch))))
        other, own = branch[branch != home], home[branch != home]
        previous, following = self._beside(first[own], -1), self._beside(last[own], 1)
        before = np.concatenate((previous, lanes[last[other]]))
        after = np.concatenate((lanes[first[other]], following))
        there = (before >= 0) & (after >= 0)
        return before[there], after[there], np.ones(int(there.sum()), dtype=np.bool_)

    def _branches(self) -> tuple[I64, I64, I64]:
        """(first place in the lanes, last, call) of each call's part of a stream, of those calls
        that launched several spans."""
        lanes, stream = self._in_lanes
        launched = self.launched_by[lanes]
        new = np.ones(len(lanes), dtype=np.bool_)
        new[1:] = (launched[1:] != launched[:-1]) | (stream[1:] != stream[:-1])
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(lanes))[: len(first)] - 1
        call = launched[first]
        spans = np.bincount(call + 1, weights=last - first + 1)
        several = (call >= 0) & (spans[call + 1] > 1)
        first, last, call = first[several], last[several], call[several]
        # What another call's spans interrupt is one part all the same.
        order = argsort(stream[first] * np.int64(len(self.row)) + call, stable=True)
        first, last, call = first[order], last[order], call[order]
        new = np.ones(len(call), dtype=np.bool_)
        new[1:] = (call[1:] != call[:-1]) | (stream[first[1:]] != stream[first[:-1]])
        return first[new], last[np.append(new[1:], True)[: len(new)]], call[new]

    @functools.cached_property
    def _in_lanes(self) -> tuple[I64, I32]:
        """(positions, stream by stream and in order within one; the stream of each)."""
        stream = self.stream[self.device]
        order = by_code(stream)
        return self.device[order], stream[order]

    def _beside(self, places: I64, step: int) -> I64:
        """What lies one step on in the lane of each place, -1 for nothing."""
        lanes, stream = self._in_lanes
        there = np.clip(places + step, 0, max(len(lanes) - 1, 0))
        same = (there != places) & (stream[there] == stream[places])
        return np.where(same, lanes[there], -1)

    # ---- what was observed -----------------------------------------------------------

    def observed(self, home: pa.Table) -> Found:
        """For each span, what had ended last on each other stream of its process and device."""
        device, _ = factorise(home, home.column_names)
        before, after = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for ops in _by_group(device[self.stream[self.device]], self.device):
            if _native.is_worth_it(len(ops)):
                pair = self._observed_at_once(ops)
                before.append(pair[0])
                after.append(pair[1])
                continue
            lanes = _by_group(self.stream[ops], ops)
            starts = [self.start[lane] for lane in lanes]
            ends = [np.maximum.accumulate(self.end[lane]) for lane in lanes]
            for i, j in itertools.permutations(range(len(lanes)), 2):
                done, begun = _last_before(ends[i], starts[j])
                pair = _in_order(lanes[i], lanes[j], lanes[i][done], lanes[j][begun])
                before.append(pair[0])
                after.append(pair[1])
        count = sum(len(part) for part in before)
        return np.concatenate(before), np.concatenate(after), np.ones(count, dtype=np.bool_)

    def _observed_at_once(self, ops: I64) -> tuple[I64, I64]:
        """(before, after) among the spans of one process and device."""
        code = self.stream[ops]
        count = np.bincount(code)
        used = np.flatnonzero(count)
        lane = (np.cumsum(count > 0) - 1).astype(np.int32)[code]
        bounds = np.append(0, np.cumsum(count[used]))
        lanes = ops[by_code(lane)]
        return _native.observed(ops, lane, lanes, bounds, self.start, self.end)


def _last_before(ends: I64, starts: I64) -> tuple[I64, I64]:
    """(end, start), by place, of each start before which an end came that the one before it had
    not seen: the last such end. Both sorted; the fewer are looked up among the more."""
    if len(ends) < len(starts):
        begun = np.searchsorted(starts, ends, side="left")
        done = np.flatnonzero(np.append(begun[1:] != begun[:-1], True) & (begun < len(starts)))
        return done, begun[done]
    last = np.searchsorted(ends, starts, side="right") - 1
    begun = np.flatnonzero((last >= 0) & (np.diff(last, prepend=-1) != 0))
    return last[begun], begun


def _in_order(lane: I64, mine: I64, before: I64, after: I64) -> tuple[I64, I64]:
    """The edges, none backwards: of spans without length at one moment, positions decide."""
    odd = before > after
    if not odd.any():
        return before, after
    earlier = np.searchsorted(lane, after[odd]) - 1
    later = np.searchsorted(mine, before[odd])
    first, second = earlier >= 0, later < len(mine)
    return (
        np.concatenate((before[~odd], lane[earlier[first]], before[odd][second])),
        np.concatenate((after[~odd], after[odd][first], mine[later[second]])),
    )


def _by_group(code: I32, positions: I64) -> list[I64]:
    """Positions of each code, order kept. Both shape (n,)."""
    if len(code) and code.min() == code.max():
        return [positions]
    order = by_code(code)
    sorted_codes = code[order]
    cuts = np.flatnonzero(sorted_codes[1:] != sorted_codes[:-1]) + 1
    return np.split(positions[order], cuts) if len(positions) else []


def _none() -> Found:
    return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
