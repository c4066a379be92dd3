"""Records of one drain become rows. Vectorised; only distinct texts are looked at one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.flags import SpanFlag
from spanlite.kinds import CopyKind, SpanKind, SpanStatus
from spanlite.schema import LAUNCH_COLUMNS

from spanlite_collectors.agent.calls import call_name
from spanlite_collectors.agent.layout import START_END, RecordType
from spanlite_collectors.agent.messages import (
    STEP_NAME,
    Context,
    Message,
    Metric,
    Reader,
    message_head,
)
from spanlite_collectors.agent.names import demangled
from spanlite_collectors.agent.ring import Records
from spanlite_collectors.agent.rows import DEVICE, HOST, Rows, Texts, concat, empty, pick
from spanlite_collectors.agent.string_table import StringTable
from spanlite_collectors.importers._json_text import to_json

_NO_STREAM = 0xFFFFFFFF
_NOT_READY = 600
_SYNCS = ("sync", "event sync", "stream wait event", "stream sync", "context sync")
_OVERHEADS = {
    1: "driver compiler",
    1 << 16: "CUPTI buffer flush",
    2 << 16: "CUPTI instrumentation",
    3 << 16: "CUPTI resource",
    4 << 16: "module loading",
    5 << 16: "lazy function loading",
    6 << 16: "command buffer full",
    7 << 16: "CUPTI buffer request",
    8 << 16: "unified memory activity",
}
#: CUPTI's kinds of external correlation.
_EXTERNALS = ("", "unknown", "openacc", "custom0", "custom1", "custom2")
#: NVTX payload types -> how to read the eight bytes.
_PAYLOADS = {1: "<u8", 2: "<i8", 3: "<f8", 4: "<u4", 5: "<i4", 6: "<f4"}
#: Ranges whose metrics have come and that have not ended yet, the newest of them. That of some
#: never comes: the ring was full.
_MAX_OPEN_SAMPLES = 1 << 14
#: Values of one range: a request that lasts, with a label that never repeats, has no more of them.
_MAX_VALUES = 1000
#: The kind of a sample that says how many values no span got. No process can send it.
UNPLACED = "unplaced"


@dataclass
class Converted:
    """Rows of one drain."""

    host: Rows
    device: Rows
    windows: Records
    steps: Records
    #: The text of each `name` in `steps`.
    step_names: dict[int, str] = field(default_factory=dict)
    #: Requests that a step names, by the step's range id.
    links: dict[int, tuple[Context, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """A value of a custom metric."""

    metric: Metric
    value: float


class Converter:
    """Turns records of one process into rows. Keeps its strings."""

    def __init__(self, texts: Texts, sampled: Callable[[Sample], None] | None = None) -> None:
        self._texts, self._sampled = texts, sampled or (lambda sample: None)
        #: Of the ring.
        self.strings = StringTable()
        self._reader = Reader()
        self._samples: dict[int, dict[str, float]] = {}
        self._unplaced = 0
        #: Rows made so far.
        self.rows = 0

    def convert(self, records: dict[RecordType, Records], raw_strings: bytes) -> Converted:
        """All rows of one drain."""
        self.strings.take(raw_strings)
        out = Converted(
            empty(0, HOST),
            empty(0, DEVICE),
            records.get(RecordType.WINDOW, np.empty(0, object)),
            records.get(RecordType.STEP, np.empty(0, object)),
        )
        if len(out.steps):
            names = np.unique(out.steps["name"]).tolist()
            out.step_names = {name: message_head(self.strings.text(name)) for name in names}
        host = [self._ranges(records[RecordType.RANGE], out)] if RecordType.RANGE in records else []
        if RecordType.API in records:
            calls = self._calls(records[RecordType.API])
            if RecordType.EXTERNAL in records:
                self._add_externals(calls, records[RecordType.EXTERNAL])
            host.append(calls)
        if RecordType.OVERHEAD in records:
            host.append(self._overheads(records[RecordType.OVERHEAD]))
        device = [
            convert(records[kind])
            for kind, convert in (
                (RecordType.KERNEL, self._kernels),
                (RecordType.MEMCPY, self._copies),
                (RecordType.MEMSET, self._sets),
                (RecordType.SYNC, self._syncs),
                (RecordType.GRAPH, self._graphs),
            )
            if kind in records
        ]
        out.host = concat([out.host, *host])
        out.device = concat([out.device, *device])
        self.rows += len(out.host) + len(out.device)
        return out

    def _codes(self, numbers: npt.NDArray[Any], name: Callable[[int], str]) -> Rows:
        """Text numbers for ids, the distinct ones looked up one by one."""
        distinct, inverse = np.unique(numbers, return_inverse=True)
        codes = [self._texts.code(name(number)) for number in distinct.tolist()]
        found: Rows = np.array(codes, np.int32)[inverse.ravel()]
        return found

    def _device(self, kind: SpanKind, records: Records) -> Rows:
        rows = _timed(records, DEVICE)
        rows["kind"] = kind
        rows["correlation"] = records["correlation_id"]
        rows["context"] = records["context"]
        rows["stream"] = np.where(
            records["stream"] == _NO_STREAM, -1, records["stream"].astype(np.int64)
        )
        for column in ("device", "graph_id"):
            if column in (records.dtype.names or ()):
                rows[column] = records[column]
        if "graph_node_id" in (records.dtype.names or ()):
            rows["graph_node"] = records["graph_node_id"]
        return rows

    def _kernels(self, records: Records) -> Rows:
        rows = self._device(SpanKind.KERNEL, records)
        rows["name"] = self._codes(
            records["name"], lambda number: demangled(self.strings.text(number))
        )
        _block(rows)[:] = _block(records)
        rows["local_bytes"] = records["local_bytes_per_thread"]
        return rows

    def _copies(self, records: Records) -> Rows:
        rows = self._device(SpanKind.MEMCPY, records)
        kind = np.where(records["copy_kind"] < len(CopyKind), records["copy_kind"], 0)
        rows["copy_kind"], rows["bytes"] = kind, records["bytes"]
        rows["name"] = self._codes(
            kind, lambda number: f"memcpy {CopyKind(number).name}" if number else "memcpy"
        )
        return rows

    def _sets(self, records: Records) -> Rows:
        rows = self._device(SpanKind.MEMSET, records)
        rows["bytes"], rows["name"] = records["bytes"], self._texts.code("memset")
        return rows

    def _syncs(self, records: Records) -> Rows:
        rows = self._device(SpanKind.SYNC, records)
        rows["name"] = self._codes(
            records["kind"], lambda n: _SYNCS[n] if n < len(_SYNCS) else f"sync {n}"
        )
        return rows

    def _graphs(self, records: Records) -> Rows:
        rows = self._device(SpanKind.GRAPH_LAUNCH, records)
        rows["name"] = self._texts.code("CUDA graph")
        return rows

    def _calls(self, records: Records) -> Rows:
        rows = _timed(records, HOST)
        runtime = records["domain"] == 1
        rows["kind"] = np.where(runtime, SpanKind.RUNTIME_CALL, SpanKind.DRIVER_CALL)
        rows["thread"], rows["correlation"] = records["thread_id"], records["correlation_id"]
        both = records["call"].astype(np.int64) << 1 | runtime
        rows["name"] = self._codes(both, lambda number: call_name(number & 1, number >> 1))
        failed = ~np.isin(records["result"], (0, _NOT_READY))
        rows["status"] = np.where(failed, SpanStatus.ERROR, SpanStatus.UNSET)
        for row in np.flatnonzero(failed).tolist():
            text = to_json({"return_value": int(records["result"][row])})
            rows["attributes"][row] = self._texts.code(text)
        return rows

    def _add_externals(self, calls: Rows, externals: Records) -> None:
        """Say of calls what another library calls their work; CUPTI hands both out together."""
        order = np.argsort(externals["correlation_id"], kind="stable")
        known = externals[order]
        at = np.searchsorted(known["correlation_id"], calls["correlation"], side="right") - 1
        found = (at >= 0) & (known["correlation_id"][at] == calls["correlation"])
        found &= calls["attributes"] < 0
        kinds, ids = known["kind"][at], known["external_id"][at]
        for row in np.flatnonzero(found).tolist():
            kind = int(kinds[row])
            word = _EXTERNALS[kind] if kind < len(_EXTERNALS) else str(kind)
            text = to_json({"external.kind": word, "external.id": int(ids[row])})
            calls["attributes"][row] = self._texts.code(text)

    def _overheads(self, records: Records) -> Rows:
        rows = _timed(records, HOST)
        rows["kind"], rows["thread"] = SpanKind.OVERHEAD, records["thread_id"]
        rows["name"] = self._codes(
            records["kind"], lambda number: _OVERHEADS.get(number, f"overhead {number}")
        )
        return rows

    def _ranges(self, records: Records, out: Converted) -> Rows:
        rows = _timed(records, HOST)
        for column, source in (("thread", "thread_id"), ("id", "id"), ("parent_id", "parent_id")):
            rows[column] = records[source]
        free = records["head_flags"] & START_END != 0
        both = records["domain"].astype(np.uint64) << np.uint64(32) | records["name"]
        keep = np.ones(len(rows), np.bool_)
        order = np.argsort(both, kind="stable")
        cuts = np.flatnonzero(np.diff(both[order])) + 1
        for at in np.split(order, cuts):
            pair, texts = int(both[at[0]]), self.strings
            message = self._reader.read(texts.text(pair >> 32), texts.text(pair & 0xFFFFFFFF))
            if message.metric:
                keep[at] = False
                self._take_samples(message.metric, records[at])
            else:
                self._describe(rows, at, message, out)
        rows["free_range"] |= free
        self._add_values(rows, records)
        self._forget_samples()
        return rows if keep.all() else pick(rows, keep)

    def _describe(self, rows: Rows, at: Any, message: Message, out: Converted) -> None:
        rows["kind"][at], rows["name"][at] = message.kind, self._texts.code(message.name)
        if message.attributes:
            rows["attributes"][at] = self._texts.code(to_json(message.attributes))
        rows["free_range"][at] = message.free
        if message.context:
            span = "own_span" if message.own else "parent_span"
            for column, value in zip(
                ("trace_low", "trace_high", span), message.context, strict=True
            ):
                rows[column][at] = value
        if message.links:
            out.links.update(dict.fromkeys(rows["id"][at].tolist(), message.links))

    def _take_samples(self, metric: Metric, records: Records) -> None:
        for record in records:
            value = _payload(record)
            if value is None:
                continue
            self._sampled(Sample(metric, float(value)))
            parent = int(record["parent_id"])
            if parent and (metric.kind == "gauge" or math.isfinite(value)):
                values = self._samples.setdefault(parent, {})
                if len(values) >= _MAX_VALUES and metric.key not in values:
                    self._unplaced += 1
                    continue
                before = values.get(metric.key, 0.0) if metric.kind == "counter" else 0.0
                values[metric.key] = before + float(value)

    def _forget_samples(self) -> None:
        """Of ranges that are still open, those that came first."""
        lost, self._unplaced = self._unplaced, 0
        while len(self._samples) > _MAX_OPEN_SAMPLES:
            lost += len(self._samples.pop(next(iter(self._samples))))
        if lost:
            self._sampled(Sample(Metric(UNPLACED, "", ()), float(lost)))

    def _add_values(self, rows: Rows, records: Records) -> None:
        """Payloads and samples of custom metrics become attributes of their ranges."""
        odd = records["payload_type"] != 0
        if self._samples:
            ids = np.fromiter(self._samples, np.uint64, len(self._samples))
            odd |= np.isin(records["id"], ids)
        step = self._texts.code(STEP_NAME)
        for row in np.flatnonzero(odd).tolist():
            code = int(rows["attributes"][row])
            values = _from_json(self._texts.text(code)) if code >= 0 else {}
            payload = _payload(records[row])
            if payload is not None:
                ours = rows["kind"][row] == SpanKind.STEP and rows["name"][row] == step
                values["step" if ours else "nvtx.payload"] = payload
            values |= self._samples.pop(int(records["id"][row]), {})
            if values:
                rows["attributes"][row] = self._texts.code(to_json(values))


def _block(rows: Rows) -> Rows:
    """The launch columns, side by side in records and rows, as one. Shape (n, columns)."""
    first = rows.dtype.fields[LAUNCH_COLUMNS[0]][1]  # type: ignore[index]
    words = len(LAUNCH_COLUMNS)
    one = np.dtype(
        {"names": ["all"], "formats": [("u4", words)], "offsets": [first],
         "itemsize": rows.dtype.itemsize}
    )  # fmt: skip
    return rows.view(one)["all"]


def _from_json(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def _payload(record: Any) -> int | float | None:
    kind = _PAYLOADS.get(int(record["payload_type"]))
    if kind is None:
        return None
    raw = int(record["payload"]).to_bytes(8, "little")
    value: int | float = np.frombuffer(raw, kind, 1)[0].item()
    return value


def _timed(records: Records, dtype: np.dtype[Any]) -> Rows:
    """Rows with times, flags and window; odd times are flagged, never mended."""
    rows = empty(len(records), dtype)
    start, end = records["start_ns"].astype(np.int64), records["end_ns"].astype(np.int64)
    zero = (start == 0) | (end == 0)
    rows["start"], rows["duration"] = start, np.where(end == 0, 0, end - start)
    flags = np.where(zero, np.uint32(SpanFlag.ZERO_TIMESTAMP), np.uint32(0))
    flags |= np.where(rows["duration"] < 0, np.uint32(SpanFlag.NEGATIVE_DURATION), np.uint32(0))
    rows["flags"] = flags
    if "window" in (records.dtype.names or ()):
        rows["window"] = records["window"]
    return rows
