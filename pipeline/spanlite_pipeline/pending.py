"""Batches with undecided traces: their bytes as they came, compressed, and what is resolved."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.archive.writer import SpanFileBuilder
from spanlite.bucket import trace_hash
from spanlite.codec import BatchView

from spanlite_pipeline.state import Store

PREFIX = "b/"
RESOLVED_PREFIX = "r/"
#: arrived (ms), spans lost before it, fingerprint of the rules, raw bytes, traces with matches
_HEAD = struct.Struct("<qqQII")
#: Level 1: half the size of no compression for a few per cent of the time.
_CODEC = pa.Codec("zstd", compression_level=1)

Array = npt.NDArray[Any]


@dataclass
class Arrival:
    """What is known of a batch besides its bytes."""

    seen_ms: int
    lost: int  # spans of this producer that never came, just before it
    fingerprint: int  # of the rules that `matches` belongs to
    matches: npt.NDArray[np.uint64]  # of each trace in the batch, shape (traces,)


def pack_entry(arrival: Arrival, raw: bytes) -> bytes:
    """A batch as it lies in the store."""
    at = np.flatnonzero(arrival.matches).astype(np.uint32)
    head = _HEAD.pack(arrival.seen_ms, arrival.lost, arrival.fingerprint, len(raw), len(at))
    bits = arrival.matches[at].tobytes()
    return b"".join((head, at.tobytes(), bits, _CODEC.compress(raw, asbytes=True)))


def unpack_raw(entry: bytes) -> bytes:
    """The message of an entry."""
    _, _, _, size, marked = _HEAD.unpack_from(entry)
    body = memoryview(entry)[_HEAD.size + 12 * marked :]
    return bytes(_CODEC.decompress(body, size, asbytes=True))


def unpack_arrival(entry: bytes, traces: int) -> Arrival:
    """The rest of an entry whose batch lists so many traces."""
    seen_ms, lost, fingerprint, _, marked = _HEAD.unpack_from(entry)
    matches = np.zeros(traces, np.uint64)
    at = np.frombuffer(entry, np.uint32, marked, _HEAD.size)
    matches[at] = np.frombuffer(entry, np.uint64, marked, _HEAD.size + 4 * marked)
    return Arrival(seen_ms, lost, fingerprint, matches)


class PendingBatch:
    """One stored batch and, for each of its traces, whether it is resolved."""

    def __init__(self, number: int, entry: bytes, view: BatchView, counts: Array) -> None:
        self.number, self.entry = number, entry
        self.hashes = trace_hash(view.trace_low, view.trace_high)
        self.counts = counts.astype(np.int32)  # spans of each trace
        self.resolved = self.counts == 0

    @property
    def key(self) -> str:
        """Its key in the store."""
        return f"{PREFIX}{self.number}"

    @property
    def open_spans(self) -> int:
        """Spans whose traces are undecided."""
        return int(self.counts[~self.resolved].sum())

    def restore(self, bits: bytes | None) -> None:
        """Take back what was resolved, as `save` wrote it."""
        if bits is not None:
            flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(self.resolved))
            self.resolved |= flags.astype(np.bool_)

    def save(self, store: Store, first_time: bool) -> None:
        """Write what is resolved, or remove the batch where everything is."""
        if self.resolved.all():
            store.remove(self.key)
            if not first_time:
                store.remove(f"{RESOLVED_PREFIX}{self.number}")
        else:
            bits = np.packbits(self.resolved).tobytes()
            store.put(f"{RESOLVED_PREFIX}{self.number}", bits)

    def resolve(self, hashes: Array, weights: Array) -> Array | None:
        """Mark the traces that are in `hashes` (sorted); return the weight of each trace.

        Shape (traces,), -1 where it is not resolved now; None where none is.
        """
        at = np.minimum(np.searchsorted(hashes, self.hashes), len(hashes) - 1)
        found = (hashes[at] == self.hashes) & ~self.resolved
        if not found.any():
            return None
        self.resolved |= found
        return np.where(found, weights[at], -1.0)

    def write(self, builder: SpanFileBuilder, each: Array) -> int:
        """Add the spans of traces whose weight in `each` is above 0; returns how many."""
        view = BatchView(unpack_raw(self.entry), checked=True)
        weights = each[view.trace_index.astype(np.int64)]
        rows = np.flatnonzero(weights > 0)
        header = view.header
        for share in (header.sampling_probability, header.capture_probability):
            if 0.0 < share < 1.0:
                weights = weights / share
        builder.add(view, rows, weights[rows])
        return len(rows)
