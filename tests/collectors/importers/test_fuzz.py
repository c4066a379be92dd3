"""Files that are almost sound: an importer takes them, or says what is wrong; it never breaks.

Each small sound file is changed in one to three places: a value becomes one that its field
cannot hold, a key goes, a byte flips. The seed is fixed, so every run tries the same files.
"""

from __future__ import annotations

import copy
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.errors import InputError
from spanlite.v1.spanlite_pb2 import BatchHeader
from spanlite_collectors.importers import FORMATS, import_file
from spanlite_collectors.importers.report import ImportReport
from spanlite_collectors.sinks import MemorySink

T0 = 1_700_000_000_000_000_000
DEEP = "a value nested so deeply that no reader follows"
HUGE = "a whole number of 5000 digits"
BIG_EXPONENT = "1e999999999999999999999"
#: Values that a field may be given instead of its own.
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 255, 256, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64,
    2**70, 10**20, -(2**31), -(2**62), -(2**63), -(2**63) - 1, -(2**70), 0.5, 1e300, -1e300,
    float("nan"), float("inf"), "", "x", "5", "sNaN", "1e400", "9" * 5000, "\ud800", "a\0b", [],
    [1], [[1]], [1, 2, 3], [-1, 1, 1], ["a", 1, 1], {}, {"a": 1}, {"\udfff": "\ud800"},
    [None] * 3, DEEP, HUGE, BIG_EXPONENT,
]  # fmt: skip
KERNEL_ARGS = {"device": 0, "stream": 7, "correlation": 3, "grid": [1, 1, 1], "block": [1, 1, 1]}
KINETO: dict[str, Any] = {
    "baseTimeNanoseconds": T0,
    "host_name": "host",
    "deviceProperties": [{"name": "H200"}],
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {"ph": "X", "cat": "user_annotation", "name": "step 1", "pid": 1, "tid": 2, "ts": 1,
         "dur": 9},
        {"ph": "X", "cat": "cuda_runtime", "name": "l", "pid": 1, "tid": 2, "ts": 2, "dur": 1,
         "args": {"correlation": 3}},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 4.5, "dur": 2,
         "args": KERNEL_ARGS},
        {"ph": "B", "name": "b", "pid": 1, "tid": 3, "ts": 1, "args": {"a": 1}},
        {"ph": "E", "name": "b", "pid": 1, "tid": 3, "ts": 2, "args": {"b": 1}},
        {"ph": "b", "cat": "c", "name": "async", "id": 1, "pid": 1, "tid": 3, "ts": 1},
        {"ph": "e", "cat": "c", "name": "async", "id": 1, "pid": 1, "tid": 3, "ts": 2},
    ],
}  # fmt: skip
DEVICE = {"start": T0, "end": T0 + 5, "dev": 0, "ctx": 1, "stream": 7, "corr": 1}
CUPTI: list[dict[str, Any]] = [
    {"t": "process", "pid": 7, "exe": "/bin/python"},
    {"t": "api", "name": "cudaLaunchKernel", "start": T0, "end": T0 + 5, "tid": 1, "corr": 1,
     "ret": 0},
    {"t": "kernel", "name": "k", "grid": [1, 1, 1], "block": [1, 1, 1], "cluster": [1, 1, 1],
     "regs": 8, "graph_id": 1, "graph_node": 2, "smem_executed": 3, **DEVICE},
    {"t": "memcpy", "copy_kind": 1, "src_kind": 1, "dst_kind": 3, "bytes": 9, **DEVICE},
    {"t": "memset", "value": 0, "bytes": 9, "dst_kind": 3, **DEVICE},
    {"t": "sync", "type": 1, "ret": 0, **DEVICE},
    {"t": "overhead", "kind": 1, "pid": 7, "tid": 1, "start": T0, "end": T0 + 1},
    {"t": "nvtx", "name": "step 1", "kind": "pushpop", "tid": 1, "start": T0, "end": T0 + 9,
     "domain": "d", "payload": 3},
    {"t": "stats", "dropped": 0},
]  # fmt: skip
MOONCAKE: list[dict[str, Any]] = [
    {"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": [1, 2]},
    {"timestamp": 1.5, "input_length": 2, "output_length": 3},
]
OTLP: dict[str, Any] = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "a", "value": {"stringValue": "b"}}]},
            "scopeSpans": [
                {
                    "scope": {"name": "s"},
                    "spans": [
                        {
                            "traceId": "01" * 16, "spanId": "02" * 8, "parentSpanId": "03" * 8,
                            "name": "s", "kind": 2, "startTimeUnixNano": str(T0),
                            "endTimeUnixNano": str(T0 + 5), "status": {"code": 1},
                            "attributes": [{"key": "k", "value": {"intValue": "5"}}],
                            "events": [{"name": "e", "timeUnixNano": "5"}],
                            "links": [{"traceId": "01" * 16, "spanId": "02" * 8}],
                        }
                    ],
                }
            ],
        }
    ]
}  # fmt: skip
CSV = [["TIMESTAMP", "ContextTokens", "GeneratedTokens"], ["2023-11-16 18:15:46.68", "374", "44"]]
CELLS = [
    "", "x", "-1", "9" * 5000, "0001-01-01 00:00:00", "1500-01-01 00:00:00",
    "2262-04-12 00:00:00", "9999-12-31 23:59:59.999", "0000-00-00 00:00:00",
    "2023-01-01 00:00:60", "1" * 200_000,
    '"', "\0", "nan", "\uff12", "a,b",
]  # fmt: skip
NSYS = {
    "StringIds (id, value)": [(1, "k"), (2, "cudaLaunchKernel"), (3, "python")],
    "TARGET_INFO_SESSION_START_TIME (utcEpochNs, systemClockNs)": [(T0, 5)],
    "PROCESSES (globalPid, name)": [(1 << 24, "python")],
    "CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId,"
    " globalPid, demangledName, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread,"
    " graphId, sharedMemoryExecuted)": [(9, 12, 0, 1, 7, 1, 1 << 24, 1, 1, 1, 1, 1, 1, 1, 8, 0, 5)],
    "CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, correlationId, globalPid, bytes,"
    " copyKind, srcKind)": [(9, 12, 0, 7, 1, 1 << 24, 8, 1, 1)],
    "CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId, returnValue)": [
        (5, 8, (1 << 24) + 2, 1, 2, 0)
    ],
    "NVTX_EVENTS (start, end, eventType, text, textId, globalTid, domainId, category, jsonText)": [
        (1, 20, 59, "step 1", None, (1 << 24) + 2, 0, 1, "{}"),
        (0, None, 75, "domain", None, (1 << 24) + 2, 0, None, None),
    ],
    "OSRT_API (start, end, globalTid, nameId)": [(1, 2, (1 << 24) + 2, 2)],
}  # fmt: skip
CELL_VALUES = [None, -1, 0, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63), 0.5, 1e300,
               float("inf"), "", "x", "5", b"\xff", b""]  # fmt: skip


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything in a JSON value."""
    if not isinstance(value, dict | list):
        return []
    found = []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        found += [(*at, key), *_places(item, (*at, key))]
    return found


def _changed(draw: st.DrawFn, value: Any) -> Any:
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(_places(value)))
        holder = value
        for key in way:
            holder = holder[key]
        if draw(st.integers(0, 7)) == 0:
            del holder[last]
        else:
            holder[last] = copy.deepcopy(draw(st.sampled_from(ODD)))
        if not value:
            break
    return value


def _text(value: Any) -> bytes:
    text = json.dumps(value)
    for stand_in, real in ((DEEP, "[" * 5000 + "]" * 5000), (HUGE, "9" * 5000)):
        text = text.replace(json.dumps(stand_in), real)
    return text.replace(json.dumps(BIG_EXPONENT), BIG_EXPONENT).encode()


def _lines(records: Any) -> bytes:
    return b"\n".join(_text(record) for record in records)


@st.composite
def json_files(draw: st.DrawFn) -> tuple[str, bytes]:
    kind = draw(st.sampled_from(["kineto", "cupti", "requests", "otlp"]))
    sound, write = {
        "kineto": (KINETO, _text),
        "cupti": (CUPTI, _lines),
        "requests": (MOONCAKE, _lines),
        "otlp": (OTLP, _text),
    }[kind]
    return kind, write(_changed(draw, sound))


@st.composite
def csv_files(draw: st.DrawFn) -> tuple[str, bytes]:
    rows = [list(row) for row in CSV]
    for _ in range(draw(st.integers(1, 2))):
        row = draw(st.sampled_from(rows))
        row[draw(st.integers(0, 2))] = draw(st.sampled_from(CELLS))
    return "requests", "\n".join(",".join(row) for row in rows).encode()


@st.composite
def databases(draw: st.DrawFn) -> dict[str, list[tuple[Any, ...]]]:
    tables = {name: [list(row) for row in rows] for name, rows in NSYS.items()}
    for _ in range(draw(st.integers(1, 3))):
        row = draw(st.sampled_from(draw(st.sampled_from(list(tables.values())))))
        row[draw(st.integers(0, len(row) - 1))] = draw(st.sampled_from(CELL_VALUES))
    return {name: [tuple(row) for row in rows] for name, rows in tables.items()}


def write_database(path: Path, tables: dict[str, list[tuple[Any, ...]]]) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as db:
        for name, rows in tables.items():
            db.execute(f"CREATE TABLE {name}")
            marks = ", ".join("?" * len(rows[0]))
            db.executemany(f"INSERT INTO {name.split(' ')[0]} VALUES ({marks})", rows)
    db.close()


def taken_or_refused(path: Path, kind: str) -> ImportReport | None:
    """Import it: any error but InputError fails the test, and so does what cannot be sent."""
    sink = MemorySink()
    try:
        report = import_file(path, sink, source_format=kind)
    except InputError as error:
        assert str(path) in str(error)
        assert sink.written == [] and sink.dropped == {}
        return None
    assert sink.span_count == report.spans
    for spans, resource in sink.written:
        # A batch has one bucket; with one bucket in all any spans do.
        header = BatchHeader(bucket=0, bucket_count=1, producer="p")
        view = BatchView(encode_batch(Batch(header, spans, resource)))
        start, duration = view.column("start_ns"), view.column("duration_ns")
        ends = [a + b for a, b in zip(start.tolist(), duration.tolist(), strict=True)]
        assert all(-(2**63) <= end < 2**63 for end in ends)
    assert all(0 < count < 2**64 for count in sink.dropped.values())
    json.dumps(report.to_dict(), ensure_ascii=False).encode()
    report.table().encode()
    return report


def batches() -> bytes:
    """What `spanlite import FILE --output` writes of two files: several messages."""
    sink = MemorySink()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        for content in (_text(KINETO), _lines(CUPTI)):
            path.write_bytes(content)
            import_file(path, sink)
    written = bytearray()
    for spans, resource in sink.written:
        header = BatchHeader(bucket=0, bucket_count=1, producer="p")
        message = encode_batch(Batch(header, spans, resource))
        size = len(message)
        while size > 127:
            written.append(size & 127 | 128)
            size >>= 7
        written.append(size)
        written += message
    return bytes(written)


FUZZ = settings(
    max_examples=250, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


@seed(7)
@FUZZ
@given(st.one_of(json_files(), csv_files()))
def test_changed_values(tmp_path: Path, file: tuple[str, bytes]) -> None:
    kind, content = file
    path = tmp_path / "file"
    path.write_bytes(content)
    taken_or_refused(path, kind)


@seed(7)
@settings(FUZZ, max_examples=120)
@given(databases())
def test_changed_cells(tmp_path: Path, tables: dict[str, list[tuple[Any, ...]]]) -> None:
    path = tmp_path / "file.sqlite"
    write_database(path, tables)
    taken_or_refused(path, "nsys")


@seed(7)
@settings(FUZZ, max_examples=120)
@given(st.sampled_from(FORMATS), st.data())
def test_flipped_bytes(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    sound: dict[str, Callable[[], bytes]] = {
        "kineto": lambda: _text(KINETO),
        "cupti": lambda: _lines(CUPTI),
        "requests": lambda: _lines(MOONCAKE),
        "otlp": lambda: _text(OTLP),
        "spanbatch": batches,
        "nsys": lambda: (write_database(tmp_path / "s", NSYS), (tmp_path / "s").read_bytes())[1],
    }
    content = bytearray(sound[kind]())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "file"
    path.write_bytes(content[: data.draw(st.sampled_from([None, len(content) // 2]))])
    taken_or_refused(path, kind)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_unchanged_files_are_sound(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    contents = {"kineto": _text(KINETO), "cupti": _lines(CUPTI), "otlp": _text(OTLP)}
    if kind == "nsys":
        write_database(path, NSYS)
    elif kind == "spanbatch":
        path.write_bytes(batches())
    else:
        path.write_bytes(contents.get(kind, _lines(MOONCAKE)))
    report = taken_or_refused(path, kind)
    assert report is not None and not report.reasons
    spans = {"kineto": 5, "nsys": 5, "otlp": 1, "cupti": 7, "requests": 2, "spanbatch": 12}
    assert report.spans == spans[kind]
