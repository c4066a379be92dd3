"""Messages of one span each, gathered until they make a batch worth storing."""

from __future__ import annotations

from collections.abc import Sequence

from spanlite.codec import encode_batch
from spanlite.codec.lite import decode_lite
from spanlite.errors import WireError

from spanlite_pipeline.frames import Message, read_message, write_message
from spanlite_pipeline.state import Store

PREFIX = "l/"
#: Enough for the work on a batch to be shared by many spans.
FULL = 4096


class LiteBuffer:
    """SpanLite messages of one bucket that no batch holds yet. They are in the store."""

    def __init__(self, store: Store, bucket: int, bucket_count: int) -> None:
        self._store, self._bucket, self._bucket_count = store, bucket, bucket_count
        self._messages: dict[int, Message] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._messages)

    def restore(self, key: str, value: bytes) -> None:
        """Take back an entry of the store whose key starts with PREFIX."""
        number = int(key[len(PREFIX) :])
        self._messages[number] = read_message(value)
        self._next = max(self._next, number + 1)

    def add(self, message: Message) -> None:
        """Keep a message for later."""
        self._messages[self._next] = message
        self._store.put(f"{PREFIX}{self._next}", write_message(message))
        self._next += 1

    def take(self) -> tuple[list[bytes], list[tuple[Message, WireError]]]:
        """(SpanBatch bytes, messages that cannot be read) of everything; empty afterwards.

        The batches have no producer, so they are never taken for repeated ones.
        """
        messages = [self._messages[number] for number in sorted(self._messages)]
        for number in self._messages:
            self._store.remove(f"{PREFIX}{number}")
        self._messages = {}
        return self._decode(messages)

    def _decode(
        self, messages: Sequence[Message]
    ) -> tuple[list[bytes], list[tuple[Message, WireError]]]:
        decoded = decode_lite([message.value for message in messages], self._bucket_count)
        bad = [(messages[at], error) for at, error in decoded.bad]
        if all(batch.header.bucket == self._bucket for batch in decoded.batches):
            return [encode_batch(batch) for batch in decoded.batches], bad
        if len(messages) == 1:
            # Only bytes that Java could not read get here; it then says bucket 0.
            return [], [(messages[0], WireError("wrong_bucket", f"not of bucket {self._bucket}"))]
        good: list[bytes] = []
        bad = []
        for message in messages:
            one, refused = self._decode([message])
            good, bad = good + one, bad + refused
        return good, bad
