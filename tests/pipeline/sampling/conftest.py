"""Small batches and summaries to try rules on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.schema import MINUS_ONE_IS_NONE, SPAN_SCHEMA
from spanlite.v1 import spanlite_pb2 as pb
from spanlite_pipeline.sampling import TraceSummaries

MakeView = Callable[..., BatchView]
MakeTraces = Callable[..., TraceSummaries]


def _array(field: pa.Field, values: Any, count: int) -> pa.Array:
    if values is None and field.name in ("attributes", "links"):
        return pa.nulls(count, field.type)
    if values is None:
        values = [-1 if field.name in MINUS_ONE_IS_NONE else 0] * count
        values = ["op"] * count if field.name == "name" else values
    if pa.types.is_dictionary(field.type):
        return pa.array(values, pa.string()).dictionary_encode().cast(field.type)
    return pa.array(values, field.type)


@pytest.fixture
def make_view() -> MakeView:
    """make_view(resource={...}, column=[values], ...): a decoded batch with these columns."""

    def make(resource: Mapping[str, Any] | None = None, **columns: list[Any]) -> BatchView:
        count = len(next(iter(columns.values())))
        columns.setdefault("trace_id_low", [1] * count)
        arrays = [_array(f, columns.get(f.name), count) for f in SPAN_SCHEMA]
        spans = pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)
        header = pb.BatchHeader(bucket=0, bucket_count=1)
        return BatchView(encode_batch(Batch(header, spans, resource or {})))

    return make


@pytest.fixture
def make_traces() -> MakeTraces:
    """make_traces(n, seed=0, spans=..., ...): summaries of n traces with random ids."""

    def make(count: int, seed: int = 0, **columns: Any) -> TraceSummaries:
        rng = np.random.default_rng(seed)
        values: dict[str, Any] = {
            "trace_low": rng.integers(0, 1 << 64, count, dtype=np.uint64),
            "trace_high": rng.integers(0, 1 << 64, count, dtype=np.uint64),
            "start_ns": np.zeros(count, dtype=np.int64),
            "end_ns": np.zeros(count, dtype=np.int64),
            "spans": np.ones(count, dtype=np.int64),
            "errors": np.zeros(count, dtype=np.int64),
            "device_ns": np.zeros(count, dtype=np.int64),
            "wire_bytes": np.full(count, 100, dtype=np.int64),
            "matches": np.zeros(count, dtype=np.uint64),
        }
        for name, column in columns.items():
            dtype = values[name].dtype
            values[name] = np.broadcast_to(np.asarray(column, dtype=dtype), (count,)).copy()
        return TraceSummaries(**values)

    return make
