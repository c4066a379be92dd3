"""Where collected spans go: the seam between importers, receivers and delivery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

#: Resource attribute: how many steps each one that a capture window covered stands for. Delivery
#: puts it into the headers of the batches, for the archive's weights.
CAPTURE_WEIGHT = "spanlite.capture.weight"


class SpanSink(Protocol):
    """Takes spans in SPAN_SCHEMA, any number of traces and buckets mixed."""

    def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        """Take spans of one resource. May block while the way out is full."""
        ...

    def drop(self, reason: str, spans: int) -> None:
        """Count spans that will never be sent, for the ledger."""
        ...

    def flush(self) -> None:
        """Return when everything written so far is delivered or safely on disk."""
        ...


class MemorySink:
    """Keeps everything, for tests."""

    def __init__(self) -> None:
        self.written: list[tuple[pa.RecordBatch, dict[str, Any]]] = []
        self.dropped: dict[str, int] = {}

    def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        """Keep the spans."""
        self.written.append((spans, dict(resource)))

    def drop(self, reason: str, spans: int) -> None:
        """Add to the count."""
        self.dropped[reason] = self.dropped.get(reason, 0) + spans

    def flush(self) -> None:
        """Nothing is ever pending."""

    @property
    def span_count(self) -> int:
        """Spans written so far."""
        return sum(spans.num_rows for spans, _ in self.written)


class DiscardSink:
    """Takes everything and keeps nothing, for dry runs of large files."""

    def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        """Forget the spans."""

    def drop(self, reason: str, spans: int) -> None:
        """Forget the count."""

    def flush(self) -> None:
        """Nothing is ever pending."""
