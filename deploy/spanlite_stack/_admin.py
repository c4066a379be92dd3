"""Asking the broker for its topics, and making them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from spanlite.errors import ServiceError


class Admin:
    """A connection to the broker, which may still be starting."""

    def __init__(self, bootstrap: str) -> None:
        # Refused connections are no news while it starts: no log, and try again soon.
        self._client = AdminClient(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
            }
        )

    def topics(self, timeout_s: float) -> dict[str, int] | None:
        """Topic to number of partitions, without the broker's own; None: no answer."""
        try:
            found = self._client.list_topics(timeout=timeout_s).topics
        except KafkaException:
            return None
        return {n: len(t.partitions) for n, t in sorted(found.items()) if not n.startswith("__")}

    def create(self, topics: Mapping[str, int], config: Mapping[str, str]) -> None:
        """Make the topics that are not there yet. Raises ServiceError."""
        have = self.topics(timeout_s=30.0) or {}
        new = [
            NewTopic(name, partitions, 1, config=dict(config))
            for name, partitions in topics.items()
            if name not in have
        ]
        futures = self._client.create_topics(new, operation_timeout=30) if new else {}
        for name, future in futures.items():
            try:
                future.result(timeout=60)
            except KafkaException as error:
                reason = error.args[0]
                if reason.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise ServiceError(f"topic {name} cannot be made: {reason.str()}") from None
        self._wait_for(topics)

    def _wait_for(self, topics: Mapping[str, int]) -> None:
        """Metadata follows creation by some milliseconds; producers must not see the gap."""
        deadline = time.monotonic() + 30
        while not topics.keys() <= (self.topics(timeout_s=10.0) or {}).keys():
            if time.monotonic() > deadline:
                raise ServiceError(f"the broker does not show its topics: {', '.join(topics)}")
            time.sleep(0.05)
