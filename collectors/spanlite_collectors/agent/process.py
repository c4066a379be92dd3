"""One process: rows wait here until what they belong to is known, then become spans.

A range is recorded when it ends, a kernel when CUPTI hands its buffer out, so neither comes in
order. Host rows of a thread wait for the step they may lie in, and no longer than `hold_ns`;
device rows wait for the call that launched them and for the end of their window.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.flags import SpanFlag
from spanlite.kinds import CALL_KINDS, SpanKind

from spanlite_collectors.agent.calls import COPIES, KERNEL_LAUNCHES
from spanlite_collectors.agent.convert import Converted
from spanlite_collectors.agent.emit import Emitter
from spanlite_collectors.agent.graphs import GraphStages
from spanlite_collectors.agent.launches import CallTable
from spanlite_collectors.agent.messages import Context
from spanlite_collectors.agent.place import I64, Ids, Placed, place
from spanlite_collectors.agent.ring import Records
from spanlite_collectors.agent.rows import HOST, Rows, Texts, concat, empty, pick
from spanlite_collectors.agent.windows import Windows
from spanlite_collectors.agent.work import work_of_steps
from spanlite_collectors.importers._json_text import to_json
from spanlite_collectors.sinks import SpanSink

_FOREVER = np.iinfo(np.int64).max
#: Of a step's number and one, which a span keeps as a signed number.
_MOST_STEP = np.iinfo(np.int64).max
_TRACK_GROUP = np.zeros(256, np.int8)
_TRACK_GROUP[SpanKind.SYNC] = 1


@dataclass(frozen=True)
class Patience:
    """How long rows wait, in ns."""

    #: CUPTI's buffers come within about a second.
    grace_ns: int = 1_500_000_000
    #: A step or range that lasts longer than this does not hold up what lies in it.
    hold_ns: int = 15_000_000_000
    #: Rows that wait at most, of either kind; more than this and all go as they are.
    max_rows: int = 2_000_000


class ProcessSpans:
    """Takes rows of one process in any order and writes spans to a sink."""

    def __init__(
        self,
        sink: SpanSink,
        resource: Mapping[str, Any],
        identity: str,
        patience: Patience | None = None,
        measure: Callable[[Rows, Texts], None] = lambda rows, texts: None,
    ) -> None:
        self.texts, self.windows = Texts(), Windows()
        self._emitter = Emitter(sink, resource, self.texts, self.windows)
        self._patience, self._measure = patience or Patience(), measure
        self._ids = Ids(identity, secrets.randbits(63) | 1)
        self._host = empty(0, HOST)
        # What came since the last flush, and device rows as they came: joined once they are ready.
        self._new_host: list[Rows] = []
        self._device: list[Rows] = []
        self._carry = Placed.nothing()
        self._calls = CallTable()
        self._links: dict[int, tuple[Context, ...]] = {}
        self._steps: list[Records] = []
        self._step_end: dict[int, int] = {}
        self._settled_ns = 0
        self.graphs = GraphStages()

    @property
    def waiting(self) -> int:
        """Rows that are not spans yet."""
        return len(self._host) + sum(map(len, [*self._new_host, *self._device]))

    @property
    def written(self) -> int:
        """Spans handed to the sink so far."""
        return self._emitter.written

    def take(self, converted: Converted) -> None:
        """Add what one drain gave."""
        self._new_host.append(converted.host)
        if len(converted.device):
            self._device.append(converted.device)
        if len(converted.steps):
            self._steps.append(converted.steps)
            self.windows.take_steps(converted.steps, converted.step_names)
        if len(converted.windows):
            self.windows.take(converted.windows)
        self._links |= converted.links

    def flush(self, now_ns: int, final: bool = False) -> None:
        """Write what is complete; everything if `final`."""
        self._settled_ns = _FOREVER if final else now_ns - 2 * self._patience.grace_ns
        self._host = concat([self._host, *self._new_host])
        self._new_host.clear()
        self._mark_steps()
        self.windows.settle(
            _FOREVER if final else now_ns - self._patience.grace_ns,
            lambda window, steps: work_of_steps(window, steps, self._host, self._device),
        )
        self._flush_host(now_ns, final or len(self._host) > self._patience.max_rows)
        self._flush_device(now_ns, final or sum(map(len, self._device)) > self._patience.max_rows)
        oldest = now_ns - self._patience.hold_ns
        # Threads come and go.
        self._step_end = {t: end for t, end in self._step_end.items() if end > oldest}
        if self._calls.worth_forgetting(oldest):
            self._learn_captures()
            self._calls.forget_before(oldest)
        if self.texts.crowded:
            rows = (self._host, *self._device, self._carry.rows)
            columns = [part[name] for part in rows for name in ("name", "attributes")]
            calls = (self._calls.path, self._calls.name)
            self.texts.renumber([*columns, self._carry.path, *calls])

    def _mark_steps(self) -> None:
        """What the agent says is a step becomes one, with what its window covered of it."""
        steps, self._steps = self._steps, []
        if not steps:
            return
        records = np.concatenate(steps)
        for thread, end in zip(
            records["thread_id"].tolist(), records["end_ns"].tolist(), strict=True
        ):
            self._step_end[thread] = max(end, self._step_end.get(thread, 0))
        order = np.argsort(records["start_ns"], kind="stable")
        records = records[order]
        starts = records["start_ns"].astype(np.int64)
        at = np.minimum(np.searchsorted(starts, self._host["start"]), len(starts) - 1)
        same = (starts[at] == self._host["start"]) & (
            records["thread_id"][at] == self._host["thread"]
        )
        mine = np.flatnonzero(same & ~np.isin(self._host["kind"], CALL_KINDS))
        self._host["kind"][mine] = SpanKind.STEP
        for row, record in zip(mine.tolist(), records[at[mine]], strict=True):
            if record["window"]:
                self._cover(row, record)

    def _cover(self, row: int, record: Any) -> None:
        covered = bool(record["covered"])
        number = int(record["number"]) + 1 & _MOST_STEP  # whatever a damaged ring says
        self._host["step"][row] = number if covered else 0
        if not covered:
            self._host["flags"][row] |= np.uint32(SpanFlag.PARTIAL)
        said = {"capture.covered": covered, "capture.window": int(record["window"])}
        code = int(self._host["attributes"][row])
        text = to_json(said)
        if code >= 0:
            text = self.texts.text(code)[:-1] + "," + text[1:]
        self._host["attributes"][row] = self.texts.code(text)

    def _flush_host(self, now_ns: int, everything: bool) -> None:
        rows = self._host
        if not len(rows):
            return
        bound = self._bounds(rows, now_ns, everything)
        ready = rows["start"] < bound
        if not ready.any():
            return
        self._host = pick(rows, ~ready)
        new, links = place(self._carry, pick(rows, ready), self._ids, self.texts, self._links)
        self._calls.add(new)
        self._measure(new.rows, self.texts)
        self._emitter.write(
            new.rows, new.span_id, new.parent_id, (new.low, new.high), links, new.cut, new.step
        )
        for number in new.rows["id"][new.rows["kind"] == SpanKind.STEP].tolist():
            self._links.pop(number, None)
        # Ranges stay a while, since calls in them may come late.
        every = Placed.join([self._carry, new])
        end = every.rows["start"] + every.rows["duration"]
        is_range = ~np.isin(every.rows["kind"], (*CALL_KINDS, SpanKind.OVERHEAD))
        recent = end > now_ns - 2 * self._patience.grace_ns
        still = end > int(bound.min())
        self._carry = (
            every.take(still | (is_range & recent)) if not everything else Placed.nothing()
        )

    def _bounds(self, rows: Rows, now_ns: int, everything: bool) -> npt.NDArray[np.int64]:
        """Before which start each row is complete, shape (n,)."""
        bound = np.full(len(rows), _FOREVER if everything else now_ns - self._patience.grace_ns)
        if everything:
            return bound
        since = now_ns - self._patience.hold_ns
        threads, inverse = np.unique(rows["thread"], return_inverse=True)
        limits = np.full(len(threads), _FOREVER)
        for number, thread in enumerate(threads.tolist()):
            end = self._step_end.get(thread, 0)
            if end > since:
                limits[number] = end
        # A parent that has not ended yet is known by its children only.
        known = np.concatenate([np.zeros(1, np.uint64), rows["id"], self._carry.rows["id"]])
        waits = ~np.isin(rows["parent_id"], known)
        # What steps in a window stand for is known once it has closed and their work is in.
        waits |= ~self.windows.known(rows["window"])
        waits &= rows["start"] > since
        np.minimum.at(limits, inverse.ravel()[waits], rows["start"][waits])
        return np.minimum(bound, limits[inverse.ravel()])

    def _flush_device(self, now_ns: int, everything: bool) -> None:
        ready = list(self._ready_device(now_ns, everything))
        if not ready:
            return
        rows = concat([part for part, _ in ready])
        call = np.concatenate([part for _, part in ready])
        found, at = call >= 0, np.maximum(call, 0)
        table = self._calls
        low, high = self._ids.of_seconds(rows["start"])
        if len(table):
            low = np.where(found, table.low[at], low)
            high = np.where(found, table.high[at], high)
            early = found & (rows["start"] < table.start[at])
            rows["flags"][early] |= np.uint32(SpanFlag.STARTS_BEFORE_LAUNCH)
            rows["flags"][found & table.cut[at]] |= np.uint32(SpanFlag.PARTIAL)
            table.used[at[found]] = True
        rows["flags"][~found] |= np.uint32(SpanFlag.ORPHAN)
        parent = np.where(found, table.span_id[at], np.uint64(0)) if len(table) else low * 0
        path = np.where(found, table.path[at], -1) if len(table) else np.full(len(rows), -1)
        self._stages(rows, low, path)
        self._local_memory(rows)
        self._measure(rows, self.texts)
        step = np.where(found, table.step[at], np.uint64(0)) if len(table) else low * 0
        self._write_device(rows, parent, low, high, step)

    def _ready_device(self, now_ns: int, everything: bool) -> Iterator[tuple[Rows, I64]]:
        """Rows whose call is known and whose window has closed, with the calls' places.

        They leave `_device`.
        """
        waiting, self._device = self._device, []
        for rows in waiting:
            call = self._calls.find(rows, self.windows.joined)
            late = rows["start"] < now_ns - self._patience.hold_ns
            go = ((call >= 0) & self.windows.known(rows["window"])) | late | everything
            if go.all():
                yield rows, call
                continue
            self._device.append(pick(rows, ~go) if go.any() else rows)
            if go.any():
                yield pick(rows, go), call[go]

    def _write_device(self, rows: Rows, parent: Any, low: Any, high: Any, step: Any) -> None:
        keys = [rows["stream"], rows["context"], rows["device"], _TRACK_GROUP[rows["kind"]]]
        several = [key for key in keys if (key != key[0]).any()]
        order = np.lexsort((rows["start"], *several))
        ids = self._ids.spans(len(rows))
        trace = low[order], high[order]
        self._emitter.write(pick(rows, order), ids, parent[order], trace, step=step[order])

    def _stages(self, rows: Rows, low: Any, path: npt.NDArray[np.int64]) -> None:
        """Say of each kernel in which layer and stage it ran, and how that is known."""
        kernels = np.flatnonzero(rows["kind"] == SpanKind.KERNEL)
        if not len(kernels):
            return
        eager = kernels[rows["graph_id"][kernels] == 0]
        replayed = kernels[rows["graph_id"][kernels] != 0]
        if len(eager):
            self._learn(rows, eager, low, path)
            self._say(rows, eager, path[eager])
        if len(replayed):
            self._learn_captures()
        for graph in np.unique(rows["graph_id"][replayed]).tolist():
            self._replay(rows, replayed[rows["graph_id"][replayed] == graph], graph)

    def _say(self, rows: Rows, at: Any, path: npt.NDArray[np.int64]) -> None:
        for code in np.unique(path[path >= 0]).tolist():
            text = to_json({"stage": self.texts.text(code)})
            rows["attributes"][at[path == code]] = self.texts.code(text)

    def _local_memory(self, rows: Rows) -> None:
        """Say of kernels that use local memory how much, beside what is said already."""
        at = np.flatnonzero(rows["local_bytes"])
        pairs = rows["attributes"][at].astype(np.int64) << 32 | rows["local_bytes"][at]
        for pair in np.unique(pairs).tolist():
            code, size = pair >> 32, pair & 0xFFFFFFFF
            said = json.loads(self.texts.text(code)) if code >= 0 else {}
            text = to_json(said | {"local_bytes_per_thread": size})
            rows["attributes"][at[pairs == pair]] = self.texts.code(text)

    def _keys(self, rows: Rows) -> npt.NDArray[np.uint64]:
        """What tells kernels apart: name, grid and block, as a number each."""
        distinct, inverse = np.unique(rows["name"], return_inverse=True)
        digests = [
            int.from_bytes(blake2b(self.texts.text(code).encode(), digest_size=8).digest(), "big")
            for code in distinct.tolist()
        ]
        key: npt.NDArray[np.uint64] = np.array(digests, np.uint64)[inverse.ravel()]
        with np.errstate(over="ignore"):
            for column in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"):
                key = key * np.uint64(0x9E3779B97F4A7C15) + rows[column]
        return key

    def _learn(self, rows: Rows, eager: Any, low: Any, path: npt.NDArray[np.int64]) -> None:
        """Remember each eager step's kernels in the order of their launch."""
        if not (path[eager] >= 0).any():
            return
        order = eager[np.lexsort((rows["correlation"][eager], low[eager]))]
        keys = self._keys(pick(rows, order))
        for step in np.split(np.arange(len(order)), np.flatnonzero(np.diff(low[order])) + 1):
            if not self.graphs.knows(keys[step]):
                codes = path[order[step]].tolist()
                stages = [self.texts.text(code) if code >= 0 else "" for code in codes]
                self.graphs.learn(keys[step], stages)

    def _learn_captures(self) -> None:
        copies = [self.texts.code(name) for name in COPIES]
        names = [self.texts.code(name) for name in KERNEL_LAUNCHES]
        for paths, calls in self._calls.captured([*names, *copies], self._settled_ns):
            stages = [self.texts.text(code) if code >= 0 else "" for code in paths.tolist()]
            self.graphs.learn_capture(stages, np.isin(calls, copies).tolist())

    def _replay(self, rows: Rows, at: Any, graph: int) -> None:
        """Give the nodes of one graph their stages, learned from the fullest replay."""
        # Ids may begin anew with each window.
        launch = rows["window"][at].astype(np.uint64) << np.uint64(32) ^ rows["correlation"][at]
        launches, counts = np.unique(launch, return_counts=True)
        full = at[launch == launches[np.argmax(counts)]]
        self.graphs.match(graph, rows["graph_node"][full], self._keys(pick(rows, full)))
        nodes, inverse = np.unique(rows["graph_node"][at], return_inverse=True)
        said = [
            {"stage.unknown": True} if stage is None else _inferred(stage)
            for stage in self.graphs.stages_of(graph, nodes)
        ]
        codes = np.array([self.texts.code(to_json(words)) for words in said], np.int32)
        rows["attributes"][at] = codes[inverse.ravel()]


def _inferred(stage: str) -> dict[str, Any]:
    """Attributes of a node; an empty stage is known too: directly in the step."""
    return {"stage": stage, "stage.inferred": True} if stage else {"stage.inferred": True}
