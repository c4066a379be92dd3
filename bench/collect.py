"""Spans a second through delivery to a real broker, against Kafka's producer alone.

python -m bench.collect [--quick]

The peer is a plain confluent-kafka producer that is handed the finished messages of the
same run, with the same settings: what splitting, encoding, numbering and the order cost.
The spool's figure is the same run with no broker, to disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from spanlite.codec import read_header
from spanlite.topics import bucket_key
from spanlite_collectors.delivery import KafkaSink, KafkaTransport, Numbering, Outbox, Spool
from spanlite_collectors.delivery.transport import Message
from spanlite_collectors.generator import DecodeConfig, generate
from spanlite_stack import Stack

from bench._report import emit

Load = Sequence[tuple[pa.RecordBatch, dict[str, Any]]]
AWAY = "127.0.0.1:9"


class Keeping(KafkaTransport):
    """The real transport, which also keeps what it sends for the peer."""

    kept: list[Message]

    def send(self, message: Message) -> None:
        """Keep it and send it."""
        self.kept.append(message)
        super().send(message)


def timed(outbox: Outbox, load: Load) -> float:
    """Seconds until everything is acknowledged or on disk."""
    sink = KafkaSink(outbox, Numbering("bench"), block=True)
    began = time.perf_counter()
    for spans, resource in load:
        sink.write(spans, resource)
    sink.flush()
    seconds = time.perf_counter() - began
    sink.close()
    return seconds


def plain(bootstrap: str, topic: str, messages: list[Message]) -> float:
    """Seconds for a plain producer to get the same messages acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "message.max.bytes": 16 << 20,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    producer.list_topics(topic, timeout=60)
    began = time.perf_counter()
    for message in messages:
        producer.produce(topic, message.payload, bucket_key(message.bucket), message.bucket % 8)
        producer.poll(0)
    left = producer.flush(120)
    assert left == 0
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="half a million spans")
    args = parser.parse_args()
    count = 500_000 if args.quick else 5_000_000
    load = list(generate(DecodeConfig(spans=count)))
    count = sum(spans.num_rows for spans, _ in load)
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder) / "stack")
        try:
            bootstrap = stack.up().bootstrap
            transport = Keeping(bootstrap, queue_bytes=64 << 20)
            transport.kept = []
            transport.ask_partitions(30)
            seconds = timed(Outbox(transport), load)
            peer = plain(bootstrap, "spans.raw", transport.kept)
        finally:
            stack.remove()
        messages = transport.kept
        sent = sum(read_header(message.payload).span_count for message in messages)
        assert sent == count
        emit("collect.spans_per_s", count / seconds, "spans/s", peer="plain", ratio=peer / seconds)
        size = sum(len(message.payload) for message in messages)
        emit("collect.payload_bytes_per_span", size / count, "B")
        away = KafkaTransport(AWAY, queue_bytes=64 << 20)
        outbox = Outbox(away, Spool(Path(folder) / "spool"), stall_s=0)
        emit("collect.spool_spans_per_s", count / timed(outbox, load), "spans/s")


if __name__ == "__main__":
    main()
