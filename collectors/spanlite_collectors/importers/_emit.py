"""Rows with their ids and parents become record batches and go to the sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.flags import SpanFlag
from spanlite.kinds import CALL_KINDS, DEVICE_KINDS, KIND_WORDS, SpanKind
from spanlite.schema import LAUNCH_COLUMNS

from spanlite_collectors.importers._columns import SAME_COLUMNS, link_column, span_batch
from spanlite_collectors.importers._events import I64, U64, Rows
from spanlite_collectors.importers._traces import TraceAssigner
from spanlite_collectors.importers.report import ImportReport
from spanlite_collectors.sinks import SpanSink

#: Of each row that has any: (trace number, span id) of the spans it links to.
Links: TypeAlias = dict[int, list[tuple[int, int]]]

#: Ranges and operators of a thread lie together, then its calls, then the devices'.
_TRACK_GROUP = np.zeros(256, dtype=np.int8)
_TRACK_GROUP[[*CALL_KINDS]] = 1
_TRACK_GROUP[[*DEVICE_KINDS, SpanKind.SYNC]] = 2


class Emitter:
    """Numbers spans one after the other and writes them, one batch a process."""

    def __init__(
        self,
        sink: SpanSink,
        report: ImportReport,
        traces: TraceAssigner,
        resources: Sequence[Mapping[str, Any]],
        base_ns: int,
        texts: list[str],
        launches: npt.NDArray[np.uint32],
        first_id: int,
    ) -> None:
        self._sink, self._report, self._traces = sink, report, traces
        self._resources, self._base_ns = resources, base_ns
        self._texts = pa.array(texts, pa.string())
        self._launches = launches
        self._next_id = first_id
        self._seen_traces = np.zeros(0, dtype=bool)

    @property
    def trace_count(self) -> int:
        """Traces that have a span."""
        return int(self._seen_traces.sum())

    def order(self, rows: Rows, trace: I64) -> I64:
        """The order spans are written in: by process, trace and track, then start.

        So the columns are nearly constant, and a launch and its kernel lie a nearly
        constant number of ids apart.
        """
        keys = (
            -rows["duration"],  # of ranges that start together, the outer one first
            rows["start"],
            rows["thread"],
            rows["stream"],
            rows["context"],
            rows["device"],
            _TRACK_GROUP[rows["kind"]],
            trace,
            rows["process"],
        )
        found: I64 = np.lexsort(keys)
        return found

    def next_ids(self, count: int) -> U64:
        """The next `count` span ids."""
        ids = np.arange(self._next_id, self._next_id + count, dtype=np.uint64)
        self._next_id += count
        return ids

    def write(
        self,
        rows: Rows,
        span_id: U64,
        parent_id: U64,
        trace: I64,
        flags: npt.NDArray[np.uint32],
        links: Links,
    ) -> None:
        """Write spans, shape (n,) each, in `order`'s order."""
        if not len(rows):
            return
        self._account(rows, trace, flags)
        low, high = self._traces.ids(trace)
        columns: dict[str, Any] = {new: rows[old] for old, new in SAME_COLUMNS.items()}
        columns |= {
            "trace_id_low": low,
            "trace_id_high": high,
            "span_id": span_id,
            "parent_span_id": parent_id,
            "start_ns": rows["start"] + self._base_ns,
            "flags": flags,
            "name": self._dictionary(rows["name"]),
            "attributes": self._dictionary(rows["attributes"]),
            "links": self._links(len(rows), links),
        }
        columns |= dict(zip(LAUNCH_COLUMNS, self._launches[rows["launch"]].T, strict=True))
        batch = span_batch(len(rows), columns)
        cuts = np.flatnonzero(np.diff(rows["process"])) + 1
        for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            part = batch.slice(first, last - first)
            self._sink.write(part, self._resources[int(rows["process"][first])])

    def _dictionary(self, codes: npt.NDArray[np.int32]) -> pa.DictionaryArray:
        """The text of codes (-1: null), with only those texts that are in use."""
        used, index = np.unique(codes, return_inverse=True)
        texts = self._texts.take(pa.array(used[used >= 0]))
        index = index.ravel().astype(np.int32) - np.int32(len(used) - len(texts))
        return pa.DictionaryArray.from_arrays(pa.array(index, mask=index < 0), texts)

    def _links(self, count: int, links: Links) -> pa.Array:
        resolved = {}
        for row, targets in links.items():
            low, high = self._traces.ids(np.array([trace for trace, _ in targets]))
            resolved[row] = [
                (int(a), int(b), span) for a, b, (_, span) in zip(low, high, targets, strict=True)
            ]
        return link_column(count, resolved)

    def _account(self, rows: Rows, trace: I64, flags: npt.NDArray[np.uint32]) -> None:
        report = self._report
        start = rows["start"] + self._base_ns
        report.see_times(int(start.min()), int((start + rows["duration"]).max()))
        missing = int(trace.max()) + 1 - len(self._seen_traces)
        if missing > 0:
            self._seen_traces = np.append(self._seen_traces, np.zeros(missing, dtype=bool))
        self._seen_traces[trace] = True
        for kind, count in zip(*np.unique(rows["kind"], return_counts=True), strict=True):
            report.span_kinds[KIND_WORDS[int(kind)]] += int(count)
        for flag in SpanFlag:
            count = int((flags & np.uint32(flag) != 0).sum())
            if count:
                report.flags[str(flag.name).lower()] += count
