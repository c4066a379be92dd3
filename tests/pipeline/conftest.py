"""Batches of small traces, and a way to read what the job put out."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spanlite.bucket import bucket_of
from spanlite.codec import Batch, encode_batch
from spanlite.schema import SPAN_SCHEMA, STRING
from spanlite.v1 import spanlite_pb2 as pb
from spanlite_pipeline import tables
from spanlite_pipeline.frames import FILE, TABLE_ROWS, Message, Output, read_file_output

T0_NS = 1_764_576_000_000_000_000  # 08:00 UTC
BUCKETS = 4
BUCKET = 1


def trace_ids(count: int, seed: int = 0, bucket: int = BUCKET, buckets: int = BUCKETS) -> list[int]:
    """Low halves of trace ids that fall into one bucket."""
    rng = np.random.default_rng(seed)
    found: list[int] = []
    while len(found) < count:
        draw = rng.integers(1, 1 << 63, 4 * buckets * count, dtype=np.uint64)
        found += draw[bucket_of(draw, np.zeros_like(draw), buckets) == bucket].tolist()
    return found[:count]


@dataclass(frozen=True)
class Span:
    trace: int
    span_id: int
    parent: int = 0
    start_ns: int = T0_NS
    duration_ns: int = 1000
    name: str = "gemm"
    kind: int = 1
    status: int = 0


def record_batch(spans: Sequence[Span]) -> pa.RecordBatch:
    """The spans in SPAN_SCHEMA, on device 0."""
    values: dict[str, list[Any]] = {
        "trace_id_low": [s.trace for s in spans],
        "span_id": [s.span_id for s in spans],
        "parent_span_id": [s.parent for s in spans],
        "start_ns": [s.start_ns for s in spans],
        "duration_ns": [s.duration_ns for s in spans],
        "kind": [s.kind for s in spans],
        "status": [s.status for s in spans],
        "name": [s.name for s in spans],
    }
    arrays = []
    for item in SPAN_SCHEMA:
        plain = item.type.value_type if item.type == STRING else item.type
        default: Any = 0 if item.name not in ("attributes", "links") else None
        column = pa.array(values.get(item.name, [default] * len(spans)), plain)
        arrays.append(column.dictionary_encode() if item.type == STRING else column)
    return pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)


@dataclass
class Producer:
    """Numbers batches as a collector does."""

    name: str = "host-0/collector"
    epoch: int = T0_NS
    bucket: int = BUCKET
    bucket_count: int = BUCKETS
    seq: int = 0
    spans: int = 0
    resource: dict[str, Any] = field(
        default_factory=lambda: {"service.name": "llm", "host.name": "host-0"}
    )

    def batch(self, spans: Sequence[Span], **header: Any) -> bytes:
        head = pb.BatchHeader(
            bucket=self.bucket,
            bucket_count=self.bucket_count,
            producer=self.name,
            epoch=self.epoch,
            seq=self.seq,
            spans_before=self.spans,
            created_ns=T0_NS,
            **header,
        )
        self.seq += 1
        self.spans += len(spans)
        return encode_batch(Batch(head, record_batch(spans), self.resource))


def message(value: bytes, offset: int = 0, bucket: int = BUCKET) -> Message:
    return Message(bucket, 0, offset, 0, value)


@dataclass
class Read:
    """What some outputs hold."""

    spans: list[dict[str, Any]]
    traces: list[dict[str, Any]]
    kernel_minutes: list[dict[str, Any]]
    ledger: list[dict[str, Any]]
    dead: list[pb.DeadLetter]
    folders: list[str]

    def ids(self) -> list[tuple[str, int]]:
        return sorted((row["trace_id"], row["span_id"]) for row in self.spans)

    def sums(self, hop: str) -> dict[str, int]:
        """Spans by direction."""
        out = dict.fromkeys(("in", "out", "dropped", "open"), 0)
        for row in self.ledger:
            if row["hop"] == hop:
                out[row["direction"]] += row["spans"]
        return out

    def dropped(self, hop: str) -> dict[str, int]:
        out: dict[str, int] = {}
        for row in self.ledger:
            if row["hop"] == hop and row["direction"] == "dropped":
                out[row["reason"]] = out.get(row["reason"], 0) + row["spans"]
        return out


def read_outputs(outputs: Iterable[Output]) -> Read:
    """Read files, rows of tables (as TableFunction would merge them) and dead letters."""
    read = Read([], [], [], [], [], [])
    rows: dict[str, list[bytes]] = {}
    files = []
    for kind, payload in outputs:
        if kind == FILE:
            files.append(payload)
        elif kind == TABLE_ROWS:
            name, _, part = payload.partition(b"\n")
            rows.setdefault(name.decode(), []).append(part)
        else:
            read.dead.append(pb.DeadLetter.FromString(payload))
    for name, parts in rows.items():
        files += [payload for _, payload in tables.finish(name, parts)]
    for payload in files:
        folder, content = read_file_output(payload)
        read.folders.append(folder)
        table = pq.read_table(io.BytesIO(content)).to_pylist()
        {
            "incoming": read.spans,
            "traces": read.traces,
            "kernel_minutes": read.kernel_minutes,
            "ledger": read.ledger,
        }[folder.split("/")[0]].extend(table)
    return read


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """Everything above; test modules cannot import a conftest."""
    return sys.modules[__name__]
