"""torch.profiler (Kineto) and other Chrome traces: `.json`, `.json.gz`.

Events of type X, B/E and b/e become spans. Flow events (s, t, f) say what correlation ids
already say, and metadata (M) names processes; both are counted as used. Instants and
counters have no duration and are refused by kind.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from spanlite.errors import InputError
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind

from spanlite_collectors.importers._assemble import Assembler
from spanlite_collectors.importers._events import SHAPE_ERRORS, Row, fits_int64, reason_of
from spanlite_collectors.importers._files import Progress, SourceFile, no_progress
from spanlite_collectors.importers._json_stream import JsonStream
from spanlite_collectors.importers._kineto_args import (
    COPY_KIND,
    DEVICE,
    NOTHING,
    STREAM,
    ArgsReader,
    copy_kind,
)
from spanlite_collectors.importers.options import ImportOptions
from spanlite_collectors.importers.report import ImportReport
from spanlite_collectors.sinks import SpanSink

_INT64 = 1 << 63
_U64 = (1 << 64) - 1
_LIMIT_US = Decimal(_INT64)
#: Within this (146 years) a base and an event's times add up to what 64 bits hold.
_FAR_NS = 1 << 62

#: (kind, placed on a device) of each category. Anything else is a host range.
_CATEGORIES: dict[str, tuple[SpanKind, bool]] = {
    "kernel": (SpanKind.KERNEL, True),
    "gpu_memcpy": (SpanKind.MEMCPY, True),
    "gpu_memset": (SpanKind.MEMSET, True),
    "cuda_sync": (SpanKind.SYNC, True),
    "gpu_user_annotation": (SpanKind.NVTX_RANGE, True),
    "cuda_runtime": (SpanKind.RUNTIME_CALL, False),
    "cuda_driver": (SpanKind.DRIVER_CALL, False),
    "cpu_op": (SpanKind.OPERATOR, False),
    "user_annotation": (SpanKind.NVTX_RANGE, False),
    "overhead": (SpanKind.OVERHEAD, False),
    # Older releases of the profiler wrote these.
    "Kernel": (SpanKind.KERNEL, True),
    "Memcpy": (SpanKind.MEMCPY, True),
    "Memset": (SpanKind.MEMSET, True),
    "Runtime": (SpanKind.RUNTIME_CALL, False),
    "Operator": (SpanKind.OPERATOR, False),
}
_OTHER = (SpanKind.HOST, False)
_NO_SPAN = {"i": "instant", "I": "instant", "R": "instant", "n": "instant", "C": "counter"}


def import_kineto(
    path: Path, sink: SpanSink, options: ImportOptions, progress: Progress = no_progress
) -> ImportReport:
    """Read one trace file into the sink. Raises InputError, before anything is sent."""
    report = ImportReport(str(path), "kineto")
    with SourceFile(path, progress) as source, Assembler(sink, report, False) as assembler:
        reader = _Reader(path, assembler, report, options)
        stream = JsonStream(source)
        try:
            if stream.peek() == "[":
                reader.read(stream.elements())
            else:
                reader.read_document(stream)
        except InputError as error:
            raise InputError(f"{error}; {reader.count} events before it could be read") from None
        if stream.peek():
            report.notes.append(f"text after the trace ignored, from character {stream.position}")
        reader.close()
        assembler.finish(source.digest(), reader.base_ns, reader.resources())
    return report


class _Reader:
    """Turns the events of one file into rows."""

    def __init__(
        self, path: Path, assembler: Assembler, report: ImportReport, options: ImportOptions
    ) -> None:
        self._path, self._report, self._options = path, report, options
        self._append = assembler.events.append
        self._text = assembler.strings.code
        self._args = ArgsReader(assembler.strings, assembler.launches)
        self._metadata: dict[str, Any] = {}
        self._processes: dict[str, int] = {}
        self._pids: dict[int, int] = {}
        self._process_names: dict[str, str] = {}
        self._open: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        self._kept: dict[str, int] = defaultdict(int)
        self._used: dict[str, int] = defaultdict(int)
        #: Spans so far away that only the base, which may stand last, decides: (category, row).
        self._far: list[tuple[str, Row]] = []

    @property
    def base_ns(self) -> int:
        """What event times count from, Unix ns. Raises InputError where it is no time."""
        base = self._metadata.get("baseTimeNanoseconds")
        base = 0 if base is None else base
        if type(base) is not int or abs(base) > _FAR_NS:
            raise InputError(
                f"{self._path}: baseTimeNanoseconds is {str(base)[:40]}, which is no Unix time in "
                "ns, so no event has a time; nothing of it was sent"
            )
        return base

    @property
    def count(self) -> int:
        """Events taken in so far."""
        refused = sum(entry.refused for entry in self._report.kinds.values())
        return sum(self._kept.values()) + sum(self._used.values()) + refused

    def read_document(self, stream: JsonStream) -> None:
        """Read a trace whose events are in `traceEvents` of an object."""
        found = False
        for key, value in stream.members(lambda name: name == "traceEvents"):
            if key != "traceEvents":
                self._metadata[key] = value
                continue
            if not isinstance(value, Iterator):
                raise InputError(f"{self._path}: traceEvents is not an array: no Chrome trace")
            found = True
            self.read(value)
        if not found:
            raise InputError(
                f"{self._path}: no traceEvents in it, so it is not a Chrome trace; "
                "if another tool wrote it, name its --format"
            )

    def read(self, events: Iterator[Any]) -> None:
        """Take in events, in any order."""
        used = self._used
        for event in events:
            if not isinstance(event, dict):
                self._report.refused("not an object", "not_an_event")
                continue
            phase = event.get("ph")
            try:
                if phase == "X":
                    self._span(event, event.get("dur"))
                elif phase in ("s", "t", "f"):
                    used[f"flow ({event.get('cat', '')})"] += 1
                else:
                    self._other(event, phase)
            except SHAPE_ERRORS as error:
                self._refuse(event, error)

    def _refuse(self, event: dict[str, Any], error: Exception) -> None:
        self._report.refused(str(event.get("cat", "")), reason_of(error))

    def _other(self, event: dict[str, Any], phase: Any) -> None:
        if phase in ("B", "b"):
            self._open[_pair_key(event)].append(event)
        elif phase in ("E", "e"):
            self._end(event)
        elif phase == "M":
            self._name(event)
        else:
            word = _NO_SPAN.get(str(phase), "unknown phase")
            detail = event.get("cat") or event.get("name", "")
            label = f"{word} ({detail})" if word in _NO_SPAN.values() else f"phase {phase}"
            self._report.refused(label, f"{word}_is_no_span".replace(" ", "_"))

    def _name(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        if event.get("name") == "process_name" and isinstance(args, dict):
            self._process_names[str(event.get("pid"))] = str(args.get("name", ""))
        self._used["metadata"] += 1

    def _end(self, event: dict[str, Any]) -> None:
        waiting = self._open.get(_pair_key(event))
        if not waiting:
            self._report.refused("end without begin", "end_without_begin")
            return
        begin = waiting.pop()
        self._used["end of a span"] += 1
        try:
            self._pair(begin, event)
        except SHAPE_ERRORS as error:
            self._refuse(begin, error)

    def _pair(self, begin: dict[str, Any], event: dict[str, Any]) -> None:
        start, end = _time_ns(begin.get("ts")), _time_ns(event.get("ts"))
        if isinstance(event.get("args"), dict):
            before = begin.get("args")
            before = before if isinstance(before, dict) else {}
            begin["args"] = {**before, **event["args"]}
        known = start is not None and end is not None
        self._span(begin, Decimal((end or 0) - (start or 0)) / 1000 if known else None)

    def close(self) -> None:
        """Take in what never ended, and the counts."""
        for begin in (begin for waiting in self._open.values() for begin in waiting):
            try:
                self._span(begin, None)
            except SHAPE_ERRORS as error:
                self._refuse(begin, error)
        self._take_far()
        for category, count in self._kept.items():
            self._report.kept(category, count)
        for what, count in self._used.items():
            self._report.used(what, count)
        self._report.left_out.update(self._args.left_out())

    def _take_far(self) -> None:
        base = self.base_ns
        for category, row in self._far:
            start, duration = row[1], row[2]
            if fits_int64(start + base, start + duration + base):
                self._kept[category] += 1
                self._append(row)
            else:
                self._report.refused(category, "invalid_time")

    def _span(self, event: dict[str, Any], raw_duration: Any) -> None:
        category, name = event.get("cat", ""), event.get("name", "")
        if type(category) is not str or type(name) is not str:
            category, name = str(category or ""), str(name or "")
        start, duration, flags = _times(event.get("ts"), raw_duration)
        if start is None:
            self._report.refused(category, "unreadable_time")
            return
        kind, on_device = _CATEGORIES.get(category, _OTHER)
        if category == "user_annotation":
            kind = self._options.kind_of_range(name)
        args = event.get("args")
        fields = self._args.read(args, kind, category) if type(args) is dict else list(NOTHING)
        if on_device:
            process, thread = -1, 0
            if kind == SpanKind.MEMCPY and not fields[COPY_KIND]:
                fields[COPY_KIND] = copy_kind(name)
            elif kind == SpanKind.NVTX_RANGE:
                _place_copy(fields, event.get("pid"), event.get("tid"))
        else:
            process, thread = self._process(event.get("pid")), _thread(event.get("tid"))
        if fields[0] < 0:
            fields[0] = self._args.category(category, kind)
        free = event["ph"] == "b"
        row = (kind, start, duration, self._text(name), process, thread, on_device, free,
               *fields, flags, -1)  # fmt: skip
        if -_FAR_NS <= start <= _FAR_NS and -_FAR_NS <= start + duration <= _FAR_NS:
            self._kept[category] += 1
            self._append(row)
        else:
            self._far.append((category, row))

    def _process(self, pid: Any) -> int:
        number = self._pids.get(pid) if type(pid) is int else None
        if number is None:
            number = self._processes.setdefault(str(pid), len(self._processes))
            if type(pid) is int:
                self._pids[pid] = number
        return number

    def resources(self) -> list[Mapping[str, Any]]:
        """The resource of each process; at least one."""
        common = self._options.resource(self._path, "kineto") | _machine(self._metadata)
        names = list(self._processes) or ["0"]
        return [self._options.named(common | self._of_process(pid)) for pid in names]

    def _of_process(self, pid: str) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if len(pid) < 19 and pid.isascii() and pid.isdigit():
            out["process.pid"] = int(pid)
        if self._process_names.get(pid):
            out["process.executable.name"] = self._process_names[pid]
        return out


def _machine(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Resource attributes from the document's own fields."""
    out: dict[str, Any] = {}
    host = meta.get("host_name", meta.get("hostname"))
    if isinstance(host, str):
        out["host.name"] = host
    devices = meta.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        out["gpu.name"] = str(devices[0].get("name", ""))
        out["gpu.count"] = len(devices)
    group = meta.get("distributedInfo")
    if isinstance(group, dict):
        for key in ("rank", "world_size"):
            if isinstance(group.get(key), int):
                out[f"distributed.{key}"] = group[key]
    for key in ("cuda_driver_version", "cuda_runtime_version", "trace_id"):
        if isinstance(meta.get(key), int | str):
            out[f"kineto.{key}"] = meta[key]
    return out


