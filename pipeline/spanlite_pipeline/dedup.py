"""Drop batches that came twice, and measure gaps, by (producer, epoch) and seq.

A producer's batches of one bucket lie in one partition in the order of `seq`, so the last
one seen is all there is to remember.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from spanlite.v1 import spanlite_pb2 as pb

from spanlite_pipeline.state import Store

PREFIX = "p/"
_ENTRY = struct.Struct("<QQq")  # last seq, spans up to and with it, seen at (ms)


@dataclass
class _Last:
    seq: int
    spans: int
    seen_ms: int


class Deduplicator:
    """The last batch of each producer of one bucket."""

    def __init__(self, store: Store, ttl_ms: int) -> None:
        self._store, self._ttl_ms = store, ttl_ms
        self._last: dict[str, _Last] = {}

    def restore(self, key: str, value: bytes) -> None:
        """Take back an entry of the store whose key starts with PREFIX."""
        self._last[key] = _Last(*_ENTRY.unpack(value))

    def accept(self, header: pb.BatchHeader, now_ms: int) -> int | None:
        """Spans lost just before this batch, or None if it was here before."""
        key = f"{PREFIX}{header.epoch}/{header.producer}"
        last = self._last.get(key)
        if last is not None and header.seq <= last.seq:
            return None
        lost = self._lost(header, last, now_ms)
        entry = _Last(header.seq, header.spans_before + header.span_count, now_ms)
        self._last[key] = entry
        self._store.put(key, _ENTRY.pack(entry.seq, entry.spans, entry.seen_ms))
        return lost

    def _lost(self, header: pb.BatchHeader, last: _Last | None, now_ms: int) -> int:
        if last is None:
            # An epoch older than the TTL may have been forgotten rather than lost.
            known = header.epoch // 1_000_000 >= now_ms - self._ttl_ms
            return int(header.spans_before) if known and header.seq else 0
        if header.seq == last.seq + 1:
            return 0
        return max(0, int(header.spans_before) - last.spans)

    def purge(self, now_ms: int) -> None:
        """Forget producers that have been silent for longer than the TTL."""
        old = [key for key, last in self._last.items() if last.seen_ms < now_ms - self._ttl_ms]
        for key in old:
            del self._last[key]
            self._store.remove(key)
