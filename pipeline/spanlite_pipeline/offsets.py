"""How far the job has come in its topic, from outside."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, TopicPartition

_TIMEOUT_S = 5.0


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

    def lag(self) -> tuple[int, int] | None:
        """(messages not committed yet, end offsets summed); None while the broker is away.

        Flink commits offsets when a checkpoint has completed.
        """
        try:
            topics = self._consumer.list_topics(self._topic, timeout=_TIMEOUT_S).topics
            partitions = [TopicPartition(self._topic, p) for p in topics[self._topic].partitions]
            committed = self._consumer.committed(partitions, timeout=_TIMEOUT_S)
            lag = total = 0
            for item in committed:
                low, high = self._consumer.get_watermark_offsets(item, timeout=_TIMEOUT_S)
                lag += high - max(item.offset, low)
                total += high
        except KafkaException:
            return None
        return lag, total

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()
