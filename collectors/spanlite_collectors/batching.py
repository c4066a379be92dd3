"""From record batches of mixed traces to batches of one bucket and one resource.

Rows keep their order: sources write them by track and start, so that the columns of a
batch are nearly constant.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.bucket import trace_hash
from spanlite.schema import SPAN_SCHEMA

#: Some 100 kB on the wire: large enough for zstd, small next to the topic's 16 MiB.
DEFAULT_BATCH_SPANS = 16_384
DEFAULT_BATCH_BYTES = 1 << 20
#: How stale the archive may get because a batch is not full.
DEFAULT_BATCH_AGE_S = 1.0
#: Spans that may wait in half-full batches, all buckets together (some 250 MB).
DEFAULT_PENDING_SPANS = 1 << 20
#: A span on disk without its texts, at most about.
_SPAN_BYTES = 40


def hashes_of(spans: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """`trace_hash` of each row, shape (num_rows,)."""
    low, high = spans.column("trace_id_low"), spans.column("trace_id_high")
    return trace_hash(low.to_numpy(), high.to_numpy())


def split_by_bucket(
    spans: pa.RecordBatch, buckets: npt.NDArray[np.int64]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(bucket, its rows in order) for each bucket present; `buckets` has shape (num_rows,)."""
    if spans.num_rows == 0:
        return
    if (buckets == buckets[0]).all():
        yield int(buckets[0]), spans
        return
    order = np.argsort(buckets, kind="stable")
    present, firsts = np.unique(buckets[order], return_index=True)
    ordered = spans.take(pa.array(order))
    ends = np.append(firsts[1:], len(order))
    for bucket, start, end in zip(present, firsts, ends, strict=True):
        yield int(bucket), ordered.slice(int(start), int(end - start))


def join(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    """The parts one after the other, their dictionaries made one."""
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts, SPAN_SCHEMA).unify_dictionaries().combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], SPAN_SCHEMA)


def text_bytes(spans: pa.RecordBatch) -> int:
    """About how many bytes of text the rows bring: the part of a batch that varies most."""
    total = 0
    for name in ("name", "attributes"):
        column = spans.column(name)
        size = column.dictionary.nbytes
        # A slice still has the whole dictionary; charge it for its share only.
        total += size * min(1, spans.num_rows / max(1, len(column.dictionary)))
    return int(total)


@dataclass
class Ready:
    """Spans that make up a batch of their own."""

    bucket: int
    resource: Mapping[str, Any]
    spans: pa.RecordBatch


@dataclass
class _Open:
    bucket: int
    resource: Mapping[str, Any]
    since: float
    parts: list[pa.RecordBatch] = field(default_factory=list)
    spans: int = 0
    bytes: int = 0


class Batcher:
    """Collects spans by (bucket, resource) until a batch is full or old.

    Not thread-safe; the sink holds a lock around it.
    """

    def __init__(
        self,
        *,
        batch_spans: int = DEFAULT_BATCH_SPANS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        batch_age_s: float = DEFAULT_BATCH_AGE_S,
        pending_spans: int = DEFAULT_PENDING_SPANS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._batch_spans, self._batch_bytes = batch_spans, batch_bytes
        self._batch_age_s, self._pending_limit = batch_age_s, pending_spans
        self._clock = clock
        # In order of age, since an entry is made with its first span.
        self._open: dict[tuple[int, str], _Open] = {}
        self.pending_spans = 0

    @property
    def pending_bytes(self) -> int:
        """About what the spans that wait will take on disk."""
        texts = sum(entry.bytes for entry in self._open.values())
        return texts + self.pending_spans * _SPAN_BYTES

    def add(self, bucket: int, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        """Take rows of one bucket."""
        if spans.num_rows == 0:
            return
        key = (bucket, json.dumps(resource, sort_keys=True))
        entry = self._open.get(key)
        if entry is None:
            entry = self._open[key] = _Open(bucket, dict(resource), self._clock())
        entry.parts.append(spans)
        entry.spans += spans.num_rows
        entry.bytes += text_bytes(spans)
        self.pending_spans += spans.num_rows

    def take_full(self) -> Iterator[Ready]:
        """Batches that are full; where too much waits in all, also the oldest ones."""
        for key in [key for key, entry in self._open.items() if self._is_full(entry)]:
            yield from self._close(key)
        while self.pending_spans > self._pending_limit:
            yield from self._close(next(iter(self._open)))

    def take_aged(self, has_room: Callable[[], bool]) -> Iterator[Ready]:
        """Batches whose first span has waited long enough, while there is room for them."""
        limit = self._clock() - self._batch_age_s
        for key in [key for key, entry in self._open.items() if entry.since <= limit]:
            if not has_room():
                return
            yield from self._close(key)

    def take_all(self) -> Iterator[Ready]:
        """Everything."""
        for key in list(self._open):
            yield from self._close(key)

    def _is_full(self, entry: _Open) -> bool:
        return entry.spans >= self._batch_spans or entry.bytes >= self._batch_bytes

    def _close(self, key: tuple[int, str]) -> Iterator[Ready]:
        entry = self._open.pop(key)
        self.pending_spans -= entry.spans
        whole = join(entry.parts)
        # Even pieces of about that size: 17k spans make one batch, 30k make two of 15k.
        pieces = max(1, round(whole.num_rows / self._batch_spans))
        size = -(-whole.num_rows // pieces)
        for start in range(0, whole.num_rows, size):
            yield Ready(entry.bucket, entry.resource, whole.slice(start, size))
