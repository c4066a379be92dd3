"""Drop batches that came twice, and measure gaps, by (producer, epoch) and seq.

A producer's batches of one bucket lie in one partition, nearly in the order of `seq`: only
a sender without Kafka's idempotence lets a retry change it. So the last seq is remembered,
and which of the WINDOW before it were seen; what is older than that counts as repeated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from spanlite.v1 import spanlite_pb2 as pb

from spanlite_pipeline.state import Store

PREFIX = "p/"
WINDOW = 64
_ENTRY = struct.Struct("<QQQqQ")


@dataclass
class _Last:
    seq: int  # the highest so far
    floor: int  # gaps before this one were not counted
    spans: int  # sent up to and with `seq`
    seen_ms: int
    seen: int  # bit i: seq - i came

    def pack(self) -> bytes:
        return _ENTRY.pack(self.seq, self.floor, self.spans, self.seen_ms, self.seen)


class Deduplicator:
    """The last batches of each producer of one bucket."""

    def __init__(self, store: Store, ttl_ms: int) -> None:
        self._store, self._ttl_ms = store, ttl_ms
        self._last: dict[str, _Last] = {}

    def restore(self, key: str, value: bytes) -> None:
        """Take back an entry of the store whose key starts with PREFIX."""
        self._last[key] = _Last(*_ENTRY.unpack(value))

    def accept(self, header: pb.BatchHeader, now_ms: int) -> int | None:
        """Spans lost just before this batch, or None if it was here before.

        Negative where the batch itself had been counted as lost.
        """
        key = f"{PREFIX}{header.epoch}/{header.producer}"
        last = self._last.get(key)
        if last is None:
            last, lost = self._first(header, now_ms)
        elif header.seq > last.seq:
            lost = _advance(last, header)
        else:
            found = _fill(last, header)
            if found is None:
                return None
            lost = found
        last.seen_ms = now_ms
        self._last[key] = last
        self._store.put(key, last.pack())
        return lost

    def _first(self, header: pb.BatchHeader, now_ms: int) -> tuple[_Last, int]:
        # An epoch older than the TTL may have been forgotten rather than lost.
        known = header.epoch // 1_000_000 >= now_ms - self._ttl_ms
        spans = header.spans_before + header.span_count
        last = _Last(header.seq, 0 if known else header.seq, spans, now_ms, 1)
        return last, int(header.spans_before) if known else 0

    def purge(self, now_ms: int) -> None:
        """Forget producers that have been silent for longer than the TTL."""
        old = [key for key, last in self._last.items() if last.seen_ms < now_ms - self._ttl_ms]
        for key in old:
            del self._last[key]
            self._store.remove(key)


def _advance(last: _Last, header: pb.BatchHeader) -> int:
    step = header.seq - last.seq
    lost = max(0, int(header.spans_before) - last.spans) if step > 1 else 0
    last.seen = (last.seen << step | 1) & ((1 << WINDOW) - 1) if step < WINDOW else 1
    last.seq, last.spans = header.seq, header.spans_before + header.span_count
    return lost


def _fill(last: _Last, header: pb.BatchHeader) -> int | None:
    back = last.seq - header.seq
    if back >= WINDOW or last.seen >> back & 1:
        return None
    last.seen |= 1 << back
    return -int(header.span_count) if header.seq >= last.floor else 0
