"""Logs of LLM requests: Azure's CSV and Mooncake's JSON lines.

They say when a request came and how long it was in tokens, not how long it took: the
duration of every span is 0 and its end unknown.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from spanlite.errors import InputError
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind

from spanlite_collectors.importers._columns import span_batch
from spanlite_collectors.importers._events import BadRecordError, fits_int64
from spanlite_collectors.importers._files import (
    Progress,
    SourceFile,
    file_digest,
    no_progress,
)
from spanlite_collectors.importers._json_text import load_json, to_json
from spanlite_collectors.importers.options import ImportOptions
from spanlite_collectors.importers.report import ImportReport
from spanlite_collectors.sinks import SpanSink

_CHUNK = 1 << 14
_INPUT, _OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\d*(?:Z|\+00:00)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: (arrival in Unix ns, attributes as JSON)
_Request = tuple[int, str]


def import_requests(
    path: Path, sink: SpanSink, options: ImportOptions, progress: Progress = no_progress
) -> ImportReport:
    """Read one log into the sink, a REQUEST span a line. Raises InputError before sending.

    A request at a time that 64 bits cannot hold is refused as `invalid_time`.
    """
    report = ImportReport(str(path), "requests")
    digest = file_digest(path)
    with SourceFile(path, progress) as source:
        rows = list(_read(path, source, report))
    resource = options.named(options.resource(path, "requests"))
    if not rows and not report.reasons:
        raise InputError(f"{path}: no requests in it; nothing to import")
    for first in range(0, len(rows), _CHUNK):
        _write(rows[first : first + _CHUNK], first, digest, sink, resource)
    if not rows:
        return report
    report.kept("request", len(rows))
    report.span_kinds["request"] = report.traces = report.requests = len(rows)
    report.flags["partial"] = len(rows)
    times = [start for start, _ in rows]
    report.see_times(min(times), max(times))
    report.notes.append("the log does not say how long requests took: every duration is 0")
    if min(times) < 1_000_000_000_000_000:
        report.notes.append("arrivals count from the start of the log, so they lie in 1970")
    return report


def _write(
    rows: list[_Request], first: int, digest: bytes, sink: SpanSink, resource: Mapping[str, Any]
) -> None:
    count = len(rows)
    ids = b"".join(
        blake2b(digest + f"request:{first + i}".encode(), digest_size=16).digest()
        for i in range(count)
    )
    halves = np.frombuffer(ids, dtype=">u8").reshape(-1, 2).astype(np.uint64)
    base = int.from_bytes(blake2b(digest + b"spans", digest_size=8).digest(), "big") >> 1
    columns: dict[str, Any] = {
        "trace_id_high": np.ascontiguousarray(halves[:, 0]),
        "trace_id_low": np.ascontiguousarray(halves[:, 1]),
        "span_id": np.arange(base + first + 1, base + first + 1 + count, dtype=np.uint64),
        "start_ns": [start for start, _ in rows],
        "kind": [int(SpanKind.REQUEST)] * count,
        "name": ["request"] * count,
        "attributes": [attributes for _, attributes in rows],
        "flags": [int(SpanFlag.PARTIAL)] * count,
    }
    sink.write(span_batch(count, columns), resource)


def _read(path: Path, source: SourceFile, report: ImportReport) -> Iterator[_Request]:
    lines = (line.decode("utf-8-sig", "backslashreplace") for line in source.lines())
    first = next(lines, "")
    json_lines = first.lstrip().startswith("{")
    records = _mooncake(first, lines) if json_lines else _azure(path, first, lines)
    number = 1 if json_lines else 2
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except (ValueError, KeyError, TypeError, AttributeError, csv.Error) as error:
            raise _bad(path, number, str(error)) from None
        number += 1
        if record is None:
            continue
        try:
            yield _request(*record)
        except BadRecordError as error:
            report.refused("request", error.reason)
        except ValueError as error:
            raise _bad(path, number - 1, str(error)) from None


def _request(arrival_ns: int | None, attributes: dict[str, Any]) -> _Request:
    if arrival_ns is None or not fits_int64(arrival_ns):
        raise BadRecordError("invalid_time")
    return arrival_ns, to_json(attributes)


#: (arrival in Unix ns or None where there is no such time, attributes); None: an empty line.
_Record = tuple[int | None, dict[str, Any]] | None


def _mooncake(first: str, lines: Iterator[str]) -> Iterator[_Record]:
    for line in _chain(first, lines):
        if not line.strip():
            yield None
            continue
        record = load_json(line)
        arrival = _milliseconds(record.pop("timestamp"))
        attributes = {_INPUT: record.pop("input_length"), _OUTPUT: record.pop("output_length")}
        yield arrival, attributes | record


def _milliseconds(value: Any) -> int | None:
    if type(value) is int:
        return value * 1_000_000
    if type(value) is not float:
        raise ValueError(f"timestamp {str(value)[:40]!r} is not a number")
    return int(value * 1_000_000) if math.isfinite(value * 1_000_000) else None


def _azure(path: Path, header: str, lines: Iterator[str]) -> Iterator[_Record]:
    columns = {name.strip().lower(): name for name in next(csv.reader([header]), [])}
    wanted = ("timestamp", "contexttokens", "generatedtokens")
    if not set(wanted) <= set(columns):
        raise InputError(
            f"{path}: a log of requests has the columns TIMESTAMP, ContextTokens and "
            f"GeneratedTokens; this has {', '.join(columns.values())[:200]}"
        )
    for row in csv.DictReader(lines, fieldnames=list(columns)):
        arrival = _time(row.pop("timestamp"))
        attributes: dict[str, Any] = {
            _INPUT: int(row.pop("contexttokens")),
            _OUTPUT: int(row.pop("generatedtokens")),
        }
        rest = {columns[name]: value for name, value in row.items() if name and value}
        yield arrival, attributes | rest


def _time(text: str) -> int | None:
    """Unix ns of a UTC time, with every digit it has; None where no clock shows it."""
    found = _TIME.fullmatch(text.strip())
    if not found:
        raise ValueError(f"'{text[:40]}' is not a UTC time")
    try:
        day = datetime.fromisoformat(f"{found[1]}T{found[2]}").replace(tzinfo=UTC)
    except ValueError:
        return None
    seconds = (day - _EPOCH) // timedelta(seconds=1)
    return seconds * 1_000_000_000 + int((found[3] or "0").ljust(9, "0"))


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _bad(path: Path, number: int, what: str) -> InputError:
    return InputError(
        f"{path}: line {number} is not a request ({what[:200]}); "
        f"{number - 1} lines before it could be read, nothing was sent"
    )
