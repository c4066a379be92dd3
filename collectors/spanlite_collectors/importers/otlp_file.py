"""OTLP files: JSON (one document, or one a line) and protobuf (one message, or many).

Delimiters of protobuf files may be varints, as protobuf's own helpers write them, or four
bytes big-endian, as the OpenTelemetry collector's file exporter does. A span delivered
twice with the same content is refused as a duplicate.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from spanlite.errors import InputError
from spanlite.flags import SpanFlag

from spanlite_collectors.importers._files import (
    GZIP_MAGIC,
    Progress,
    SourceFile,
    no_progress,
)
from spanlite_collectors.importers._json_stream import JsonStream
from spanlite_collectors.importers.options import ImportOptions
from spanlite_collectors.importers.otlp import Conversion, convert_resource_spans, refusal
from spanlite_collectors.importers.otlp_json import parse_resource_spans
from spanlite_collectors.importers.report import ImportReport
from spanlite_collectors.sinks import SpanSink

_RESOURCE_SPANS_TAG = 0x0A
#: Where a message starts and ends in the file.
_Piece = tuple[int, int]


def import_otlp(
    path: Path, sink: SpanSink, options: ImportOptions, progress: Progress = no_progress
) -> ImportReport:
    """Read one file into the sink, group by group.

    A file is read to its end once before anything is sent, so that a damaged one sends
    nothing. Raises InputError.
    """
    report = ImportReport(str(path), "otlp")
    for _ in _groups(path, no_progress):
        pass
    writer = _Writer(sink, report, options)
    for group in _groups(path, progress):
        writer.add(group)
    report.traces = len(writer.traces)
    return report


def _groups(path: Path, progress: Progress) -> Iterator[ResourceSpans]:
    with SourceFile(path, progress) as source:
        head = source.read(64)
    if head.lstrip()[:1] == b"{":
        return _json_groups(path, progress)
    return _protobuf_groups(path, progress)


class _Writer:
    """Removes repeated spans and hands on the rest."""

    def __init__(self, sink: SpanSink, report: ImportReport, options: ImportOptions) -> None:
        self._sink, self._report, self._options = sink, report, options
        self._seen: set[bytes] = set()
        self.traces: set[tuple[int, int]] = set()

    def add(self, group: ResourceSpans) -> None:
        """Take in one group of spans of one resource."""
        self._remove_repeated(group)
        result: Conversion = convert_resource_spans([group])
        for reason, count in result.refused.items():
            self._report.refused("span", reason, count)
        for spans, resource in result.batches:
            self._write(spans, resource)

    def _remove_repeated(self, group: ResourceSpans) -> None:
        for scope_spans in group.scope_spans:
            for at in reversed(range(len(scope_spans.spans))):
                span = scope_spans.spans[at]
                if refusal(span):
                    continue
                raw = span.SerializeToString(deterministic=True)
                key = blake2b(raw, digest_size=16).digest()
                if key in self._seen:
                    self._report.refused("span", "duplicate")
                    del scope_spans.spans[at]
                self._seen.add(key)

    def _write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        report = self._report
        report.kept("span", spans.num_rows)
        report.span_kinds["host"] += spans.num_rows
        start = spans.column("start_ns").to_numpy()
        end = start + spans.column("duration_ns").to_numpy()
        report.see_times(int(start.min()), int(end.max()))
        flags = spans.column("flags").to_numpy()
        for flag in SpanFlag:
            count = int((flags & np.uint32(flag) != 0).sum())
            if count:
                report.flags[str(flag.name).lower()] += count
        low, high = spans.column("trace_id_low"), spans.column("trace_id_high")
        self.traces.update(zip(low.to_pylist(), high.to_pylist(), strict=True))
        self._sink.write(spans, self._options.named(resource))


def _json_groups(path: Path, progress: Progress) -> Iterator[ResourceSpans]:
    found = False
    with SourceFile(path, progress) as source:
        stream = JsonStream(source)
        while stream.peek():
            for key, value in stream.members(lambda k: k in ("resourceSpans", "resource_spans")):
                if key in ("resourceSpans", "resource_spans"):
                    found = True
                    for item in _array(path, value):
                        yield _from_json(path, item, stream)
    if not found:
        raise InputError(f"{path}: no resourceSpans in it, so it holds no OTLP traces")


def _array(path: Path, value: Any) -> Iterator[Any]:
    if value is not None and not isinstance(value, Iterator):
        raise InputError(f"{path}: resourceSpans is not an array, so it holds no OTLP traces")
    return value or iter(())


def _from_json(path: Path, item: Any, stream: JsonStream) -> ResourceSpans:
    try:
        return parse_resource_spans(item)
    except ValueError as error:
        raise InputError(
            f"{path}: not OTLP before character {stream.position}: {error}; nothing of it was sent"
        ) from None


def _protobuf_groups(path: Path, progress: Progress) -> Iterator[ResourceSpans]:
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
        if packed:
            with SourceFile(path, no_progress) as source:
                yield from _messages(path, b"".join(source.blocks()), progress)
        else:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield from _messages(path, data, progress)


def _messages(path: Path, data: bytes | mmap.mmap, progress: Progress) -> Iterator[ResourceSpans]:
    for split in (_whole, _big_endian, _varints):
        pieces = split(data)
        if pieces is not None:
            break
    else:
        raise InputError(
            f"{path}: neither an ExportTraceServiceRequest nor a row of delimited ones, or cut "
            "off; nothing of it was sent"
        )
    for start, end in pieces:
        try:
            # For a whole request the pieces are its ResourceSpans, tag included: each one
            # is a request of its own.
            request = ExportTraceServiceRequest.FromString(data[start:end])
        except DecodeError as error:
            raise InputError(
                f"{path}: bytes {start} to {end} are no ExportTraceServiceRequest ({error}); "
                "nothing of it was sent"
            ) from None
        progress(end)
        yield from request.resource_spans


def _whole(data: bytes | mmap.mmap) -> list[_Piece] | None:
    return _tile(data, lambda at: _tagged(data, at))


def _big_endian(data: bytes | mmap.mmap) -> list[_Piece] | None:
    return _tile(
        data, lambda at: (at + 4, at + 4 + int.from_bytes(data[at : at + 4], "big")), check=True
    )


def _varints(data: bytes | mmap.mmap) -> list[_Piece] | None:
    return _tile(data, lambda at: _delimited(data, at), check=True)


def _tile(
    data: bytes | mmap.mmap, step: Callable[[int], _Piece | None], check: bool = False
) -> list[_Piece] | None:
    """Pieces that fill the file exactly, or None."""
    pieces, at, size = [], 0, len(data)
    while at < size:
        piece = step(at)
        if piece is None or piece[1] > size:
            return None
        start, at = piece
        if check and at > start and data[start] != _RESOURCE_SPANS_TAG:
            return None
        if at > start:
            pieces.append((start, at))
    return pieces


def _tagged(data: bytes | mmap.mmap, at: int) -> _Piece | None:
    if data[at] != _RESOURCE_SPANS_TAG:
        return None
    inner = _delimited(data, at + 1)
    return (at, inner[1]) if inner else None


def _delimited(data: bytes | mmap.mmap, at: int) -> _Piece | None:
    value = shift = 0
    while at < len(data) and shift < 63:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return at, at + value
    return None
