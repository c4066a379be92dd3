"""`nsys export --type sqlite`: kernels, copies, waits, calls, NVTX ranges, graphs.

Tables and columns differ between releases, so each table is read by the columns it has.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from spanlite.errors import InputError
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind, SpanStatus

from spanlite_collectors.importers._assemble import Assembler
from spanlite_collectors.importers._events import (
    SHAPE_ERRORS,
    BadRecordError,
    event_row,
    reason_of,
)
from spanlite_collectors.importers._files import Progress, file_digest, no_progress
from spanlite_collectors.importers._json_text import to_json
from spanlite_collectors.importers._nsys_tables import Database
from spanlite_collectors.importers._nvtx import split_name
from spanlite_collectors.importers.options import ImportOptions
from spanlite_collectors.importers.report import ImportReport
from spanlite_collectors.sinks import SpanSink

_CUPTI = "CUPTI_ACTIVITY_KIND_"
_NO_STREAM = 0xFFFFFFFF
_PROCESS_MASK = ~0xFFFFFF
#: cudaErrorNotReady and CUDA_ERROR_NOT_READY: a query's answer, not a failure.
_NOT_READY = 600
_PUSH_POP, _START_END = (59, 70), (60, 71)
_MARKS = (34, 65)
_COPY_KINDS = range(11)

_Row = dict[str, Any]


def import_nsys(
    path: Path, sink: SpanSink, options: ImportOptions, progress: Progress = no_progress
) -> ImportReport:
    """Read one exported database into the sink. Raises InputError, before anything is sent."""
    report = ImportReport(str(path), "nsys")
    digest = file_digest(path)
    try:
        with (
            closing(Database(path)) as database,
            Assembler(sink, report, True) as assembler,
        ):
            base_ns = database.base_ns()
            reader = _Reader(database, assembler, report, options, base_ns)
            reader.read(progress, path.stat().st_size)
            assembler.finish(digest, base_ns, reader.resources(path))
    except sqlite3.Error as error:
        raise InputError(
            f"{path}: not a readable sqlite file ({error}); make it anew with "
            "`nsys export --type sqlite`; nothing of it was sent"
        ) from None
    return report


class _Reader:
    """Turns the rows of one database into event rows, table by table."""

    def __init__(
        self,
        database: Database,
        assembler: Assembler,
        report: ImportReport,
        options: ImportOptions,
        base_ns: int,
    ) -> None:
        self._database, self._report, self._options = database, report, options
        self._base_ns = base_ns
        self._append = assembler.events.append
        self._text = assembler.strings.code
        self._launch = assembler.launches.code
        self._names = database.strings()
        self._domains: dict[tuple[int, int], str] = {}
        self._processes: dict[int, int] = {}
        self._left_out: Counter[str] = Counter()

    def read(self, progress: Progress, size: int) -> None:
        """Read every table; raises InputError where none holds spans."""
        tables: dict[str, Callable[[_Row], str | None]] = {
            f"{_CUPTI}KERNEL": self._kernel,
            f"{_CUPTI}MEMCPY": self._memcpy,
            f"{_CUPTI}MEMSET": self._memset,
            f"{_CUPTI}SYNCHRONIZATION": self._sync,
            f"{_CUPTI}GRAPH_TRACE": self._graph,
            f"{_CUPTI}RUNTIME": self._call,
            f"{_CUPTI}DRIVER": self._call,
            f"{_CUPTI}OVERHEAD": self._overhead,
            "NVTX_EVENTS": self._nvtx,
        }
        present = [name for name in self._database.tables if name in tables]
        others = [name for name in self._database.tables if name not in tables]
        generic = [name for name in others if self._database.is_range_table(name)]
        if not present and not generic:
            raise InputError(
                f"{self._database.path}: no table in it holds spans, so it is not an export of "
                "Nsight Systems; make one with `nsys export --type sqlite REPORT.nsys-rep`"
            )
        self._read_domains()
        for done, name in enumerate([*present, *generic], 1):
            self._table(name, tables.get(name, self._host_call))
            progress(size * done // (len(present) + len(generic)))
        self._note_others(others, generic)
        self._report.left_out.update(+self._left_out)

    def _table(self, name: str, convert: Callable[[_Row], str | None]) -> None:
        kept, refused = 0, Counter[str]()
        for row in self._database.rows(name):
            try:
                reason = _bad_time(row) or convert(row)
            except SHAPE_ERRORS as error:
                reason = reason_of(error)
            if reason is None:
                kept += 1
            else:
                refused[reason] += 1
        label = name.removeprefix(_CUPTI)
        if kept:
            self._report.kept(label, kept)
        for reason, count in refused.items():
            if reason.startswith("used:"):
                self._report.used(f"{label} ({reason[5:]})", count)
            else:
                self._report.refused(f"{label} ({reason})", reason, count)

    def _note_others(self, others: list[str], generic: list[str]) -> None:
        """Tables of events that are no spans are refused by name, the rest is context."""
        for name in others:
            if name in generic:
                continue
            count = self._database.count(name)
            if count and self._database.has_time(name):
                self._report.refused(name, "table_holds_no_spans", count)
            elif count and not name.startswith(("ENUM_", "META_", "TARGET_", "sqlite_")):
                self._report.used(name, count)

    def _add(self, kind: SpanKind, row: _Row, name: str, **fields: Any) -> None:
        start, end = row["start"], row.get("end")
        duration, flags = (0, int(SpanFlag.PARTIAL)) if end is None else (end - start, 0)
        if duration < 0:
            flags |= SpanFlag.NEGATIVE_DURATION
        attributes = fields.pop("attributes", None)
        if attributes:
            fields["attributes"] = self._text(to_json(attributes))
        fields |= {"flags": flags, "base_ns": self._base_ns}
        self._append(event_row(kind, start, duration, self._text(name), **fields))

    def _place(self, row: _Row) -> dict[str, Any]:
        """Columns that all device tables share."""
        stream = row.get("streamId")
        return {
            "on_device": True,
            "process": self._process(row.get("globalPid")),
            "device": _or(row.get("deviceId"), -1),
            "context": _or(row.get("contextId"), -1),
            "stream": -1 if stream is None or stream == _NO_STREAM else stream,
            "correlation": row.get("correlationId") or 0,
            "graph_node": row.get("graphNodeId") or 0,
            "graph_id": row.get("graphId") or 0,
        }

    def _kernel(self, row: _Row) -> None:
        name = self._string(row, "demangledName", "shortName", "mangledName")
        launch = self._launch(
            tuple(
                row.get(column) or 0
                for column in (
                    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
                    "clusterX", "clusterY", "clusterZ", "registersPerThread",
                    "staticSharedMemory", "dynamicSharedMemory",
                )
            )
        )  # fmt: skip
        attributes = {
            "shared_memory_executed": row.get("sharedMemoryExecuted"),
            "local_memory_per_thread": row.get("localMemoryPerThread"),
        }
        self._left_out["gridId"] += "gridId" in row
        kept = {key: value for key, value in attributes.items() if value}
        self._add(SpanKind.KERNEL, row, name, launch=launch, attributes=kept, **self._place(row))

    def _memcpy(self, row: _Row) -> None:
        kind = row.get("copyKind") or 0
        word = self._database.label("ENUM_CUDA_MEMCPY_OPER", kind)
        attributes = {
            "src": self._memory(row.get("srcKind")),
            "dst": self._memory(row.get("dstKind")),
            "src_device": row.get("srcDeviceId"),
            "dst_device": row.get("dstDeviceId"),
            "migration_cause": row.get("migrationCause"),
        }
        self._add(
            SpanKind.MEMCPY,
            row,
            f"[CUDA memcpy {word}]",
            bytes=row.get("bytes") or 0,
            copy_kind=kind if kind in _COPY_KINDS else 0,
            attributes={key: value for key, value in attributes.items() if value is not None},
            **self._place(row),
        )

    def _memset(self, row: _Row) -> None:
        attributes = {"value": row.get("value"), "memory": self._memory(row.get("memKind"))}
        self._add(
            SpanKind.MEMSET,
            row,
            "[CUDA memset]",
            bytes=row.get("bytes") or 0,
            attributes={key: value for key, value in attributes.items() if value is not None},
            **self._place(row),
        )

    def _sync(self, row: _Row) -> None:
        word = self._database.label("ENUM_CUPTI_SYNC_TYPE", row.get("syncType"))
        for column in ("eventId", "eventSyncId"):
            self._left_out[column] += row.get(column) is not None
        self._add(SpanKind.SYNC, row, word, **self._place(row))

    def _graph(self, row: _Row) -> None:
        self._add(SpanKind.GRAPH_LAUNCH, row, "CUDA graph", **self._place(row))

    def _thread(self, row: _Row) -> dict[str, Any]:
        tid = row.get("globalTid") or 0
        return {"process": self._process(tid), "thread": tid & 0xFFFFFF}

    def _call(self, row: _Row) -> None:
        name = self._string(row, "nameId")
        driver = name.startswith("cu") and not name.startswith(("cuda", "cub"))
        failed = row.get("returnValue") or 0
        failed = 0 if failed == _NOT_READY else failed
        self._left_out["callchainId"] += row.get("callchainId") is not None
        self._add(
            SpanKind.DRIVER_CALL if driver else SpanKind.RUNTIME_CALL,
            row,
            name,
            correlation=row.get("correlationId") or 0,
            status=int(SpanStatus.ERROR) if failed else 0,
            attributes={"return_value": failed} if failed else None,
            **self._thread(row),
        )

    def _overhead(self, row: _Row) -> None:
        name = self._string(row, "nameId") or self._database.label(
            "ENUM_CUPTI_OVERHEAD_TYPE", row.get("overheadType")
        )
        self._add(
            SpanKind.OVERHEAD,
            row,
            name,
            correlation=row.get("correlationId") or 0,
            **self._thread(row),
        )

    def _host_call(self, row: _Row) -> None:
        """A row of a table that we know nothing more about: OS calls, cuBLAS, cuDNN, ..."""
        self._add(SpanKind.HOST, row, self._string(row, "nameId"), **self._thread(row))

    def _nvtx(self, row: _Row) -> str | None:
        kind = row["eventType"]
        if kind in _MARKS:
            return "mark_has_no_duration"
        if kind not in _PUSH_POP + _START_END:
            return "used:names"
        text = row.get("text") or self._string(row, "textId")
        split = split_name(text)
        for word in split.left_out:
            self._left_out[word] += 1
        attributes = self._payload(row)
        if split.sizes:
            attributes["sizes"] = split.sizes
        for column in ("color", "rangeId"):
            self._left_out[column] += row.get(column) is not None
        self._add(
            self._options.kind_of_range(split.name),
            row,
            split.name,
            free_range=kind in _START_END,
            attributes=attributes,
            **self._thread(row),
        )
        return None

    def _payload(self, row: _Row) -> dict[str, Any]:
        out: dict[str, Any] = {}
        domain = self._domains.get(_domain_key(row))
        if domain:
            out["nvtx.domain"] = domain
        if row.get("category"):
            out["nvtx.category"] = row["category"]
        names = ("uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value")
        for column in (*names, "floatValue", "jsonText"):
            if row.get(column) is not None:
                out["nvtx.payload"] = row[column]
        if row.get("jsonTextId") is not None:
            out["nvtx.payload"] = self._string(row, "jsonTextId")
        self._left_out["binaryData"] += row.get("binaryData") is not None
        return out

    def _read_domains(self) -> None:
        for row in self._database.rows("NVTX_EVENTS", "eventType = 75"):
            with suppress(*SHAPE_ERRORS):  # a domain without a readable name has none
                self._domains[_domain_key(row)] = row.get("text") or self._string(row, "textId")

    def _string(self, row: _Row, *columns: str) -> str:
        for column in columns:
            if row.get(column) is not None:
                return self._names.get(row[column], f"string {row[column]}")
        return ""

    def _memory(self, kind: int | None) -> str | None:
        return None if kind is None else self._database.label("ENUM_CUDA_MEM_KIND", kind)

    def _process(self, global_id: int | None) -> int:
        if global_id is None:
            return -1
        if type(global_id) is not int:
            raise BadRecordError("unreadable_record")
        return self._processes.setdefault(global_id & _PROCESS_MASK, len(self._processes))

    def resources(self, path: Path) -> list[Mapping[str, Any]]:
        """The resource of each process; at least one."""
        common = self._options.resource(path, "nsys") | self._database.machine()
        names = self._database.process_names()
        out: list[Mapping[str, Any]] = []
        for global_pid in list(self._processes) or [0]:
            process: dict[str, Any] = {"process.pid": (global_pid >> 24) & 0xFFFFFF}
            if names.get(global_pid):
                process["process.executable.name"] = names[global_pid]
            out.append(self._options.named(common | process))
        return out


def _domain_key(row: _Row) -> tuple[int, int]:
    return (row.get("globalTid") or 0) & _PROCESS_MASK, row.get("domainId") or 0


def _bad_time(row: _Row) -> str | None:
    start, end = row.get("start"), row.get("end")
    if type(start) is not int or (end is not None and type(end) is not int):
        return "unreadable_time"
    return None


def _or(value: Any, default: int) -> Any:
    return default if value is None else value
