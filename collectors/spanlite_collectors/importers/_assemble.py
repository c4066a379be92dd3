"""From rows in any order to spans with ids, parents, traces and links.

The first pass (`add`) only spills rows to disk. `finish` then goes through the host rows
in time order, nesting ranges and calls, and after that through the device rows, each of
which finds the call that launched it. Memory holds the text, one entry a launch that a
device row names, and one group of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind

from spanlite_collectors.importers._emit import Emitter, Links
from spanlite_collectors.importers._events import (
    EVENT,
    I64,
    U64,
    EventBuffer,
    Launches,
    Rows,
    Strings,
)
from spanlite_collectors.importers._launches import KeySet, SpanTable, find, is_call, launch_keys
from spanlite_collectors.importers._nesting import nest
from spanlite_collectors.importers._spill import Spill
from spanlite_collectors.importers._traces import Scopes, TraceAssigner
from spanlite_collectors.importers.report import ImportReport
from spanlite_collectors.sinks import SpanSink

#: Among ranges of equal start and end on a thread, the outer one first.
_RANK = {
    SpanKind.REQUEST: 0,
    SpanKind.STEP: 1,
    SpanKind.NVTX_RANGE: 2,
    SpanKind.HOST: 3,
    SpanKind.OPERATOR: 4,
    SpanKind.RUNTIME_CALL: 5,
    SpanKind.DRIVER_CALL: 6,
}
_RANKS = np.array([_RANK.get(kind, 7) for kind in SpanKind], dtype=np.int8)
_RANGES = (SpanKind.NVTX_RANGE, SpanKind.STEP, SpanKind.REQUEST)
_BARREN = (SpanKind.OVERHEAD, SpanKind.SYNC)


@dataclass
class _Open:
    """Ranges still open at the end of a group, with what later rows need of them."""

    rows: Rows
    span_id: U64
    trace: I64


class Assembler:
    """Takes event rows and gives spans to a sink."""

    def __init__(self, sink: SpanSink, report: ImportReport, per_process: bool) -> None:
        self.strings, self.launches = Strings(), Launches()
        self.events = EventBuffer(self._add)
        self._sink, self._report, self._per_process = sink, report, per_process
        self._host, self._device = Spill(), Spill()
        self._scopes = Scopes()
        self._call_keys, self._device_keys = KeySet(), KeySet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._host.__exit__(None, None, None)
        self._device.__exit__(None, None, None)

    def _add(self, rows: Rows) -> None:
        self._scopes.number(rows)
        device, host = rows[rows["on_device"]], rows[~rows["on_device"]]
        self._device_keys.add(launch_keys(device, self._per_process))
        self._call_keys.add(launch_keys(host[is_call(host)], self._per_process))
        self._device.add(device)
        self._host.add(host)

    def _make_tables(self) -> None:
        """Room for exactly those calls and operators that device rows will look up."""
        device, calls = self._device_keys.sorted(), self._call_keys.sorted()
        launched = calls[find(device, calls) >= 0]
        self._calls = SpanTable(launched)
        wanted = KeySet()
        for rows, _ in self._device.groups():
            missing = find(launched, launch_keys(rows, self._per_process)) < 0
            wanted.add(rows["external"][missing])
        self._operators = SpanTable(wanted.sorted())

    def finish(self, digest: bytes, base_ns: int, resources: list[Mapping[str, Any]]) -> None:
        """Emit everything. `resources[i]` is that of process `i`; there is at least one."""
        self.events.flush()
        self._make_tables()
        self._traces = TraceAssigner(self._scopes, digest, base_ns)
        first = int.from_bytes(blake2b(digest + b"spans", digest_size=8).digest(), "big") >> 1
        self._emit = Emitter(
            self._sink,
            self._report,
            self._traces,
            resources,
            base_ns,
            self.strings.texts(),
            self.launches.table(),
            first + 1,
        )
        self._scope_span = np.zeros(self._scopes.count, dtype=np.uint64)
        carry = _Open(np.empty(0, EVENT), np.empty(0, np.uint64), np.empty(0, np.int64))
        for rows, bound in self._host.groups():
            carry = self._host_group(rows, carry, bound)
        for rows, _ in self._device.groups():
            self._device_group(rows)
        self._report.traces = self._emit.trace_count
        self._report.steps = self._scopes.count_of(SpanKind.STEP)
        self._report.requests = self._scopes.count_of(SpanKind.REQUEST)

    def _host_group(self, rows: Rows, carry: _Open, bound: int) -> _Open:
        trace = self._traces.assign(rows)
        order = self._emit.order(rows, trace)
        rows, trace = rows[order], trace[order]
        span_id = self._emit.next_ids(len(rows))
        scoped = rows["scope"] >= 0
        self._scope_span[rows["scope"][scoped]] = span_id[scoped]
        self._remember(rows, span_id, trace)
        every = _Open(
            np.concatenate((carry.rows, rows)),
            np.concatenate((carry.span_id, span_id)),
            np.concatenate((carry.trace, trace)),
        )
        parent = _parents(every.rows)
        self._emit_host(every, parent[len(carry.rows) :], len(carry.rows))
        still = _cover_end(every.rows) > bound
        return _Open(every.rows[still], every.span_id[still], every.trace[still])

    def _emit_host(self, every: _Open, parent: I64, skip: int) -> None:
        rows, span_id, trace = every.rows[skip:], every.span_id[skip:], every.trace[skip:]
        held = parent >= 0
        at = np.maximum(parent, 0)
        near = held & (every.trace[at] == trace)
        parent_id = np.where(near, every.span_id[at], np.uint64(0))
        links: Links = {}
        for row in np.flatnonzero(held & ~near).tolist():
            links[row] = [(int(every.trace[at[row]]), int(every.span_id[at[row]]))]
        for row in np.flatnonzero(rows["kind"] == SpanKind.STEP).tolist():
            self._link_requests(links, row, int(rows["scope"][row]))
        flags = rows["flags"].copy()
        root = self._root_of(trace)
        adopt = (parent_id == 0) & (root != 0) & (root != span_id)
        parent_id = np.where(adopt, root, parent_id)
        flags[adopt] |= np.uint32(SpanFlag.PARENT_INFERRED)
        self._emit.write(rows, span_id, parent_id, trace, flags, links)

    def _root_of(self, trace: I64) -> U64:
        """The step or request that a trace is named after, 0 where it is none."""
        own = np.concatenate((self._scope_span, np.zeros(1, dtype=np.uint64)))
        root: U64 = own[np.minimum(trace, len(own) - 1)]
        return root

    def _link_requests(self, links: Links, row: int, scope: int) -> None:
        targets = links.setdefault(row, [])
        for request in self._traces.requests_of(scope):
            target = (request, int(self._scope_span[request]))
            if target[1] and target not in targets:
                targets.append(target)
        if not targets:
            del links[row]

    def _remember(self, rows: Rows, span_id: U64, trace: I64) -> None:
        call = is_call(rows)
        keys = np.where(call, launch_keys(rows, self._per_process), np.uint64(0))
        self._calls.fill(keys, rows, span_id, trace)
        external = np.where(call, np.uint64(0), rows["external"])
        self._operators.fill(external, rows, span_id, trace)

    def _device_group(self, rows: Rows) -> None:
        keys = launch_keys(rows, self._per_process)
        call, operator = self._calls.look_up(keys), self._operators.look_up(rows["external"])
        between = self._calls.neighbours(keys)
        by_call = call.at >= 0
        by_operator = ~by_call & (operator.at >= 0)
        by_order = ~by_call & ~by_operator & (between.at >= 0)
        choices = [by_call, by_operator, by_order]
        rows["process"] = np.select(
            choices,
            [call.process, operator.process, between.process],
            np.maximum(rows["process"], 0),
        )
        trace = np.select(choices, [call.trace, operator.trace, between.trace], np.int64(-1))
        trace = self._traces.fill_seconds(trace, rows)
        parent_id = np.select(
            choices, [call.span_id, operator.span_id, self._root_of(trace)], np.uint64(0)
        )
        flags = rows["flags"].copy()
        flags[by_call & (rows["start"] < call.start)] |= np.uint32(SpanFlag.STARTS_BEFORE_LAUNCH)
        flags[~by_call & ~by_operator] |= np.uint32(SpanFlag.ORPHAN)
        flags[by_order & (parent_id != 0)] |= np.uint32(SpanFlag.PARENT_INFERRED)
        self._count_placed(by_call, by_operator, by_order)
        order = self._emit.order(rows, trace)
        self._emit.write(
            rows[order],
            self._emit.next_ids(len(rows)),
            parent_id[order],
            trace[order],
            flags[order],
            {},
        )

    def _count_placed(self, *ways: npt.NDArray[np.bool_]) -> None:
        words = ("correlation", "external_id", "correlation_order")
        left = len(ways[0])
        for word, way in zip(words, ways, strict=True):
            count = int(way.sum())
            left -= count
            if count:
                self._report.placed[word] += count
        if left:
            self._report.placed["none"] += left


def _cover_end(rows: Rows) -> I64:
    """Until when a row can have children; its start where it never does."""
    barren = rows["free_range"] | np.isin(rows["kind"], _BARREN)
    end: I64 = rows["start"] + rows["duration"]
    return np.where(barren, rows["start"], end)


def _parents(rows: Rows) -> I64:
    """Each row's parent as a row number, -1 for none. Rows of one thread nest by time."""
    start, end = rows["start"], rows["start"] + rows["duration"]
    rank = _RANKS[np.minimum(rows["kind"], len(_RANKS) - 1)]
    order = np.lexsort((rank, -end, start, rows["thread"], rows["process"]))
    process, thread = rows["process"][order], rows["thread"][order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (process[1:] != process[:-1]) | (thread[1:] != thread[:-1])
    sorted_parent = nest(np.cumsum(new), start[order], _cover_end(rows)[order])
    parent = np.full(len(rows), -1, dtype=np.int64)
    parent[order] = np.where(sorted_parent >= 0, order[sorted_parent], -1)
    return _widen(rows, parent, end)


def _widen(rows: Rows, parent: I64, end: I64) -> I64:
    """Ranges that outlive the call they began in (`record_function.__enter__`) move up."""
    pending = np.flatnonzero(np.isin(rows["kind"], _RANGES) & (parent >= 0))
    while len(pending):
        pending = pending[end[parent[pending]] < end[pending]]
        parent[pending] = parent[parent[pending]]
        pending = pending[parent[pending] >= 0]
    return parent
