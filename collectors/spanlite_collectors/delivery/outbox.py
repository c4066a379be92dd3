"""One queue from here to the broker, with the disk spool as its long part.

    put -> [on its way: bounded memory] -> broker
    put -> [spool: bounded disk] -> [on its way] -> broker      while the broker is away

Invariant: messages of a bucket reach the broker in the order of `put`. Repeats may
happen, a message that overtakes may not: the job would take the slower one for a repeat.
So there is one order for all: nothing goes past the spool while it holds unsent messages.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from spanlite.codec import read_header
from spanlite.errors import WireError

from spanlite_collectors.delivery.spool import Entry, Room, Spool, SpoolFullError
from spanlite_collectors.delivery.transport import Message, Transport

#: Enough to keep a broker busy across a LAN; what a crash of this process can lose.
DEFAULT_WINDOW_BYTES = 64 << 20
#: A leader election takes some seconds; a broker that is quiet for longer is away.
DEFAULT_STALL_S = 5.0


@dataclass
class DeliveryCounts:
    """What became of the messages and spans handed to the outbox."""

    delivered_messages: int = 0
    delivered_spans: int = 0
    delivered_bytes: int = 0
    spooled_messages: int = 0
    replayed_messages: int = 0
    rejected_messages: int = 0
    rejected_spans: int = 0
    restarts: int = 0


class Outbox:
    """Keeps messages in order, in memory or on disk, until the broker has them.

    Not thread-safe. Whoever owns it calls `step` often, some 20 times a second.
    """

    def __init__(
        self,
        transport: Transport,
        spool: Spool | None = None,
        *,
        window_bytes: int = DEFAULT_WINDOW_BYTES,
        stall_s: float = DEFAULT_STALL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport, self.spool = transport, spool
        self._window_bytes, self._stall_s, self._clock = window_bytes, stall_s, clock
        self._on_way: dict[int, Message] = {}  # in sending order
        self._on_way_bytes = 0
        self._progress_at = clock()
        # What an earlier run left goes first.
        self._spooling = spool is not None and spool.unread > 0
        self.counts = DeliveryCounts()
        #: Buckets whose last numbered message is lost: no later one shows the gap yet.
        self.gaps: set[int] = set()

    @property
    def on_way(self) -> tuple[int, int]:
        """(messages, bytes) handed to the producer and not yet acknowledged."""
        return len(self._on_way), self._on_way_bytes

    @property
    def spooling(self) -> bool:
        """Whether new messages go to disk."""
        return self._spooling

    @property
    def stalled(self) -> bool:
        """Whether the broker has been quiet for too long."""
        waiting = self._on_way or not self._transport.ready()
        return bool(waiting) and self._clock() - self._progress_at >= self._stall_s

    @property
    def idle(self) -> bool:
        """Whether everything is delivered."""
        return not self._on_way and not (self.spool and self.spool.unread)

    @property
    def safe(self) -> bool:
        """Whether everything is delivered or on disk."""
        return all(message.entry for message in self._on_way.values())

    def has_room(self, room: Room = Room.OPEN) -> bool:
        """Whether `put` may be called now."""
        if self._spooling and self.spool is not None:
            return self.spool.has(room)
        return self._transport.ready() and self._on_way_bytes < self._window_bytes

    def overloaded(self, taken_bytes: int) -> bool:
        """Whether the broker is quiet and there is room neither for more nor for what was taken."""
        if not self.stalled:
            return False
        if self.spool is None:
            return not self.has_room()
        # Not `has_room`: until the next `step` goes over to the spool, that asks the broker.
        return not (self.spool.has(Room.OPEN) and self.spool.has(Room.RESERVED, taken_bytes))

    def put(self, message: Message, room: Room = Room.OPEN) -> None:
        """Take a message. Raises SpoolFullError where the spool has no room; then it is not taken.

        New spans come only after `has_room`; those that were taken before, when this process
        ends, may use what the spool has in reserve.
        """
        if self._spooling and self.spool is not None:
            self._spool_on_way(self.spool)  # what has had no room until now stays ahead
            self.spool.append(message.payload, room=room)
            self.counts.spooled_messages += 1
        else:
            self._send(message)
        self.gaps.discard(message.bucket)

    def put_last(self, message: Message) -> None:
        """Spool a message without spans, that only tells of others, however full it is.

        Raises SpoolFullError where the disk is full. Needs a spool.
        """
        if self.spool is not None:
            self.spool.append(message.payload, room=Room.ANY)
            self.gaps.discard(message.bucket)

    def step(self) -> None:
        """See what was delivered; go over to the spool and back."""
        self._transport.poll(self)
        if self.spool is None:
            return
        if not self._spooling and self.stalled:
            self._spooling = True
            # What has no room stays in memory, still ahead of all that follows.
            with contextlib.suppress(SpoolFullError):
                self.spool_all()
        if self._spooling and self._transport.ready() and not self.stalled:
            self._drain(self.spool)
        self.spool.sync()

    def spool_all(self) -> None:
        """Put on disk what is on its way, so that it survives this process. Needs a spool.

        Raises SpoolFullError when not all of it has room there.
        """
        if self.spool is not None:
            self._spool_on_way(self.spool)
            self.spool.sync()

    def _spool_on_way(self, spool: Spool) -> None:
        for message in self._on_way.values():
            if message.entry is None:
                message.entry = self._spool_one(spool, message)

    def spool_rest(self) -> int:
        """Like `spool_all`, at the end: what has no room is given up. The spans lost."""
        lost = 0
        for message in self._on_way.values():
            if message.entry is not None:
                continue
            try:
                if self.spool is None:
                    raise SpoolFullError("no spool")
                message.entry = self._spool_one(self.spool, message)
            except SpoolFullError:
                lost += message.spans
                self.gaps.add(message.bucket)
            else:
                self.gaps.discard(message.bucket)
        return lost

    def _spool_one(self, spool: Spool, message: Message) -> Entry:
        entry = spool.append(message.payload, unread=False, room=Room.RESERVED)
        self.counts.spooled_messages += 1
        return entry

    def close(self) -> None:
        """Let go of the broker and the spool; call `spool_rest` first."""
        self._transport.close()
        if self.spool is not None:
            self.spool.close()

    def discard(self) -> None:
        """The same after an error: a file that is not whole is not put into its place."""
        self._transport.discard()
        if self.spool is not None:
            self.spool.close()

    # What the transport tells.

    def delivered(self, message: Message) -> None:
        """The broker has it."""
        if self._finish(message):
            self._progress_at = self._clock()
            self.counts.delivered_messages += 1
            self.counts.delivered_spans += message.spans
            self.counts.delivered_bytes += len(message.payload)

    def rejected(self, message: Message, reason: str) -> None:
        """The broker will never take it; its number stays a gap, which the job counts."""
        if self._finish(message):
            self.counts.rejected_messages += 1
            self.counts.rejected_spans += message.spans
            later = any(other.bucket == message.bucket for other in self._on_way.values())
            if message.spans and not later:
                self.gaps.add(message.bucket)

    def restarted(self) -> None:
        """Send again, in the same order, what is not known to be delivered."""
        self.counts.restarts += 1
        for message in self._on_way.values():
            self._transport.send(message)

    def _finish(self, message: Message) -> bool:
        if self._on_way.pop(id(message), None) is None:
            return False
        self._on_way_bytes -= len(message.payload)
        if message.entry is not None and self.spool is not None:
            self.spool.done(message.entry)
        return True

    def _send(self, message: Message) -> None:
        if not self._on_way:
            self._progress_at = self._clock()
        self._on_way[id(message)] = message
        self._on_way_bytes += len(message.payload)
        self._transport.send(message)

    def _drain(self, spool: Spool) -> None:
        while self._on_way_bytes < self._window_bytes:
            found = spool.pop()
            if found is None:
                self._spooling = False
                return
            entry, payload = found
            try:
                header = read_header(payload)
            except WireError:
                # Whole by its checksum, yet not ours: nothing can be done with it.
                self.counts.rejected_messages += 1
                spool.done(entry)
                continue
            self.counts.replayed_messages += 1
            self._send(Message(header.bucket, header.span_count, payload, entry=entry))
