"""How far the job has come in its topic, from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Lag:
    """Messages that no checkpoint covers, those the job has not taken, and all there ever were."""

    uncommitted: int
    unread: int
    end: int


class TopicOffsets:
    """Committed and end offsets of one group and topic. Close it after use."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._topic = topic

    def rewind(self) -> None:
        """Say that the group has read nothing: a job that starts anew starts at the start."""
        topics = self._consumer.list_topics(self._topic, timeout=_TIMEOUT_S).topics
        places = [TopicPartition(self._topic, p) for p in topics[self._topic].partitions]
        for place in places:
            place.offset, _ = self._consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)
        self._consumer.commit(offsets=places, asynchronous=False)

    def lag(self, positions: Mapping[int, int] | None = None) -> Lag | None:
        """How far the job is behind; None while the broker is away.

        `positions`: where its source stands, by partition. Flink commits offsets when a
        checkpoint has completed, so without them unread is what is not committed.
        """
        try:
            topics = self._consumer.list_topics(self._topic, timeout=_TIMEOUT_S).topics
            partitions = [TopicPartition(self._topic, p) for p in topics[self._topic].partitions]
            committed = self._consumer.committed(partitions, timeout=_TIMEOUT_S)
            uncommitted = unread = end = 0
            for item in committed:
                low, high = self._consumer.get_watermark_offsets(item, timeout=_TIMEOUT_S)
                done = max(item.offset, low)
                uncommitted += high - done
                unread += max(0, high - max(done, (positions or {}).get(item.partition, 0)))
                end += high
        except KafkaException:
            return None
        return Lag(uncommitted, unread, end)

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()
