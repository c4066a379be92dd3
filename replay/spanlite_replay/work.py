"""The GPU side of a plan: what each thread launches, the order of each stream, what waits.

Positions count the plan's spans in order of their planned start; every array of `Work` has
shape (spans,) and every edge names two positions.

- **Launch order** is that of a thread's calls, **stream order** that of a stream's kernels,
  copies and memsets; both follow from `thread`, `stream` and the order of positions.
- `launched_by` is the call that a kernel or copy came from.
- **Edges** are the rest: `EVENT`, a stream waits for another (recorded by CUPTI); `SYNC`, a
  call returns only when the device has come so far; `GRAPH`, what comes before and after a CUDA
  graph on its stream waits for all its branches; `OBSERVED`, with `deps="observed"`: what
  had ended on another stream before this started. Whatever is not recorded is `inferred`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from spanlite.kinds import CALL_KINDS, DEVICE_KINDS, SpanKind

from spanlite_replay import _edges
from spanlite_replay._columns import argsort, by_code, find
from spanlite_replay.recording import PLAN_COLUMNS, Recording, factorise

if TYPE_CHECKING:
    from spanlite_replay.plan import Plan

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Deps = Literal["stream", "observed"]

#: Columns of the archive that a plan with work needs.
WORK_COLUMNS = (
    *PLAN_COLUMNS, "parent_span_id", "host", "process_id", "thread_id", "device", "context",
    "stream", "correlation_id", "graph_id", "graph_node_id", "grid_x", "grid_y", "grid_z",
    "block_x", "block_y", "block_z", "cluster_x", "cluster_y", "cluster_z",
    "registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes", "bytes", "copy_kind",
    "attributes", "links",
)  # fmt: skip
THREAD_KEY = ("host", "process_id", "thread_id")
STREAM_KEY = ("host", "process_id", "device", "context", "stream")


class EdgeKind(IntEnum):
    """Why one span waits for another; stream order and launches are no edges."""

    EVENT = 0
    SYNC = 1
    OBSERVED = 2
    GRAPH = 3


@dataclass(frozen=True)
class Edges:
    """`after` waits for the end of `before`. Arrays of shape (edges,), sorted by `after`.

    With SYNC, `after` is a call, and it is its return that waits.
    """

    before: I64
    after: I64
    kind: npt.NDArray[np.uint8]
    inferred: Mask

    def __len__(self) -> int:
        return len(self.before)

    @classmethod
    def of(cls, parts: list[tuple[I64, I64, EdgeKind, Mask]]) -> Edges:
        """From (before, after, kind, inferred) of each source."""
        before = np.concatenate([part[0] for part in parts])
        after = np.concatenate([part[1] for part in parts])
        kind = np.concatenate([np.full(len(part[0]), part[2], np.uint8) for part in parts])
        inferred = np.concatenate([part[3] for part in parts])
        # One number for all three: positions have 28 bits at most (`looping.MAX_SPANS`).
        order = argsort((after << 33) | (before << 2) | kind, stable=True)
        return cls(before[order], after[order], kind[order], inferred[order])

    def counts(self) -> dict[str, int]:
        """Edges by word, such as `sync` and `sync inferred`."""
        out = {}
        for kind in EdgeKind:
            mine = self.kind == kind
            for word, mask in (("", ~self.inferred), (" inferred", self.inferred)):
                if number := int((mine & mask).sum()):
                    out[kind.name.lower() + word] = number
        return out


@dataclass(frozen=True)
class Work:
    """See the module. `stream` and `thread` are rows of `streams` and `threads`, -1 for none."""

    deps: Deps
    event: I64  # of the plan
    row: I64  # of the recording
    start_ns: I64  # planned
    duration_ns: I64  # as recorded: a schedule makes no GPU faster
    kind: npt.NDArray[np.uint8]
    thread: I32
    stream: I32
    launched_by: I64  # -1: not recorded
    is_call: Mask  # calls of a thread, one after the other (those inside a call are part of it)
    edges: Edges
    link_from: I64  # steps and requests that are linked, shape (links,)
    link_to: I64
    links_outside: int  # links to spans that are not in the plan
    waits_unknown: int  # calls that made a stream wait, whose event was not recorded
    threads: pa.Table  # THREAD_KEY
    streams: pa.Table  # STREAM_KEY

    def __len__(self) -> int:
        return len(self.row)

    @property
    def is_device(self) -> Mask:
        """Which spans run on a stream. Shape (spans,)."""
        return self.stream >= 0

    def stream_order(self) -> tuple[I64, I64]:
        """(positions, stream by stream in order; where each stream begins, and the end)."""
        return grouped(self.stream, np.flatnonzero(self.stream >= 0), self.streams.num_rows)

    def launch_order(self) -> tuple[I64, I64]:
        """(calls, thread by thread in order; where each thread begins, and the end)."""
        return grouped(self.thread, np.flatnonzero(self.is_call), self.threads.num_rows)

    def moved(self, by_ns: int) -> Work:
        """The same, so much later."""
        return replace(self, start_ns=self.start_ns + by_ns)

    def update(self, digest: hashlib._Hash) -> None:
        """Add what decides the order to a digest."""
        edges = self.edges
        columns: tuple[npt.NDArray[np.generic], ...] = (
            self.thread, self.stream, self.launched_by, self.is_call,
            edges.before, edges.after, edges.kind, edges.inferred,
        )  # fmt: skip
        digest.update(self.deps.encode())
        for values in columns:
            digest.update(np.ascontiguousarray(values).tobytes())


def grouped(code: I32, positions: I64, groups: int) -> tuple[I64, I64]:
    """Positions sorted by code, order kept within one; (positions, bounds of shape (groups+1,))."""
    codes = code[positions]
    order = by_code(codes)
    bounds = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=groups))))
    return positions[order], bounds.astype(np.int64)


def build_work(plan: Plan, deps: Deps) -> Work:
    """Find order and edges of the events that are to run. The recording has WORK_COLUMNS."""
    rec = plan.recording
    event, row, start_ns = planned_spans(plan)
    duration_ns = rec.duration_ns[row]
    kind = rec.kinds()[row]
    thread, threads = _threads(rec, row, kind)
    stream, streams = _streams(rec, row, kind)
    device = np.flatnonzero(stream >= 0)
    calls = np.flatnonzero(_CALLS[kind])
    finder = _edges.Finder(
        rec, row, start_ns, duration_ns, kind, thread, stream, device,
        _calls_of(rec, row, device, calls),
    )  # fmt: skip
    edges = [
        (*finder.events(), EdgeKind.EVENT),
        (*finder.syncs(), EdgeKind.SYNC),
        (*finder.graphs(), EdgeKind.GRAPH),
    ]
    if deps == "observed":
        home = streams.select(["host", "process_id", "device"])
        edges.append((*finder.observed(home), EdgeKind.OBSERVED))
    return Work(
        deps,
        event,
        row,
        start_ns,
        duration_ns,
        kind,
        finder.thread,
        stream,
        finder.launched_by,
        finder.is_call,
        Edges.of([(before, after, word, inferred) for before, after, inferred, word in edges]),
        *links_of(rec, row),
        finder.waits_unknown,
        threads,
        streams,
    )


def _table(kinds: Iterable[SpanKind]) -> Mask:
    """By kind, whether it is one of these."""
    table = np.zeros(256, dtype=np.bool_)
    table[[int(kind) for kind in kinds]] = True
    return table


_DEVICE = _table(DEVICE_KINDS)
_CALLS = _table(CALL_KINDS)


def _threads(rec: Recording, row: I64, kind: npt.NDArray[np.uint8]) -> tuple[I32, pa.Table]:
    """(thread of each span, threads); -1 for spans of a device and of no thread."""
    code, threads = factorise(rec.table, THREAD_KEY)
    none = np.asarray(threads.column("thread_id").is_null().to_numpy(), dtype=np.bool_)
    code = np.where(none, -1, np.arange(len(none))).astype(np.int32)[code]
    thread = code[row]
    thread[_DEVICE[kind]] = -1
    lost = np.flatnonzero((kind == SpanKind.SYNC) & (thread < 0))
    if len(lost):  # CUPTI's synchronisation records name no thread: it is their parent's
        named = np.flatnonzero(code >= 0)
        ids = rec.span_id[named].view(np.int64)
        parent = find(rec.integers("parent_span_id", row[lost], 0), ids)
        thread[lost] = np.where(parent >= 0, code[named[parent]], -1)
    return thread, threads


def _streams(rec: Recording, row: I64, kind: npt.NDArray[np.uint8]) -> tuple[I32, pa.Table]:
    device = np.flatnonzero(_DEVICE[kind])
    device = device[~rec.is_null("stream", row[device])]
    code, streams = factorise(rec.table, STREAM_KEY, row[device])
    stream = np.full(len(row), -1, dtype=np.int32)
    stream[device] = code
    return stream, streams


def _calls_of(rec: Recording, row: I64, device: I64, calls: I64) -> I64:
    """The call that launched each span of `device`, -1 for none. Positions, same shape."""
    parents = rec.integers("parent_span_id", row[device], 0)
    found = find(parents, rec.span_id[row[calls]].view(np.int64))
    return np.where(found >= 0, calls[found], -1) if len(calls) else found


def planned_spans(plan: Plan) -> tuple[I64, I64, I64]:
    """(event, row, planned start) of the spans that are to run, by planned start."""
    planned = plan.fate == 0
    if plan.settings.unit == "span" and planned.all():
        return np.arange(len(plan)), plan.row, plan.due_ns
    events = np.flatnonzero(planned)
    event, row, start_ns, _ = plan.span_rows(events)
    if (start_ns[1:] < start_ns[:-1]).any():
        rec = plan.recording
        order = np.lexsort((rec.span_id[row], rec.trace[row], start_ns))
        event, row, start_ns = event[order], row[order], start_ns[order]
    return event, row, start_ns


def links_of(rec: Recording, row: I64) -> tuple[I64, I64, int]:
    """Links of steps and requests: (from, to, how many lead out of the plan)."""
    column = rec.table.column("links").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else None
    if column is None or not len(flat := column.flatten()):
        return np.empty(0, np.int64), np.empty(0, np.int64), 0
    place = np.full(len(rec.span_id), -1, dtype=np.int64)
    place[row] = np.arange(len(row))
    source = place[np.asarray(pc.list_parent_indices(column), dtype=np.int64)]
    target = find(flat.field("span_id").to_numpy(), rec.span_id.view(np.int64))
    goal = np.where(target >= 0, place[target], -1)
    inside = (source >= 0) & (goal >= 0)
    return source[inside], goal[inside], int(((source >= 0) & ~inside).sum())
