"""From the spans of a batch to one row a trace, and from many such rows to the open traces."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.codec import BatchView
from spanlite.kinds import DEVICE_KINDS, SpanStatus

from spanlite_pipeline.sampling import TraceSummaries

Array = npt.NDArray[Any]
_NO_ROOT = np.iinfo(np.int64).max
_IS_DEVICE = np.isin(np.arange(256), [int(kind) for kind in DEVICE_KINDS])

#: One row a trace, known of it so far.
ROW = np.dtype(
    [
        ("low", np.uint64),
        ("high", np.uint64),
        ("root_start_ns", np.int64),  # of the earliest root span; the largest int64: none yet
        ("root_name", np.int32),  # see Words
        ("root_kind", np.int32),
        ("sender", np.int32),  # who sent the root, else the first batch
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("spans", np.int64),
        ("errors", np.int64),
        ("device_spans", np.int64),
        ("device_ns", np.int64),
        ("bytes", np.int64),  # moved by copies, as the spans say
        ("wire_bytes", np.int64),
        ("matches", np.uint64),
        ("head_weight", np.float64),  # 1 / probability of head sampling
        ("seen_ms", np.int64),  # processing time of the last batch
        ("batch", np.int64),  # number of the first batch
    ]
)
_MERGE: dict[str, np.ufunc] = {
    "start_ns": np.minimum,
    "end_ns": np.maximum,
    "spans": np.add,
    "errors": np.add,
    "device_spans": np.add,
    "device_ns": np.add,
    "bytes": np.add,
    "wire_bytes": np.add,
    "matches": np.bitwise_or,
    "head_weight": np.maximum,
    "seen_ms": np.maximum,
    "batch": np.minimum,
}

Rows = npt.NDArray[np.void]


class Words:
    """Text as small numbers, for as long as some open trace uses it."""

    def __init__(self) -> None:
        self._codes: dict[Any, int] = {}
        self._words: list[Any] = []

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, code: int) -> Any:
        return self._words[code]

    def code(self, word: Any) -> int:
        """The number of a word (any hashable value)."""
        code = self._codes.setdefault(word, len(self._words))
        if code == len(self._words):
            self._words.append(word)
        return code

    def keep_only(self, codes: Array) -> Array:
        """Forget all other words; return the new numbers of these codes, shape (n,)."""
        used, new = np.unique(codes, return_inverse=True)
        words = [self._words[code] for code in used.tolist()]
        self._words, self._codes = words, {word: at for at, word in enumerate(words)}
        return new.astype(np.int32)


class Grouping:
    """The spans of a batch, ordered so that those of a trace lie together."""

    def __init__(self, view: BatchView) -> None:
        index = view.trace_index
        self.traces = len(view.trace_low)
        narrow: Array = index.astype(np.uint16 if self.traces <= 1 << 16 else np.int64)
        counts = np.bincount(narrow, minlength=self.traces)
        self.present = np.flatnonzero(counts)  # traces that have spans here
        self.counts = counts[self.present]
        self._first = np.concatenate(([0], np.cumsum(self.counts)[:-1]))
        in_order = view.count < 2 or bool(np.all(narrow[1:] >= narrow[:-1]))
        self._order = None if in_order else np.argsort(narrow, kind="stable")

    def reduce(self, function: np.ufunc, values: Array) -> Array:
        """`function` over the spans of each present trace, shape (len(present),)."""
        ordered = values if self._order is None else values[self._order]
        out: Array = function.reduceat(ordered, self._first)
        return out


def summarise(view: BatchView, grouping: Grouping, matches: Array, raw_bytes: int) -> Rows:
    """One ROW a trace in the batch; codes, `sender`, `seen_ms` and `batch` are left 0.

    `matches`: bits of each trace in `view.trace_low`, shape (traces,).
    """
    present = grouping.present
    out = np.zeros(len(present), ROW)
    out["low"], out["high"] = view.trace_low[present], view.trace_high[present]
    start, duration = view.column("start_ns"), view.column("duration_ns")
    site = view.site_index.astype(np.int64)
    device = _IS_DEVICE[view.site_column("kind")][site]
    out["start_ns"] = grouping.reduce(np.minimum, start)
    out["end_ns"] = grouping.reduce(np.maximum, start + duration)
    out["spans"] = grouping.counts
    errors = view.site_column("status") == SpanStatus.ERROR
    if errors.any():
        out["errors"] = grouping.reduce(np.add, errors.astype(np.int64)[site])
    if device.any():
        out["device_spans"] = grouping.reduce(np.add, device.astype(np.int64))
    out["device_ns"] = grouping.reduce(np.add, np.where(device, duration, 0))
    moved = view.site_column("bytes")
    if moved.any():
        out["bytes"] = grouping.reduce(np.add, moved.astype(np.uint64)[site]).view(np.int64)
    out["wire_bytes"] = -(-grouping.counts * raw_bytes // max(view.count, 1))
    out["matches"] = matches[present]
    probability = view.header.sampling_probability
    out["head_weight"] = 1.0 / probability if 0.0 < probability < 1.0 else 1.0
    return out


def add_roots(rows: Rows, view: BatchView, grouping: Grouping, words: Words) -> None:
    """Fill in the root columns: the earliest span without a parent of each trace."""
    rows["root_start_ns"], rows["root_name"] = _NO_ROOT, -1
    roots = np.flatnonzero(view.column("parent_span_id") == 0)
    if len(roots) == 0:
        return
    start = view.column("start_ns")[roots]
    latest_first = np.argsort(-start, kind="stable")
    roots, start = roots[latest_first], start[latest_first]
    place = np.zeros(grouping.traces, np.int64)
    place[grouping.present] = np.arange(len(grouping.present))
    at = place[view.trace_index[roots].astype(np.int64)]
    # Of several assignments to one place the last holds: that of the earliest start.
    rows["root_start_ns"][at] = start
    rows["root_kind"][at] = view.column("kind")[roots]
    names = view.column("name")[roots].astype(np.int64)
    used, codes = np.unique(names, return_inverse=True)
    known = np.array([words.code(view.strings[name].as_py()) for name in used.tolist()], np.int32)
    rows["root_name"][at] = known[codes]


def merge(parts: list[Rows]) -> Rows:
    """One row a trace, in order of (high, low), from any number of rows a trace."""
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if len(rows) == 0:
        return rows
    low, high = rows["low"], rows["high"]
    order = np.lexsort((rows["root_start_ns"], low, high))
    low, high = low[order], high[order]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    first = np.flatnonzero(is_first)
    out: Rows = rows[order[first]]  # root and sender: those of the earliest root
    if len(out) < len(rows):
        for name, function in _MERGE.items():
            out[name] = function.reduceat(rows[name][order], first)
    return out


def for_rules(rows: Rows) -> TraceSummaries:
    """What the sampling rules look at."""
    return TraceSummaries(
        trace_low=rows["low"],
        trace_high=rows["high"],
        start_ns=rows["start_ns"],
        end_ns=rows["end_ns"],
        spans=rows["spans"],
        errors=rows["errors"],
        device_ns=rows["device_ns"],
        wire_bytes=rows["wire_bytes"],
        matches=rows["matches"],
    )
