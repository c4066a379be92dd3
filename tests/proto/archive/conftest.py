"""Spans to put into archives, and archives to put them into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from spanlite.archive.layout import INCOMING, Archive
from spanlite.archive.writer import SpanFileBuilder
from spanlite.bucket import bucket_of
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.schema import MINUS_ONE_IS_NONE, SPAN_SCHEMA
from spanlite.v1 import spanlite_pb2 as pb

#: 2026-12-01T07:00:00Z.
T0 = 1_796_108_400_000_000_000
RESOURCE = {"service.name": "decode", "host.name": "h1", "process.pid": 4242}

Row = Mapping[str, Any]
MakeView = Callable[..., BatchView]
Commit = Callable[..., list[Path]]


def _default(name: str) -> Any:
    if name in ("attributes", "links"):
        return None
    return "" if name == "name" else -1 if name in MINUS_ONE_IS_NONE else 0


def to_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows with some of SPAN_SCHEMA's columns as a batch; the rest is "none"."""
    columns = []
    for item in SPAN_SCHEMA:
        values = [row.get(item.name, _default(item.name)) for row in rows]
        kind = item.type.value_type if pa.types.is_dictionary(item.type) else item.type
        array = pa.array(values, kind)
        columns.append(array.dictionary_encode() if kind != item.type else array)
    return pa.RecordBatch.from_arrays(columns, schema=SPAN_SCHEMA)


@pytest.fixture(scope="session")
def make_view() -> MakeView:
    """`make_view(rows, resource, buckets=1, bucket=0, **header)`: rows through the wire."""

    def make(
        rows: Sequence[Row],
        resource: Mapping[str, Any] = RESOURCE,
        buckets: int = 1,
        bucket: int = 0,
        **header: Any,
    ) -> BatchView:
        head = pb.BatchHeader(bucket=bucket, bucket_count=buckets, producer="test", **header)
        return BatchView(encode_batch(Batch(head, to_batch(rows), dict(resource))))

    return make


def some_rows(traces: int, spans: int, seed: int = 0, start_ns: int = T0) -> list[dict[str, Any]]:
    """Random spans: `traces` of about `spans` each, half of them kernels."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    base = int(rng.integers(1, 1 << 62))
    for _ in range(traces):
        low, high = (int(x) for x in rng.integers(1, 1 << 62, 2))
        start = start_ns + int(rng.integers(0, 1_000_000_000))
        for i in range(spans):
            is_kernel = i % 2
            row = {
                "trace_id_low": low,
                "trace_id_high": high,
                "span_id": base + len(rows),
                "parent_span_id": base + len(rows) - 1 if is_kernel else 0,
                "start_ns": start + i * 1000 + int(rng.integers(0, 500)),
                "duration_ns": int(rng.integers(1, 5000)),
                "kind": 1 if is_kernel else 5,
                "name": f"kernel_{i % 7}" if is_kernel else "cudaLaunchKernel",
                "status": 1,
            }
            if is_kernel:
                row |= {"device": 0, "stream": 7, "grid_x": i, "block_x": 128}
            rows.append(row)
    return rows


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """A new archive of 2 buckets."""
    return Archive.create(tmp_path / "archive", 2)


@pytest.fixture(scope="session")
def commit(make_view: MakeView) -> Commit:
    """`commit(archive, rows, name)`: into `incoming/`, as a job would; returns the files."""

    def put(archive: Archive, rows: Sequence[Row], name: str, **options: Any) -> list[Path]:
        files = []
        buckets = bucket_of(
            [row["trace_id_low"] for row in rows],
            [row["trace_id_high"] for row in rows],
            archive.bucket_count,
        )
        for bucket in np.unique(buckets):
            chosen = [row for row, at in zip(rows, buckets, strict=True) if at == bucket]
            builder = SpanFileBuilder()
            builder.add(
                make_view(chosen, buckets=archive.bucket_count, bucket=int(bucket), **options)
            )
            for hour, data, _ in builder.finish():
                folder = archive.root / INCOMING / hour / f"bucket={bucket}"
                folder.mkdir(parents=True, exist_ok=True)
                draft = folder / f".{name}.draft"
                draft.write_bytes(data)
                files.append(draft.rename(folder / f"{name}.parquet"))
        return files

    return put


@pytest.fixture(scope="session")
def rows_of() -> Callable[..., list[dict[str, Any]]]:
    """The function `some_rows`."""
    return some_rows
