"""Spans of a recording as spans of a replay: new trace and span ids, everything else kept.

Both maps are bijections that depend on the replay id alone, so parents and links lead to
where they led before, and two replays of one recording never meet in an archive.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.bucket import trace_hash
from spanlite.schema import LINK_TYPE

U64 = npt.NDArray[np.uint64]
REPLAY_ID_ATTRIBUTE = "spanlite.replay_id"


@dataclass(frozen=True)
class IdMap:
    """Old ids to new ones, for one replay."""

    keys: tuple[int, int]
    span_offset: int

    @classmethod
    def of(cls, replay_id: str) -> IdMap:
        """The map of a replay."""
        digest = hashlib.sha256(replay_id.encode()).digest()
        first, second, offset = (int.from_bytes(digest[i : i + 8], "big") for i in (0, 8, 16))
        return cls((first, second), offset)

    def traces(self, low: U64, high: U64) -> tuple[U64, U64]:
        """(low, high) of the new trace ids, shape (n,): two Feistel rounds, so one to one."""
        new_high = high ^ _keyed(low, self.keys[0])
        return low ^ _keyed(new_high, self.keys[1]), new_high

    def spans(self, ids: U64) -> U64:
        """New span ids: a constant further on, so that they cost no more on the wire.

        0 ("none") stays 0, and what would become 0 takes the place that 0 left free.
        """
        offset = np.uint64(self.span_offset)
        moved = ids + offset
        moved = np.where(moved == 0, offset, moved)
        return np.where(ids == 0, np.uint64(0), moved)


def _keyed(values: U64, key: int) -> U64:
    return trace_hash(values, np.full(len(values), key, dtype=np.uint64))


def respan(
    spans: pa.RecordBatch,
    ids: IdMap,
    start_ns: npt.NDArray[np.int64],
    duration_ns: npt.NDArray[np.int64],
) -> pa.RecordBatch:
    """The same spans (SPAN_SCHEMA) with new ids, and these times, shape (n,) each."""
    low, high = ids.traces(_u64(spans, "trace_id_low"), _u64(spans, "trace_id_high"))
    new = {
        "trace_id_low": pa.array(low),
        "trace_id_high": pa.array(high),
        "span_id": pa.array(ids.spans(_u64(spans, "span_id"))),
        "parent_span_id": pa.array(ids.spans(_u64(spans, "parent_span_id"))),
        "start_ns": pa.array(start_ns),
        "duration_ns": pa.array(duration_ns),
        "links": _links(spans.column("links"), ids),
    }
    arrays = [new.get(item.name, spans.column(item.name)) for item in spans.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=spans.schema)


def _u64(spans: pa.RecordBatch | pa.StructArray, name: str) -> U64:
    column = spans.column(name) if isinstance(spans, pa.RecordBatch) else spans.field(name)
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.uint64)


def _links(links: pa.ListArray, ids: IdMap) -> pa.ListArray:
    flat = links.flatten()
    if len(flat) == 0:
        return links
    low, high = ids.traces(_u64(flat, "trace_id_low"), _u64(flat, "trace_id_high"))
    values = pa.StructArray.from_arrays(
        [pa.array(low), pa.array(high), pa.array(ids.spans(_u64(flat, "span_id")))],
        fields=list(LINK_TYPE),
    )
    counts = links.value_lengths().fill_null(0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    none = np.append(np.asarray(links.is_null()), False)
    return pa.ListArray.from_arrays(pa.array(offsets, mask=none), values, type=links.type)
