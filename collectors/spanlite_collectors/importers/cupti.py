"""CUPTI activity records as JSON lines (`t`: kernel, api, memcpy, nvtx, ...), also gzip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spanlite.errors import InputError
from spanlite.flags import SpanFlag
from spanlite.kinds import CopyKind, SpanKind, SpanStatus

from spanlite_collectors.importers._assemble import Assembler
from spanlite_collectors.importers._events import (
    SHAPE_ERRORS,
    BadRecordError,
    event_row,
    is_u32,
    reason_of,
)
from spanlite_collectors.importers._files import Progress, SourceFile, no_progress
from spanlite_collectors.importers._json_text import load_json, to_json
from spanlite_collectors.importers._nvtx import split_name
from spanlite_collectors.importers.options import ImportOptions
from spanlite_collectors.importers.report import ImportReport
from spanlite_collectors.sinks import SpanSink

_Record = dict[str, Any]
_NO_STREAM = 0xFFFFFFFF
_NOT_READY = 600
_U64 = (1 << 64) - 1
#: CUpti_ActivityMemoryKind.
_MEMORY = (
    "unknown", "pageable", "pinned", "device", "array", "managed", "device_static",
    "managed_static",
)  # fmt: skip
#: CUpti_ActivitySynchronizationType.
_SYNCS = ("sync", "event sync", "stream wait event", "stream sync", "context sync")
#: CUpti_ActivityOverheadKind.
_OVERHEADS = {
    0: "unknown overhead",
    1: "driver compiler",
    1 << 16: "CUPTI buffer flush",
    2 << 16: "CUPTI instrumentation",
    3 << 16: "CUPTI resource",
    4 << 16: "runtime triggered module loading",
    5 << 16: "lazy function loading",
    6 << 16: "command buffer full",
    7 << 16: "activity buffer request",
    8 << 16: "UVM activity init",
}
_LEFT_OUT = {
    "api": ("cbid",),
    "memcpy": ("channel", "flags"),
    "memset": ("channel", "flags"),
    "sync": ("event",),
    "overhead": ("obj",),
    "nvtx": ("id", "parent", "depth"),
    "kernel": ("local_total",),
}


def import_cupti(
    path: Path, sink: SpanSink, options: ImportOptions, progress: Progress = no_progress
) -> ImportReport:
    """Read one file of records into the sink. Raises InputError, before anything is sent."""
    report = ImportReport(str(path), "cupti")
    with SourceFile(path, progress) as source, Assembler(sink, report, False) as assembler:
        reader = _Reader(assembler, report, options)
        for number, line in enumerate(source.lines(), 1):
            if line.strip():
                reader.line(path, number, line)
        reader.close()
        assembler.finish(source.digest(), 0, reader.resources(path))
        if reader.dropped:
            sink.drop("cupti_dropped", reader.dropped)
            report.notes.append(f"CUPTI itself dropped {reader.dropped} records")
    return report


class _Reader:
    """Turns records into event rows."""

    def __init__(self, assembler: Assembler, report: ImportReport, options: ImportOptions) -> None:
        self._report, self._options = report, options
        self._append = assembler.events.append
        self._text = assembler.strings.code
        self._launch = assembler.launches.code
        self._counts: Counter[str] = Counter()
        self._process: _Record = {}
        self.dropped = 0
        self._kinds: dict[str, Callable[[_Record], None]] = {
            "kernel": self._kernel,
            "memcpy": self._memcpy,
            "memset": self._memset,
            "sync": self._sync,
            "graph": self._graph,
            "api": self._api,
            "overhead": self._overhead,
            "nvtx": self._nvtx,
        }

    def line(self, path: Path, number: int, line: bytes) -> None:
        """Take in one line. Raises InputError where it is no record at all."""
        try:
            record = load_json(line)
            kind = record["t"]
        except (ValueError, KeyError, TypeError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(
                f"{path}: line {number} is not a CUPTI record ({what}); "
                f"{number - 1} lines before it could be read, nothing was sent"
            ) from None
        if not isinstance(kind, str):
            self._report.refused("not a word", "unknown_record")
            return
        try:
            self._record(kind, record)
        except SHAPE_ERRORS as error:
            reason = reason_of(error) if kind in self._kinds else "unreadable_context"
            self._report.refused(kind, reason)

    def _record(self, kind: str, record: _Record) -> None:
        convert = self._kinds.get(kind)
        if convert is None:
            self._context(kind, record)
            return
        convert({name: value for name, value in record.items() if value is not None})
        self._counts[kind] += 1

    def _context(self, kind: str, record: _Record) -> None:
        if kind not in ("process", "clock", "stats"):
            self._report.refused(str(kind), "unknown_record")
            return
        if kind == "process":
            self._process.update(_process(record))
        elif kind == "stats":
            self.dropped += _count(record.get("dropped", 0))
        self._report.used(kind)

    def close(self) -> None:
        """Hand over the counts."""
        for kind, count in self._counts.items():
            self._report.kept(kind, count)
            for name in _LEFT_OUT.get(kind, ()):
                self._report.left_out[name] += count

    def _add(self, kind: SpanKind, record: _Record, name: str, **fields: Any) -> None:
        start, end = record.get("start"), record.get("end")
        if type(start) is not int or (end is not None and type(end) is not int):
            raise BadRecordError("unreadable_time")
        duration, flags = (end - start, 0) if end else (0, int(SpanFlag.PARTIAL))
        if duration < 0:
            flags |= SpanFlag.NEGATIVE_DURATION
        if start == 0:
            flags |= SpanFlag.ZERO_TIMESTAMP
        attributes = {k: v for k, v in fields.pop("attributes", {}).items() if v}
        if attributes:
            fields["attributes"] = self._text(to_json(attributes))
        self._append(event_row(kind, start, duration, self._text(name), flags=flags, **fields))

    def _place(self, record: _Record) -> dict[str, Any]:
        stream = record.get("stream", -1)
        return {
            "on_device": True,
            "device": record.get("dev", -1),
            "context": record.get("ctx", -1),
            "stream": -1 if stream == _NO_STREAM else stream,
            "correlation": record.get("corr", 0),
            "graph_id": record.get("graph_id", 0),
            "graph_node": record.get("graph_node", 0),
        }

    def _kernel(self, record: _Record) -> None:
        launch = self._launch(
            (
                *record["grid"],
                *record["block"],
                *record.get("cluster", (0, 0, 0)),
                record.get("regs", 0),
                record.get("static_smem", 0),
                record.get("dynamic_smem", 0),
            )
        )
        attributes = {
            "shared_memory_executed": record.get("smem_executed"),
            "local_memory_per_thread": record.get("local_per_thread"),
        }
        self._add(
            SpanKind.KERNEL,
            record,
            record["name"],
            launch=launch,
            attributes=attributes,
            **self._place(record),
        )

    def _memcpy(self, record: _Record) -> None:
        kind = record.get("copy_kind", 0)
        kind = kind if type(kind) is int and kind in range(len(CopyKind)) else 0
        word = CopyKind(kind).name if kind else ""
        attributes = {"src": _memory(record, "src_kind"), "dst": _memory(record, "dst_kind")}
        self._add(
            SpanKind.MEMCPY,
            record,
            f"memcpy {word}".strip(),
            bytes=record.get("bytes", 0),
            copy_kind=kind,
            attributes=attributes,
            **self._place(record),
        )

    def _memset(self, record: _Record) -> None:
        attributes = {"value": record.get("value"), "memory": _memory(record, "dst_kind")}
        self._add(
            SpanKind.MEMSET,
            record,
            "memset",
            bytes=record.get("bytes", 0),
            attributes=attributes,
            **self._place(record),
        )

    def _sync(self, record: _Record) -> None:
        kind = record.get("type", 0)
        word = _SYNCS[kind] if kind in range(len(_SYNCS)) else f"sync {_count(kind)}"
        self._add(SpanKind.SYNC, record, word, **_failed(record), **self._place(record))

    def _graph(self, record: _Record) -> None:
        self._add(SpanKind.GRAPH_LAUNCH, record, "CUDA graph", **self._place(record))

    def _api(self, record: _Record) -> None:
        driver = record.get("dom") == "driver"
        self._add(
            SpanKind.DRIVER_CALL if driver else SpanKind.RUNTIME_CALL,
            record,
            record["name"],
            process=0,
            thread=record.get("tid", 0) & _U64,
            correlation=record.get("corr", 0),
            **_failed(record),
        )

    def _overhead(self, record: _Record) -> None:
        kind = record.get("kind", 0)
        self._add(
            SpanKind.OVERHEAD,
            record,
            _OVERHEADS.get(kind) or f"overhead {_count(kind)}",
            process=0,
            thread=record.get("tid", 0) & _U64,
            correlation=record.get("corr", 0),
        )
        for name, value in _process({"pid": record.get("pid")}).items():
            self._process.setdefault(name, value)

    def _nvtx(self, record: _Record) -> None:
        split = split_name(record["name"])
        for word in split.left_out:
            self._report.left_out[word] += 1
        attributes = {
            "nvtx.domain": record.get("domain"),
            "nvtx.category": record.get("category"),
            "nvtx.payload": record.get("payload"),
            "sizes": split.sizes,
        }
        self._add(
            self._options.kind_of_range(split.name),
            record,
            split.name,
            process=0,
            thread=record.get("tid", 0) & _U64,
            free_range=record.get("kind") == "startend",
            attributes=attributes,
        )

    def resources(self, path: Path) -> list[Mapping[str, Any]]:
        """The resource of the one process."""
        out = self._options.resource(path, "cupti")
        if "pid" in self._process:
            out["process.pid"] = self._process["pid"]
        if "exe" in self._process:
            out["process.executable.name"] = Path(self._process["exe"]).name
        return [self._options.named(out)]


def _count(value: Any) -> int:
    """A number of things, or that of an unnamed kind. Raises BadRecordError."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise BadRecordError("unreadable_record")
    return value


def _process(record: _Record) -> _Record:
    """`pid` and `exe`, where the record says them. Raises BadRecordError."""
    pid, exe = record.get("pid") or None, record.get("exe") or None
    if not (pid is None or is_u32(pid)) or not (exe is None or isinstance(exe, str)):
        raise BadRecordError("unreadable_record")
    return {name: value for name, value in (("pid", pid), ("exe", exe)) if value is not None}


def _failed(record: _Record) -> dict[str, Any]:
    code = record.get("ret", 0)
    if code in (0, _NOT_READY):
        return {}
    return {"status": int(SpanStatus.ERROR), "attributes": {"return_value": code}}


def _memory(record: _Record, column: str) -> str | None:
    kind = record.get(column, 0)
    return _MEMORY[kind] if 0 < kind < len(_MEMORY) else None
