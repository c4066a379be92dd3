"""Generated spans into a real broker, once as our batches and once as rows for Flink SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from spanlite.codec import read_header
from spanlite_collectors.batching import Batcher
from spanlite_collectors.delivery import KafkaSink, KafkaTransport, Numbering, Outbox

from bench.flink_sql import rows


@dataclass
class Topic:
    """A filled topic: how many spans each message holds, by partition and offset."""

    name: str
    spans: list[list[int]] = field(default_factory=list)
    payload_bytes: int = 0

    @property
    def total(self) -> int:
        return sum(map(sum, self.spans))


class BatchLoad:
    """Our way in: the real sink, one producer."""

    def __init__(self, bootstrap: str, topic: str, producer: str = "bench/0") -> None:
        self._bootstrap, self._topic = bootstrap, topic
        transport = KafkaTransport(bootstrap, topic, queue_bytes=64 << 20)
        self._sink = KafkaSink(
            Outbox(transport), Numbering(producer), Batcher(batch_age_s=60.0), block=True
        )

    def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        self._sink.write(spans, resource)

    def close(self) -> Topic:
        self._sink.close()
        return read_topic(self._bootstrap, self._topic)


class RowLoad:
    """The peer's way in: SpanRows messages of the first spans, spread evenly, compressed alike."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, most: int) -> None:
        self._left = most
        self._topic = Topic(topic, [[] for _ in range(partitions)])
        self._next = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": "zstd",
                "linger.ms": 50,
                "message.max.bytes": 16 << 20,
                "queue.buffering.max.kbytes": 256 << 10,
            }
        )

    def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        spans = spans.slice(0, self._left)
        left = spans.num_rows
        self._left -= left
        for message in rows.encode(spans, resource):
            partition = self._next % len(self._topic.spans)
            self._next += 1
            self._topic.spans[partition].append(min(left, rows.ROWS_A_MESSAGE))
            left -= rows.ROWS_A_MESSAGE
            self._topic.payload_bytes += len(message)
            self._send(message, partition)

    def _send(self, message: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(self._topic.name, message, partition=partition)
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(0.1)

    def close(self) -> Topic:
        self._producer.flush()
        return self._topic


def fill(batches: Iterable[tuple[pa.RecordBatch, Mapping[str, Any]]], *loads: Any) -> list[Topic]:
    """Write every record batch into every load."""
    for spans, resource in batches:
        for load in loads:
            load.write(spans, resource)
    return [load.close() for load in loads]


def read_topic(bootstrap: str, name: str) -> Topic:
    """Read all messages of a topic for their headers."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench-reader", "enable.auto.commit": False}
    )
    found = consumer.list_topics(name, timeout=30).topics[name].partitions
    places = [TopicPartition(name, p, OFFSET_BEGINNING) for p in sorted(found)]
    ends = [consumer.get_watermark_offsets(place, timeout=30)[1] for place in places]
    topic = Topic(name, [[] for _ in places])
    consumer.assign(places)
    while any(len(got) < end for got, end in zip(topic.spans, ends, strict=True)):
        for message in consumer.consume(500, timeout=10):
            if message.error():
                raise RuntimeError(str(message.error()))
            topic.spans[message.partition()].append(read_header(message.value()).span_count)
            topic.payload_bytes += len(message.value())
    consumer.close()
    return topic
