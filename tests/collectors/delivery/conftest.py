"""Spans and a Kafka reader for the delivery tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from spanlite.codec import BatchView
from spanlite.schema import SPAN_SCHEMA

MakeSpans = Callable[..., pa.RecordBatch]


def _spans(count: int, first_id: int = 1, per_trace: int = 20, seed: int = 0) -> pa.RecordBatch:
    """Spans with ids first_id, first_id + 1, ... and random trace ids."""
    rng = np.random.default_rng([seed, first_id])
    traces = rng.integers(0, 1 << 63, (count // per_trace + 1, 2)).astype(np.uint64)
    ids = np.repeat(traces, per_trace, axis=0)[:count]
    given: dict[str, Any] = {
        "trace_id_low": ids[:, 0],
        "trace_id_high": ids[:, 1],
        "span_id": np.arange(first_id, first_id + count, dtype=np.uint64),
        "start_ns": 1_700_000_000_000_000_000 + np.arange(count, dtype=np.int64) * 1000,
        "duration_ns": rng.integers(1, 10_000, count),
    }
    arrays = []
    for field in SPAN_SCHEMA:
        if field.name in ("name", "attributes"):
            index = pa.array(rng.integers(0, 3, count).astype(np.int32))
            arrays.append(pa.DictionaryArray.from_arrays(index, pa.array(["{}", "é", '{"a":1}'])))
        elif field.name == "links":
            arrays.append(pa.nulls(count, field.type))
        else:
            values = given.get(field.name, np.zeros(count))
            arrays.append(pa.array(values.astype(field.type.to_pandas_dtype())))
    return pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)


@pytest.fixture(scope="session")
def make_spans() -> MakeSpans:
    return _spans


@contextmanager
def _consumer(bootstrap: str, topic: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        found = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        consumer.assign([TopicPartition(topic, p, 0) for p in found])
        yield consumer
    finally:
        consumer.close()


def _read_all(bootstrap: str, topic: str) -> list[BatchView]:
    """Every message of the topic; those of a partition in their order."""
    views: list[BatchView] = []
    with _consumer(bootstrap, topic) as consumer:
        ends = {
            tp.partition: consumer.get_watermark_offsets(tp, timeout=60)[1]
            for tp in consumer.assignment()
        }
        left = sum(ends.values())
        deadline = time.monotonic() + 120
        while left > 0:
            assert time.monotonic() < deadline, f"{left} messages did not come"
            for message in consumer.consume(500, timeout=1.0):
                assert message.error() is None
                view = BatchView(message.value())
                assert message.key() == str(view.header.bucket).encode()
                assert message.partition() == view.header.bucket % len(ends)
                views.append(view)
                left -= 1
    return views


@pytest.fixture(scope="session")
def read_all() -> Callable[[str, str], list[BatchView]]:
    return _read_all
