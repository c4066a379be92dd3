"""The broker's settings: one node that is broker and controller, sized for a laptop."""

from __future__ import annotations

import socket
from pathlib import Path

from spanlite.topics import DEAD_TOPIC, RAW_TOPIC

HOST = "127.0.0.1"
#: A batch of 16k spans takes about 0.1 MB; this leaves room for whole recordings.
MAX_MESSAGE_BYTES = 16 << 20
#: A day of messages, at most 2 GiB a partition, is enough to look again at yesterday.
RETENTION_HOURS = 24
RETENTION_BYTES = 2 << 30
SEGMENT_BYTES = 128 << 20

TOPIC_CONFIG = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}


def topics(partitions: int) -> dict[str, int]:
    """Topic to number of partitions."""
    return {RAW_TOPIC: partitions, DEAD_TOPIC: 1}


def is_free(port: int) -> bool:
    """Whether the broker could listen on that port now."""
    with socket.socket() as probe:
        # As the JVM does: a connection of the last run in TIME_WAIT is no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def server_properties(log_dir: Path, port: int, controller_port: int) -> str:
    """`server.properties` of the broker."""
    values = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": log_dir,
        "auto.create.topics.enable": "false",
        "default.replication.factor": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "replica.fetch.max.bytes": MAX_MESSAGE_BYTES,
        "log.retention.hours": RETENTION_HOURS,
        "log.retention.bytes": RETENTION_BYTES,
        "log.segment.bytes": SEGMENT_BYTES,
        # Only the offsets topic is compacted here; the default takes 128 MB of heap.
        "log.cleaner.dedupe.buffer.size": 8 << 20,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "controlled.shutdown.enable": "true",
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def log4j_properties(logs: Path) -> str:
    """Reload4j settings: the broker's log, rolled so that it stays under 50 MB."""
    return f"""log4j.rootLogger=INFO, file
log4j.appender.file=org.apache.log4j.RollingFileAppender
log4j.appender.file.File={logs / "broker.log"}
log4j.appender.file.MaxFileSize=10MB
log4j.appender.file.MaxBackupIndex=4
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=%d{{ISO8601}} %p %c: %m%n
log4j.logger.org.apache.kafka.storage.internals.log=WARN
"""
