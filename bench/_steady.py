"""How fast a job that commits its Kafka offsets gets on, seen from outside."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench._load import Topic

_POLL_S = 0.03


@dataclass
class Curve:
    """(seconds, spans covered by a completed checkpoint), each time that it moved."""

    points: list[tuple[float, int]] = field(default_factory=list)

    def rate(self, total: int) -> float:
        """Spans a second between the first and the last checkpoint while there was work.

        The checkpoint that finds nothing left to read came late by up to its interval, so it
        counts only where there are too few others.
        """
        inner = [point for point in self.points if point[1] < total]
        points = inner if len(inner) >= 3 else self.points
        if len(points) < 2:
            raise RuntimeError(f"only {len(points)} checkpoints: give more spans")
        (t0, n0), (t1, n1) = points[0], points[-1]
        return (n1 - n0) / (t1 - t0)


class Watcher:
    """Polls a group's committed offsets in a thread until `stop`."""

    def __init__(self, bootstrap: str, group: str, topic: Topic) -> None:
        self._topic = topic
        self._places = [TopicPartition(topic.name, p) for p in range(len(topic.spans))]
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
        )
        self.curve = Curve()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_S):
            try:
                committed = self._consumer.committed(self._places, timeout=5)
            except KafkaException:
                continue
            covered = self._topic.covered([place.offset for place in committed])
            if covered > (self.curve.points[-1][1] if self.curve.points else 0):
                self.curve.points.append((time.monotonic(), covered))

    def stop(self) -> Curve:
        self._stop.set()
        self._thread.join()
        self._consumer.close()
        return self.curve
