"""Small archives with real files, written by the archive's own writer."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spanlite.archive import schema
from spanlite.archive.layout import INCOMING, Archive
from spanlite.archive.writer import SpanFileBuilder
from spanlite.bucket import bucket_of
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.schema import SPAN_SCHEMA
from spanlite.v1 import spanlite_pb2 as pb
from spanlite_replay import _native

#: 2026-12-01T07:00:00Z
HOUR = 1_796_108_400_000_000_000
BUCKETS = 4


def _spans(**columns: Any) -> pa.RecordBatch:
    """Spans in SPAN_SCHEMA from a few columns; the others say "none"."""
    count = len(next(iter(columns.values())))
    arrays = []
    for item in SPAN_SCHEMA:
        if item.name in columns:
            arrays.append(pa.array(columns[item.name], item.type))
        elif item.nullable:
            arrays.append(pa.nulls(count, item.type))
        elif item.name == "name":
            arrays.append(pa.array(["k"] * count).dictionary_encode())
        else:
            none = -1 if item.name in ("device", "context", "stream") else 0
            arrays.append(pa.array(np.full(count, none), item.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)


def _write_archive(
    root: Path, batch: pa.RecordBatch, resource: Mapping[str, Any] | None = None, parts: int = 1
) -> Path:
    """Add the spans to an archive, each bucket in `parts` files an hour."""
    archive = Archive.create(root, BUCKETS)
    low, high = (batch.column(f"trace_id_{half}").to_numpy() for half in ("low", "high"))
    bucket = bucket_of(low, high, BUCKETS)
    for number in range(BUCKETS):
        rows = np.flatnonzero(bucket == number)
        for part in np.array_split(rows, parts):
            header = pb.BatchHeader(bucket=number, bucket_count=BUCKETS, producer="p")
            chosen = batch.take(pa.array(part))
            view = BatchView(encode_batch(Batch(header, chosen, resource or {"service.name": "s"})))
            builder = SpanFileBuilder()
            builder.add(view)
            for hour, data, _ in builder.finish():
                folder = archive.root / INCOMING / hour / f"bucket={number}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"part-{len(list(folder.iterdir()))}.parquet").write_bytes(data)
    return root


#: What a row of the archive has where a test does not say.
_NONE: dict[str, Any] = {
    "name": "k",
    "status": "unset",
    "service": "s",
    "host": "h",
    "process_id": 1,
    "flags": 0,
    "resource": "{}",
    "sampling_weight": 1.0,
    "clock_offset_ns": 0,
    "clock_uncertainty_ns": 0,
}


def _rows(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of the archive's `spans`: what is on a stream is on device 0, trace 1 by default."""
    full = []
    for number, row in enumerate(rows):
        one = {"trace_id": f"{row.get('trace', 1):032x}", "span_id": number + 1, **_NONE, **row}
        if row.get("stream") is not None:
            one = {"device": 0, "context": 1} | one
        full.append(one)
    columns = [pa.array([row.get(item.name) for row in full], item.type) for item in schema.SPANS]
    return pa.Table.from_arrays(columns, schema=schema.SPANS)


@pytest.fixture(scope="session")
def make_rows() -> Callable[[list[dict[str, Any]]], pa.Table]:
    """`make_rows([{"kind": "kernel", "start_ns": 0, ...}, ...])`: rows as the archive has them."""
    return _rows


@functools.cache
def _imported(path: Path) -> pa.Table:
    """A recording as the archive has it."""
    from spanlite_collectors.importers import import_file
    from spanlite_collectors.sinks import MemorySink

    sink = MemorySink()
    import_file(path, sink)
    builder = SpanFileBuilder()
    header = pb.BatchHeader(bucket=0, bucket_count=1, producer="p")
    for batch, resource in sink.written:
        builder.add(BatchView(encode_batch(Batch(header, batch, resource))))
    parts = [pq.read_table(io.BytesIO(data)) for _, data, _ in builder.finish()]
    return pa.concat_tables(parts)


@pytest.fixture(scope="session")
def import_rows() -> Callable[[Path], pa.Table]:
    """`import_rows(path)`: a recording as rows of the archive's `spans`."""
    return _imported


@pytest.fixture
def make_spans() -> Callable[..., pa.RecordBatch]:
    """`make_spans(start_ns=[...], ...)`: spans in SPAN_SCHEMA."""
    return _spans


@pytest.fixture
def write_archive() -> Callable[..., Path]:
    """`write_archive(root, spans, resource, parts)` adds spans to an archive."""
    return _write_archive


@pytest.fixture
def spanlite(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `spanlite ARGS`: (exit code, stdout, stderr)."""
    from spanlite.cli import main

    def run(*args: object) -> tuple[int, str, str]:
        try:
            code = main([str(word) for word in args])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(params=["numpy", "compiled"], scope="module")
def plan_loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that use it run twice: with the loops in C++, and without."""
    if request.param == "compiled" and not _native.is_there():
        pytest.skip("no C++ compiler here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "WORTH_IT", 0)
        patch.setenv(_native.VARIABLE, "1" if request.param == "compiled" else "0")
        yield
