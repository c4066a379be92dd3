"""Rows with ids, parents and traces become record batches and go to the sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.flags import SpanFlag
from spanlite.schema import LAUNCH_COLUMNS

from spanlite_collectors.agent.rows import Rows, Texts
from spanlite_collectors.agent.windows import Windows
from spanlite_collectors.importers._columns import SAME_COLUMNS, LinkRow, link_column, span_batch
from spanlite_collectors.sinks import SpanSink

U64 = npt.NDArray[np.uint64]

#: Our names -> SPAN_SCHEMA's: those of the importers, and what they fill in themselves.
_SAME = (
    SAME_COLUMNS | {"start": "start_ns", "flags": "flags"} | {name: name for name in LAUNCH_COLUMNS}
)


class Emitter:
    """Writes spans of one process, a batch for each window and each weight in it."""

    def __init__(
        self, sink: SpanSink, resource: Mapping[str, Any], texts: Texts, windows: Windows
    ) -> None:
        self._sink, self.resource, self._texts, self._windows = sink, resource, texts, windows
        #: Spans handed to the sink so far.
        self.written = 0

    def write(
        self,
        rows: Rows,
        span_id: U64,
        parent_id: U64,
        trace: tuple[U64, U64],
        links: Mapping[int, LinkRow] | None = None,
        cut: npt.NDArray[np.bool_] | None = None,
        step: U64 | None = None,
    ) -> None:
        """Write spans, shape (n,) each; `trace` is (low, high). Rows lie in writing order.

        `cut`: rows in steps that a window's edge cut, beside those flagged so. `step`: the covered
        step that each row lies in (its number and 1; 0: none).
        """
        if not len(rows):
            return
        names = rows.dtype.names or ()
        columns: dict[str, Any] = {new: rows[old] for old, new in _SAME.items() if old in names}
        texts = pa.array(self._texts.all(), pa.string())
        columns |= {
            "trace_id_low": trace[0],
            "trace_id_high": trace[1],
            "span_id": span_id,
            "parent_span_id": parent_id,
            "name": _dictionary(texts, rows["name"]),
            "attributes": _dictionary(texts, rows["attributes"]),
            "links": link_column(len(rows), links or {}),
        }
        batch = span_batch(len(rows), columns)
        # What an edge cut stands for itself alone, and whole steps for those not seen.
        partial = rows["flags"] & np.uint32(SpanFlag.PARTIAL) != 0
        edge = partial if cut is None else partial | cut
        weights = np.full(len(rows), np.nan)
        if step is not None and step.any():
            weights = np.where(edge, np.nan, self._windows.weights(rows["window"], step))
        distinct, code = np.unique(weights, return_inverse=True)
        groups = (rows["window"].astype(np.int64) << 1 | edge) * len(distinct) + code.ravel()
        for group in np.unique(groups).tolist():
            mine = groups == group
            part = batch if mine.all() else batch.filter(pa.array(mine))
            window, weight = divmod(group, len(distinct))
            said = self._windows.attributes(
                window >> 1, cut=bool(window & 1), weight=float(distinct[weight])
            )
            self._sink.write(part, {**self.resource, **said})
            self.written += part.num_rows


def _dictionary(texts: pa.Array, codes: npt.NDArray[np.int32]) -> pa.DictionaryArray:
    """The text of codes (-1: null), with only those texts that are in use."""
    used, index = np.unique(codes, return_inverse=True)
    index = index.ravel().astype(np.int32) - np.int32((used < 0).sum())
    return pa.DictionaryArray.from_arrays(
        pa.array(index, mask=index < 0), texts.take(pa.array(used[used >= 0]))
    )
