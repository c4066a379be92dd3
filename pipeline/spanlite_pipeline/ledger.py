"""Rows of the ledger: what came in, went out, was dropped or is still open at each hop."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
from spanlite.archive.schema import LEDGER
from spanlite.v1 import spanlite_pb2 as pb

from spanlite_pipeline.rollups import int64


class Entry(NamedTuple):
    """What is counted apart."""

    hop: str
    source: str
    direction: str  # in, out, dropped, open
    reason: str = ""
    bucket: int = -1  # -1: not told apart


class LedgerCounts:
    """Spans and messages by entry."""

    def __init__(self) -> None:
        self._counts: dict[Entry, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, entry: Entry, spans: int, messages: int = 0) -> None:
        """Count; nothing is written of an entry that stays 0."""
        if spans or messages:
            row = self._counts.setdefault(entry, [0, 0])
            row[0] += spans
            row[1] += messages

    def update(self, other: Iterable[tuple[Entry, int, int]]) -> None:
        """Add all of another's."""
        for entry, spans, messages in other:
            self.add(entry, spans, messages)

    def items(self) -> list[tuple[Entry, int, int]]:
        """(entry, spans, messages)."""
        return [(entry, spans, messages) for entry, (spans, messages) in self._counts.items()]

    def to_bytes(self) -> bytes:
        """For the job's state."""
        return json.dumps([[list(e), s, m] for e, s, m in self.items()]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LedgerCounts:
        """Inverse of `to_bytes`."""
        out = cls()
        out.update((Entry(*e), s, m) for e, s, m in json.loads(data))
        return out

    def to_arrow(self, time_ns: int) -> pa.Table:
        """Rows in the LEDGER schema."""
        items = self.items()
        columns = {
            "time_ns": [time_ns] * len(items),
            "hop": [e.hop for e, _, _ in items],
            "source": [e.source for e, _, _ in items],
            "direction": [e.direction for e, _, _ in items],
            "reason": [e.reason for e, _, _ in items],
            "bucket": [None if e.bucket < 0 else e.bucket for e, _, _ in items],
            "spans": [int64(spans) for _, spans, _ in items],
            "messages": [messages for _, _, messages in items],
        }
        arrays = [pa.array(columns[f.name], _plain(f.type)).cast(f.type) for f in LEDGER]
        return pa.Table.from_arrays(arrays, schema=LEDGER)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def count_arrival(counts: LedgerCounts, header: pb.BatchHeader, lost: int) -> None:
    """Count on the hops before the pipeline; messages without a producer have none."""
    spans, producer = header.span_count, header.producer
    if not producer:
        return
    dropped = sum(drop.spans for drop in header.drops)
    counts.add(Entry("collector", producer, "in"), spans + dropped)
    counts.add(Entry("collector", producer, "out"), spans, 1)
    for drop in header.drops:
        counts.add(Entry("collector", producer, "dropped", drop.reason), drop.spans)
    counts.add(Entry("wire", producer, "in"), spans + lost)
    counts.add(Entry("wire", producer, "out"), spans, 1)
    counts.add(Entry("wire", producer, "dropped", "lost"), lost)
