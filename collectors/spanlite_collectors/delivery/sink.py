"""KafkaSink: spans in, numbered batches of one bucket out, nothing lost on the way."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.codec import Batch, encode_batch
from spanlite.errors import ServiceError, WireError
from spanlite.schema import SPAN_SCHEMA

from spanlite_collectors.batching import Batcher, Ready, hashes_of, split_by_bucket
from spanlite_collectors.delivery.numbering import Numbering
from spanlite_collectors.delivery.outbox import Outbox
from spanlite_collectors.delivery.spool import Room, SpoolFullError
from spanlite_collectors.delivery.transport import MAX_MESSAGE_BYTES, Message
from spanlite_collectors.sinks import CAPTURE_WEIGHT

#: How often the delivery thread looks after batches that grow old and messages on their way.
_STEP_S = 0.02
#: Well below the topic's 16 MiB; zstd makes it smaller still.
MAX_PAYLOAD_BYTES = 8 << 20
#: A span that alone makes a larger batch than this can never be sent: the topic's limit, less
#: what Kafka puts around a message.
MAX_SPAN_BYTES = MAX_MESSAGE_BYTES - (4 << 10)
#: Reasons of drops that no waiting cures, and what does.
UNDELIVERABLE = {
    "too_large": "one span and its resource must fit 16 MiB; shorten its texts at their source",
    "malformed": "they hold what a batch has no form for; please report it",
}
#: How long `close` waits for a broker when there is no spool to put the rest into.
CLOSE_TIMEOUT_S = 30.0


@dataclass
class SinkStats:
    """Counts since the start, and what is waiting now."""

    received_spans: int = 0
    delivered_spans: int = 0
    delivered_messages: int = 0
    delivered_bytes: int = 0
    dropped_spans: dict[str, int] = field(default_factory=dict)
    lost_spans: int = 0
    waiting_spans: int = 0
    on_way_messages: int = 0
    on_way_bytes: int = 0
    spooling: bool = False
    spooled_messages: int = 0
    replayed_messages: int = 0
    spool_bytes: int = 0
    spool_messages: int = 0
    spool_torn_records: int = 0
    producer_restarts: int = 0
    broker_away: bool = False


def head_keep(hashes: npt.NDArray[np.uint64], probability: float) -> npt.NDArray[np.bool_]:
    """Which rows head sampling keeps, by trace: shape (n,) in and out.

    Deterministic: every collector keeps the same traces. It compares the whole hash, so it
    depends on the high bits, while the bucket is made of the low ones.
    """
    if probability >= 1:
        return np.ones(len(hashes), dtype=np.bool_)
    return hashes < np.uint64(int(probability * 2.0**64))


def _covered_share(resource: Mapping[str, Any]) -> float:
    """The share of steps that the capture windows of these spans covered; 0: no windows."""
    weight = resource.get(CAPTURE_WEIGHT)
    return 1 / weight if isinstance(weight, int | float) and weight > 1 else 0.0


_NO_SPANS = pa.RecordBatch.from_pylist([], SPAN_SCHEMA)


def _encoded(batch: Batch) -> tuple[bytes, str]:
    """(payload, why it should not be sent as it is, or nothing)."""
    try:
        payload = encode_batch(batch)
    except WireError as error:
        return b"", error.reason
    return payload, "too_large" if len(payload) > MAX_PAYLOAD_BYTES else ""


class KafkaSink:
    """A SpanSink that delivers to Kafka, in order for each bucket.

    `write` may be called from several threads. It blocks while the way out is full
    (`block=True`), or else counts what does not fit as dropped, `spool_full` with a spool
    and `queue_full` without. Close it, or use it in a `with`.
    """

    def __init__(
        self, outbox: Outbox, numbering: Numbering, batcher: Batcher | None = None, *, block: bool
    ) -> None:
        self._outbox, self._numbering, self._block = outbox, numbering, block
        self._batcher = batcher or Batcher()
        self._changed = threading.Condition()
        self._stats = SinkStats()
        self._drops: Counter[str] = Counter()
        self._fault: Exception | None = None
        self._closing = threading.Event()
        self._room = Room.OPEN
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)
        self._thread.start()

    def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        """Take spans of one resource."""
        hashes = hashes_of(spans)
        keep = head_keep(hashes, self._numbering.sampling_probability)
        refused = int(len(keep) - np.count_nonzero(keep))
        if refused:
            self.drop("head_sampled", refused)
            spans, hashes = spans.filter(pa.array(keep)), hashes[keep]
        buckets = (hashes & np.uint64(self._numbering.bucket_count - 1)).astype(np.int64)
        parts = list(split_by_bucket(spans, buckets))
        with self._changed:
            self._check()
            self._stats.received_spans += len(keep)
            for bucket, rows in parts:
                self._batcher.add(bucket, rows, resource)
            with contextlib.suppress(ServiceError):  # they are taken; the next call says it
                self._send_or_stop(list(self._batcher.take_full()))

    def drop(self, reason: str, spans: int) -> None:
        """Count spans that will never be sent; the next header tells the ledger."""
        with self._changed:
            self._count_drop(reason, spans)

    def flush(self) -> None:
        """Return when everything written is delivered or on disk. Raises ServiceError."""
        with self._changed:
            self._send(list(self._batcher.take_all()))
            self._send_told()
            while not (self._outbox.idle or (self._outbox.spooling and self._outbox.safe)):
                self._check()
                self._wait()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Send what waits; what is not delivered by then goes to the spool.

        Raises ServiceError where spans are lost for want of a spool or of room in it.
        """
        if self._closing.is_set():
            return
        with self._changed:
            # A daemon that is told to stop does not wait for a broker that is away.
            patient, self._block, self._room = self._block, False, Room.RESERVED
            before = self._without_room()
            with contextlib.suppress(ServiceError):  # then `_end` says what is lost
                self._send_or_stop(list(self._batcher.take_all()))
                self._send_told()
                self._wait_delivered(timeout_s, patient)
            dropped = self._without_room() - before
        self._closing.set()
        self._thread.join()
        try:
            self._end(dropped)
        finally:
            self._outbox.close()

    def abandon(self) -> None:
        """Stop without sending or spooling what waits, as after an error; a file is discarded."""
        self._closing.set()
        self._thread.join()
        self._outbox.discard()

    def stats(self) -> SinkStats:
        """A snapshot for metrics and reports."""
        with self._changed:
            return self._snapshot()

    @property
    def alive(self) -> bool:
        """Whether delivery still works; where not, the next write says why."""
        return self._fault is None and self._thread.is_alive()

    @property
    def overloaded(self) -> bool:
        """Whether there is no room and none is being made: a write would block or drop."""
        with self._changed:
            # Also where what was taken fills the rest, or it would be lost when this ends.
            return self._outbox.overloaded(self._batcher.pending_bytes)

    @property
    def refuge(self) -> str:
        """Where batches are kept while the broker is away."""
        spool = self._outbox.spool
        return "in memory" if spool is None else f"on disk, in {spool.folder}"

    @property
    def cure(self) -> str:
        """What to do where there is no room."""
        spool = self._outbox.spool
        return "start the broker" if spool is None else f"start the broker, or {spool.cure}"

    def __enter__(self) -> Self:
        """The sink."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    # Below here the lock `_changed` is held.

    def _send_or_stop(self, batches: Sequence[Ready]) -> None:
        """Where the way out fails, as a full disk does, that is the end of delivery."""
        try:
            self._send(batches)
        except ServiceError as error:
            self._fault = self._fault or error
            raise

    def _send(self, batches: Sequence[Ready]) -> None:
        left = deque(batches)
        with self._losing(left):
            while left:
                if self._admit():
                    self._send_one(left.popleft())  # the outbox answers for it from here on
                    continue
                full = "spool_full" if self._outbox.spool is not None else "queue_full"
                self._count_drop(full, left.popleft().spans.num_rows)

    @contextlib.contextmanager
    def _losing(self, left: Iterable[Ready]) -> Iterator[None]:
        """What is left where the way out fails is lost."""
        try:
            yield
        except ServiceError:
            self._stats.lost_spans += sum(ready.spans.num_rows for ready in left)
            raise

    def _admit(self) -> bool:
        """Wait for room; False where there is none and the caller does not want to wait."""
        while not self._outbox.has_room(self._room):
            self._check()
            full = self._outbox.spooling or self._outbox.spool is None
            if full and not self._block and self._outbox.stalled:
                return False
            self._wait()
        return True

    def _send_one(self, ready: Ready) -> None:
        """Encode, number and hand over; a batch that is too large is cut in two first."""
        spans = ready.spans
        share = _covered_share(ready.resource)
        header = self._numbering.peek_header(ready.bucket, spans.num_rows, share)
        payload, fault = _encoded(Batch(header, spans, ready.resource))
        if fault and spans.num_rows > 1:
            _, hopeless = _encoded(Batch(header, spans.slice(0, 0), ready.resource))
            if not hopeless:
                half = spans.num_rows // 2
                self._send_parts(ready, [spans.slice(0, half), spans.slice(half)])
                return
        if fault and not 0 < len(payload) <= MAX_SPAN_BYTES:
            self._count_drop(fault, spans.num_rows)
            return
        try:
            message = Message(ready.bucket, spans.num_rows, payload)
            self._outbox.put(message, self._room)
        except SpoolFullError:
            self._count_drop("spool_full", spans.num_rows)
        else:
            self._numbering.commit(header)

    def _send_parts(self, ready: Ready, parts: list[pa.RecordBatch]) -> None:
        batches = [Ready(ready.bucket, ready.resource, part) for part in parts]
        if threading.current_thread() is not self._thread:
            self._send(batches)
            return
        for batch in batches:  # this thread must never wait for itself
            self._send_one(batch)

    def _send_told(self) -> None:
        """Where no span is left to carry drops, or to show that others are lost, an empty batch."""
        for bucket in self._untold():
            if self._outbox.has_room(self._room):
                self._send_one(Ready(bucket, {}, _NO_SPANS))

    def _untold(self) -> list[int]:
        """Buckets that need an empty batch; the first of them carries the drops."""
        drops = {0} if self._numbering.has_drops and not self._outbox.gaps else set()
        return sorted(self._outbox.gaps | drops)

    def _count_drop(self, reason: str, spans: int) -> None:
        if spans:
            self._drops[reason] += spans
            self._numbering.drop(reason, spans)

    def _without_room(self) -> int:
        return self._drops["spool_full"] + self._drops["queue_full"]

    def _wait_delivered(self, timeout_s: float, patient: bool) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._outbox.idle and time.monotonic() < deadline and self._fault is None:
            if self._outbox.spool is not None and self._outbox.stalled and not patient:
                return
            self._wait()

    def _wait(self) -> None:
        self._changed.wait(_STEP_S)

    def _check(self) -> None:
        if self._fault is not None:
            raise ServiceError(f"delivery has stopped: {self._fault}") from self._fault

    def _end(self, dropped: int) -> None:
        """Spool what is on its way, and the account of what has no room."""
        lost = self._outbox.spool_rest()
        self._stats.lost_spans += lost
        if self._fault is not None and self._outbox.spool is None:
            lost = self._stats.lost_spans
            raise ServiceError(f"{self._fault}; {lost} spans that were taken are lost")
        told = self._spool_told()
        if not dropped + lost and told:
            return
        what = f"{dropped + lost} spans that were taken could not be delivered"
        if not dropped + lost:
            what = "how many spans were dropped could not be told"
        if self._outbox.spool is None:
            raise ServiceError(
                f"{what}, and nothing tells the ledger; start the broker first, or give --spool a "
                "folder that keeps them"
            )
        ledger = "the next run tells the ledger" if told else "nothing tells the ledger"
        raise ServiceError(
            f"{what}, and the spool {self._outbox.spool.folder} has no room for more; {ledger}; "
            f"{self._outbox.spool.cure}"
        )

    def _spool_told(self) -> bool:
        """Spool empty batches with the drops and for the gaps; False where some cannot be."""
        for bucket in self._untold():
            if self._outbox.spool is None:
                return False
            header = self._numbering.peek_header(bucket, 0)
            payload = encode_batch(Batch(header, _NO_SPANS, {}))
            try:
                self._outbox.put_last(Message(bucket, 0, payload))
            except SpoolFullError:
                return False
            self._numbering.commit(header)
        return True

    def _run(self) -> None:
        while not self._closing.wait(_STEP_S):
            with self._changed:
                try:
                    self._outbox.step()
                    self._send_aged()
                except Exception as error:  # told to the next caller of write or flush
                    self._fault = error
                    return
                finally:
                    self._changed.notify_all()

    def _send_aged(self) -> None:
        """Only what has room: this thread must never wait for itself."""
        aged = self._batcher.take_aged(self._outbox.has_room)
        with self._losing(aged):
            for ready in aged:
                self._send_one(ready)

    def _snapshot(self) -> SinkStats:
        outbox, counts, spool = self._outbox, self._outbox.counts, self._outbox.spool
        now = SinkStats(**asdict(self._stats))
        now.dropped_spans = dict(self._drops)
        now.waiting_spans = self._batcher.pending_spans
        now.delivered_spans = counts.delivered_spans
        now.delivered_messages = counts.delivered_messages
        now.delivered_bytes = counts.delivered_bytes
        now.lost_spans += counts.rejected_spans
        now.on_way_messages, now.on_way_bytes = outbox.on_way
        now.spooling, now.broker_away = outbox.spooling, outbox.stalled
        now.spooled_messages = counts.spooled_messages
        now.replayed_messages = counts.replayed_messages
        now.producer_restarts = counts.restarts
        if spool is not None:
            now.spool_bytes, now.spool_messages = spool.size_bytes, spool.live
            now.spool_torn_records = spool.torn_records
        return now