def _times(ts: Any, dur: Any) -> tuple[int | None, int, int]:
    """(start, duration, flags) in ns; start is None where the time cannot be kept."""
    start, duration, flags = _time_ns(ts), _time_ns(dur), 0
    if start is None:
        if ts is not None:
            return None, 0, 0
        start, flags = 0, int(SpanFlag.ZERO_TIMESTAMP)
    if duration is None:
        duration, flags = 0, flags | SpanFlag.PARTIAL
    if duration < 0:
        flags |= SpanFlag.NEGATIVE_DURATION
    if not fits_int64(start, duration, start + duration):
        return None, 0, 0
    return start, duration, flags


def _time_ns(value: Any) -> int | None:
    """Microseconds as JSON had them, in whole ns; None where it is no number.

    Digits below 1 ns, which no profiler writes, are cut.
    """
    if type(value) is int:
        return value * 1000
    if type(value) is str:
        try:
            value = Decimal(value)
        except ArithmeticError:
            return None
    if type(value) is Decimal and value.is_finite() and -_LIMIT_US < value < _LIMIT_US:
        return int(value * 1000)
    return None


def _place_copy(fields: list[int], pid: Any, tid: Any) -> None:
    """A range's copy on the GPU names its device and stream by its track only."""
    for field, value in ((DEVICE, pid), (STREAM, tid)):
        if fields[field] < 0 and type(value) is int and 0 <= value < 1 << 31:
            fields[field] = value


def _pair_key(event: dict[str, Any]) -> tuple[Any, ...]:
    """What a begin and its end share: the track, or for async spans the id."""
    if event.get("ph") in ("B", "E"):
        return "track", str(event.get("pid")), str(event.get("tid"))
    ids = event.get("id2") or event.get("id")
    return "async", str(event.get("cat")), str(event.get("name")), str(ids)


def _thread(tid: Any) -> int:
    """Thread ids are numbers, or words that get a number of their own."""
    return tid & _U64 if type(tid) is int else _named_thread(str(tid))


@lru_cache(1 << 16)
def _named_thread(text: str) -> int:
    # What is longer is a name made of digits, not a number that a system gave.
    if len(text) < 40 and text.isascii() and text.removeprefix("-").isdigit():
        return int(text) & _U64
    return zlib.crc32(text.encode(errors="replace"))
