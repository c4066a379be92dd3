"""The way to the broker: an idempotent producer that keeps the order and never gives up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer
from spanlite.topics import COMPRESSION, RAW_TOPIC, bucket_key, partition_of

from spanlite_collectors.delivery.spool import Entry

#: As large as the topic takes.
MAX_MESSAGE_BYTES = 16 << 20
#: What trying again cannot cure: the message itself is at fault.
_REJECTED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError._KEY_SERIALIZATION,
        KafkaError._VALUE_SERIALIZATION,
    }
)
#: Quiet unless the program sets up logging.
_LOGGER = logging.getLogger("spanlite.kafka")
_LOGGER.addHandler(logging.NullHandler())
#: Wait this long before a new producer, so that a lasting fault does not spin.
_REBUILD_AFTER_S = 1.0


@dataclass(eq=False)
class Message:
    """One numbered batch on its way."""

    bucket: int
    spans: int
    payload: bytes
    sent_at: float = 0.0
    entry: Entry | None = None  # its place in the spool, where it has one


class Listener(Protocol):
    """Who sends; told from within `poll`."""

    def delivered(self, message: Message) -> None:
        """The broker has it."""
        ...

    def rejected(self, message: Message, reason: str) -> None:
        """The broker will never take it."""
        ...

    def restarted(self) -> None:
        """All that was not reported as delivered must be sent again, in the same order."""
        ...


class Transport(Protocol):
    """Sends messages of a bucket in the order given, or says that it must start over."""

    def ready(self) -> bool:
        """Whether messages can be sent at all (the topic's partitions are known)."""
        ...

    def send(self, message: Message) -> None:
        """Take it and return at once."""
        ...

    def poll(self, listener: Listener) -> None:
        """Tell what has happened since."""
        ...

    def close(self) -> None:
        """Let go of what is still on its way."""
        ...

    def discard(self) -> None:
        """Close, after an error: what was sent is not the whole."""
        ...


class KafkaTransport:
    """confluent-kafka's producer, idempotent and gapless.

    Its messages never time out: while the broker is away they stay queued in order, and
    the outbox keeps the queue short. With `enable.gapless.guarantee` an error that would
    let a later message overtake stops the producer instead; then a new one is made and
    everything that is not known to be delivered is sent again. What did arrive the first
    time is recognised by its seq.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str = RAW_TOPIC,
        *,
        queue_bytes: int,
        settings: dict[str, Any] | None = None,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._topic, self._log = topic, log
        self._config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "enable.gapless.guarantee": True,
            "acks": "all",
            **COMPRESSION,
            "linger.ms": 5,
            "message.timeout.ms": 0,
            "message.max.bytes": MAX_MESSAGE_BYTES,
            # The outbox limits what is on its way; the queue has room for twice that.
            "queue.buffering.max.kbytes": max(1 << 16, queue_bytes >> 9),
            "reconnect.backoff.max.ms": 500,
            # A broker that is away is in the metrics, not 2 lines a second in the log.
            "log_level": 0,
            **(settings or {}),
        }
        self._partitions = 0
        self._asked_at = float("-inf")
        self._fault: str | None = None
        self._rebuild_at = 0.0
        self._events: list[tuple[Message, KafkaError | None]] = []
        self._generation = 0
        self._producer = self._make()

    @property
    def partitions(self) -> int:
        """Partitions of the topic; 0 until the broker has answered."""
        return self._partitions

    def ready(self) -> bool:
        """Ask for the topic's partitions at most once a second until they are known."""
        now = time.monotonic()
        if not self._partitions and now - self._asked_at >= 1:
            self.ask_partitions(0.2)
            self._asked_at = time.monotonic()
        return bool(self._partitions)

    def ask_partitions(self, timeout_s: float) -> int:
        """Partitions of the topic; 0 if the broker does not answer or has no such topic."""
        try:
            topic = self._producer.list_topics(self._topic, timeout=timeout_s).topics[self._topic]
        except KafkaException:
            return 0
        self._partitions = 0 if topic.error else len(topic.partitions)
        return self._partitions

    def broker_answers(self, timeout_s: float) -> bool:
        """Whether any broker answers at all."""
        try:
            self._producer.list_topics(timeout=timeout_s)
        except KafkaException:
            return False
        return True

    def send(self, message: Message) -> None:
        """Queue it; a message that is too large is rejected at the next poll.

        After a fault nothing is queued any more, or it would overtake what failed: the
        sender hears `restarted` and sends everything again.
        """
        if self._fault is not None:
            return
        generation = self._generation

        def report(error: KafkaError | None, _: Any) -> None:
            if generation == self._generation:
                self._events.append((message, error))

        try:
            self._producer.produce(
                self._topic,
                message.payload,
                bucket_key(message.bucket),
                partition_of(message.bucket, self._partitions),
                on_delivery=report,
            )
        except BufferError:
            self._fail("the producer's queue is full")
        except KafkaException as error:
            self._events.append((message, error.args[0]))

    def poll(self, listener: Listener) -> None:
        """Serve the producer and hand on what it reports."""
        self._serve()
        events, self._events = self._events, []
        for message, error in events:
            if error is None:
                listener.delivered(message)
            elif error.code() in _REJECTED:
                listener.rejected(message, error.name() or "rejected")
            else:
                self._fail(error.str())
        if self._fault is not None and time.monotonic() >= self._rebuild_at:
            self._rebuild()
            listener.restarted()

    def close(self) -> None:
        """Drop the queue and the connections."""
        self._generation += 1
        self._producer.purge()
        self._serve()

    def discard(self) -> None:
        """The same: what the broker has, it keeps."""
        self.close()

    def _make(self) -> Producer:
        return Producer({**self._config, "error_cb": self._on_error}, logger=_LOGGER)

    def _serve(self) -> None:
        """Run the producer's callbacks. It raises when it has stopped for good."""
        try:
            self._producer.poll(0)
        except KafkaException as error:
            self._fail(error.args[0].str())

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fail(error.str())

    def _fail(self, reason: str) -> None:
        if self._fault is None:
            self._fault = reason
            self._rebuild_at = time.monotonic() + _REBUILD_AFTER_S

    def _rebuild(self) -> None:
        self._log(f"starting a new producer: {self._fault}")
        self.close()
        self._events.clear()
        self._fault = None
        self._producer = self._make()
