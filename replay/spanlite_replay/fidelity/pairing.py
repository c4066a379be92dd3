"""Which observed span is which recorded one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from spanlite.errors import InputError

from spanlite_replay.fidelity.spans import BOOL, I64, Spans, match_rows
from spanlite_replay.targets.base import OBSERVED_SCHEMA


@dataclass(frozen=True)
class Pairs:
    """Recorded spans with the times that were planned and observed. Shape (recorded rows,).

    `planned_*` of a span that was not observed is its recorded time, moved as its neighbours
    in time were; `start_ns` and `end_ns` of it mean nothing.
    """

    spans: Spans
    planned_start_ns: I64
    planned_end_ns: I64
    start_ns: I64
    end_ns: I64
    seen: BOOL
    #: Observed rows of a span that had one already, and of spans the recording has not.
    repeated: int
    unknown: int

    def of(self, rows: BOOL) -> Pairs:
        """The same for some of the recorded rows; `repeated` and `unknown` stay."""
        s = self.spans
        return Pairs(
            Spans.of(s.table.filter(pa.array(rows))),
            self.planned_start_ns[rows],
            self.planned_end_ns[rows],
            self.start_ns[rows],
            self.end_ns[rows],
            self.seen[rows],
            self.repeated,
            self.unknown,
        )


def pair(recorded: pa.Table, observed: pa.Table) -> Pairs:
    """Join rows of the archive's `spans` with OBSERVED_SCHEMA, by trace id and span id.

    Raises InputError where the observed table lacks a column.
    """
    missing = [name for name in OBSERVED_SCHEMA.names if name not in observed.column_names]
    if missing:
        raise InputError(f"the observed table has no column {', '.join(missing)}")
    spans = Spans.of(recorded)
    low, high, span, planned_start, planned_end, start, end = (
        np.ascontiguousarray(observed.column(name).to_numpy()) for name in OBSERVED_SCHEMA.names
    )
    row, repeated, unknown = match_rows(
        (spans.trace_low, spans.trace_high, spans.span_id), (low, high, span)
    )
    seen = row >= 0
    if len(start):
        picked = [column[np.maximum(row, 0)] for column in (planned_start, planned_end, start, end)]
    else:
        picked = [np.zeros(len(spans), np.int64) for _ in range(4)]
    _plan_the_lost(spans, picked[0], picked[1], seen)
    return Pairs(spans, picked[0], picked[1], picked[2], picked[3], seen, repeated, unknown)


def _plan_the_lost(spans: Spans, start: I64, end: I64, seen: BOOL) -> None:
    """Give spans that were not observed their recorded times, moved as their neighbours'."""
    lost = ~seen
    if not lost.any():
        return
    moved = np.zeros(int(lost.sum()), np.int64)
    if seen.any():
        order = np.argsort(spans.start_ns[seen], kind="stable")
        known = spans.start_ns[seen][order]
        by = (start[seen] - spans.start_ns[seen])[order]
        at = np.searchsorted(known, spans.start_ns[lost], side="right") - 1
        moved = by[np.maximum(at, 0)]
    start[lost] = spans.start_ns[lost] + moved
    end[lost] = spans.end_ns[lost] + moved
