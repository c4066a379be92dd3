"""Kafka topics, and how a bucket becomes a key and a partition."""

from __future__ import annotations

RAW_TOPIC = "spans.raw"
DEAD_TOPIC = "spans.dead"
DEFAULT_PARTITIONS = 8
#: Producers compress with zstd. Level 6 makes batches 7 % smaller than the default 3 and
#: still takes some 4 million spans a second a core; beyond it there is little to gain.
ZSTD_LEVEL = 6
COMPRESSION = {"compression.type": "zstd", "compression.level": ZSTD_LEVEL}


def bucket_key(bucket: int) -> bytes:
    """The message key of a bucket: its number in ASCII decimal."""
    return str(bucket).encode()


def partition_of(bucket: int, partitions: int) -> int:
    """The partition of a bucket. Producers set it themselves, so all agree."""
    return bucket % partitions
