"""Where the job's output goes: files of the archive, and dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyflink.datastream import DataStream
from pyflink.datastream.connectors import DeliveryGuarantee, Sink
from pyflink.java_gateway import get_gateway

from spanlite_pipeline.frames import DEAD_LETTER, FILE


def only(stream: DataStream, kind: int) -> Any:
    """The Java stream of the rows of one kind."""
    outputs = get_gateway().jvm.io.spanlite.flink.Outputs
    return stream._j_data_stream.filter(outputs.only(kind))


def write_files(stream: DataStream, archive: str, name: str) -> None:
    """Commit each file row under the archive when a checkpoint completes: exactly once."""
    location = archive if "://" in archive else Path(archive).absolute().as_uri()
    outputs = get_gateway().jvm.io.spanlite.flink.Outputs
    # Flink adds subtask and counter; the name keeps the files of two operators apart.
    sink = Sink(outputs.archive(location, f"part-{name}"))
    files = DataStream(only(stream, FILE)).sink_to(sink)
    files.name(f"archive ({name})").uid(f"files-{name}")


def write_dead_letters(stream: DataStream, bootstrap: str, topic: str) -> None:
    """Send dead letters to Kafka, at least once."""
    jvm = get_gateway().jvm
    serializer = (
        jvm.org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema.builder()
        .setTopic(topic)
        .setValueSerializationSchema(jvm.io.spanlite.flink.Outputs.payload())
        .build()
    )
    sink = (
        jvm.org.apache.flink.connector.kafka.sink.KafkaSink.builder()
        .setBootstrapServers(bootstrap)
        .setRecordSerializer(serializer)
        .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE._to_j_delivery_guarantee())
        .setProperty("max.request.size", str(32 << 20))
        .setProperty("compression.type", "zstd")
        .build()
    )
    letters = DataStream(only(stream, DEAD_LETTER)).sink_to(Sink(sink))
    letters.name(topic).uid("dead-letters")
