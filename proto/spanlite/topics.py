"""Kafka topics, and how a bucket becomes a key and a partition."""

from __future__ import annotations

RAW_TOPIC = "spans.raw"
DEAD_TOPIC = "spans.dead"
DEFAULT_PARTITIONS = 8


def bucket_key(bucket: int) -> bytes:
    """The message key of a bucket: its number in ASCII decimal."""
    return str(bucket).encode()


def partition_of(bucket: int, partitions: int) -> int:
    """The partition of a bucket. Producers set it themselves, so all agree."""
    return bucket % partitions
