"""Messages from Kafka, already keyed by bucket, without a Python stage before the shuffle."""

from __future__ import annotations

from typing import Any

from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import DataStream, KeyedStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from pyflink.java_gateway import get_gateway

BYTES = Types.PRIMITIVE_ARRAY(Types.BYTE())


def flink_keys(buckets: int, max_parallelism: int) -> list[int]:
    """The Flink key of each bucket, chosen so that subtasks carry equal shares."""
    return list(get_gateway().jvm.io.spanlite.flink.Buckets.flinkKeys(buckets, max_parallelism))


def kafka_source(
    bootstrap: str, topic: str, group: str, buckets: int, max_parallelism: int
) -> KafkaSource:
    """Raw messages from the start of the topic; unbounded.

    Each comes with its Flink key, and framed with its bucket and place. A restored job
    goes on from the offsets in its checkpoint instead; the group's offsets only tell others
    how far it has come.
    """
    reader = get_gateway().jvm.io.spanlite.flink.MessageReader(buckets, max_parallelism)
    builder = (
        KafkaSource.builder()
        .set_bootstrap_servers(bootstrap)
        .set_topics(topic)
        .set_group_id(group)
        .set_starting_offsets(KafkaOffsetsInitializer.earliest())
        .set_property("partition.discovery.interval.ms", "30000")
        # Batches are large; the defaults (1 MiB a partition) fetch a few messages at a time.
        .set_property("max.partition.fetch.bytes", str(8 << 20))
        .set_property("fetch.max.bytes", str(32 << 20))
        .set_property("receive.buffer.bytes", str(1 << 20))
    )
    builder._j_builder.setDeserializer(reader)
    return builder.build()


def messages(
    env: StreamExecutionEnvironment, source: KafkaSource, buckets: int, max_parallelism: int
) -> KeyedStream:
    """The stream of framed messages, keyed by bucket; a start wakes up each bucket once."""
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "spans.raw")
    stream.uid("source")
    wake_up = get_gateway().jvm.io.spanlite.flink.WakeUp(buckets, max_parallelism)
    rows = stream._j_data_stream
    woken = rows.transform("wake up", rows.getType(), wake_up).uid("wake-up")
    return keyed(woken, stream)


def keyed(j_rows: Any, origin: DataStream) -> KeyedStream:
    """Key rows (int key, bytes) by their first field; what Python sees is the bytes."""
    selector = get_gateway().jvm.KeyByKeySelector()
    key_type = Types.ROW([Types.INT()]).get_java_type_info()
    return KeyedStream(j_rows.keyBy(selector, key_type), BYTES, origin)
