"""`--target kafka`: the spans once more, on Kafka, as a collector would send them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaException, Producer
from spanlite.errors import ServiceError
from spanlite.topics import COMPRESSION, RAW_TOPIC, bucket_key, partition_of

from spanlite_replay.plan import Plan
from spanlite_replay.targets._messages import MessageSet, encode_all, make_messages
from spanlite_replay.targets.base import I64, NO_EVENTS, Outcome

CONNECT_S = 10.0
DRAIN_S = 60.0
#: Room for a burst while the broker is slow; beyond it `launch` waits.
QUEUE_KBYTES = 1 << 20


class KafkaTarget:
    """Sends each event's spans with new ids and times, in batches of one bucket.

    All batches are encoded in `prepare`, so that `launch` only hands bytes to the client. A
    batch goes out when the last of its events is due: at most one second of events.
    """

    name = "kafka"

    def __init__(
        self,
        bootstrap: str,
        replay_id: str,
        bucket_count: int,
        topic: str = RAW_TOPIC,
        on_progress: Callable[[int, int], None] | None = None,
        producer: Any = None,
    ) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.replay_id, self.bucket_count = replay_id, bucket_count
        self.on_progress = on_progress
        self._problem = ""
        self._producer: Any = producer
        self._partitions = 0
        self._position = 0  # events launched
        self._next = 0  # messages handed to the client
        self._sent = 0
        self._bytes = 0
        self._lost: set[int] = set()  # not delivered
        self._refused: set[int] = set()  # not taken by the client
        self._open: set[int] = set()

    def prepare(self, plan: Plan, events: I64) -> npt.NDArray[np.bool_]:
        """Encode every batch and find the topic. Raises ServiceError without a broker."""
        if self._producer is None:
            self._producer = Producer(self._settings())
        self._partitions = self._find_partitions()
        # The epoch is when this replay was made ready: a second run is not a duplicate.
        self._events = events
        self._set: MessageSet = make_messages(
            plan, events, self.replay_id, time.time_ns(), self.bucket_count
        )
        self._payloads = encode_all(self._set, self.on_progress)
        self._ready = [message.last_event for message in self._set.messages]
        return np.ones(len(events), dtype=np.bool_)

    def _settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "client.id": f"spanlite-replay/{self.replay_id}",
            "enable.idempotence": True,
            **COMPRESSION,
            "linger.ms": 5,
            "message.max.bytes": 16 << 20,
            "message.timeout.ms": int(DRAIN_S * 1000),
            "queue.buffering.max.kbytes": QUEUE_KBYTES,
            "error_cb": self._on_error,
            "log_level": 0,
        }

    def _on_error(self, error: Any) -> None:
        self._problem = str(error.str())

    def _find_partitions(self) -> int:
        try:
            found = self._producer.list_topics(self.topic, timeout=CONNECT_S).topics[self.topic]
        except KafkaException as error:
            detail = self._problem or error.args[0].str()
            raise ServiceError(
                f"no Kafka broker answers at {self.bootstrap} ({detail}); "
                "`spanlite stack up` starts one here"
            ) from None
        if found.error is not None or not found.partitions:
            raise ServiceError(
                f"the broker at {self.bootstrap} has no topic '{self.topic}'; "
                "`spanlite stack up` makes it"
            )
        return len(found.partitions)

    def launch(self, events: I64) -> None:
        """Send the batches that these events complete."""
        self._position += len(events)
        while self._next < len(self._ready) and self._ready[self._next] < self._position:
            self._send(self._next, self._payloads[self._next])
            self._next += 1
        self._producer.poll(0)

    def _send(self, number: int, payload: bytes) -> None:
        bucket = self._set.messages[number].bucket
        self._open.add(number)
        while True:
            try:
                self._producer.produce(
                    self.topic,
                    value=payload,
                    key=bucket_key(bucket),
                    partition=partition_of(bucket, self._partitions),
                    on_delivery=partial(self._on_delivery, number),
                )
            except BufferError:
                self._producer.poll(0.01)
                continue
            except KafkaException as error:
                self._problem = error.args[0].str()
                self._refused.add(number)
                self._open.discard(number)
                return
            self._sent += 1
            self._bytes += len(payload)
            return

    def _on_delivery(self, number: int, error: Any, _message: Any) -> None:
        self._open.discard(number)
        if error is not None:
            self._problem = error.str()
            self._lost.add(number)

    def drain(self) -> Outcome:
        """Send what is launched but in no full batch yet, and wait for the broker."""
        self._send_rest()
        end = time.monotonic() + DRAIN_S
        while self._producer.flush(0.2) and time.monotonic() < end:
            pass  # in short turns, so that a second Ctrl-C is answered
        lost = self._lost | self._open | self._refused
        failed = [self._set.event[self._set.messages[number].rows] for number in sorted(lost)]
        positions = np.unique(np.concatenate(failed)) if failed else NO_EVENTS
        facts: dict[str, int | str] = {
            "replay_id": self.replay_id,
            "topic": self.topic,
            "messages": self._sent - len(lost - self._refused),
            "message_bytes": self._bytes,
        }
        why = f"{len(lost)} messages were not delivered: {self._problem}" if lost else ""
        return Outcome(
            failed=self._events[positions[positions < self._position]], facts=facts, why=why
        )

    def _send_rest(self) -> None:
        """After Ctrl-C: the launched part of each batch that was still waiting."""
        if self._next == len(self._ready):
            return
        sent: dict[int, tuple[int, int]] = {}
        for message in self._set.messages[: self._next]:
            seq, spans = sent.get(message.bucket, (0, 0))
            sent[message.bucket] = seq + 1, spans + len(message.rows)
        for bucket in {message.bucket for message in self._set.messages[self._next :]}:
            self._set.rewind(bucket, *sent.get(bucket, (0, 0)))
        for number in range(self._next, len(self._ready)):
            message = self._set.messages[number]
            rows = message.rows[self._set.event[message.rows] < self._position]
            if len(rows):
                self._send(number, self._set.encode(message, rows))
        self._next = len(self._ready)
