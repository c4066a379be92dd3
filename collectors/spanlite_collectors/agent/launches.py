"""Calls that have been written, for the kernels and copies that come after them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind

from spanlite_collectors.agent.place import I64, U64, Placed

_COLUMNS = ("correlation", "start", "span_id", "low", "high", "path", "cut")


class CallTable:
    """Launching calls by correlation id, 50 bytes each, sorted. All columns have shape (n,)."""

    def __init__(self) -> None:
        none = np.empty(0, np.uint64)
        self.correlation: U64 = none
        self.start: I64 = none.view(np.int64)
        self.span_id: U64 = none
        self.low: U64 = none
        self.high: U64 = none
        self.path: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self.cut: npt.NDArray[np.bool_] = np.empty(0, np.bool_)

    def __len__(self) -> int:
        return len(self.correlation)

    def add(self, placed: Placed) -> None:
        """Take in calls. Where a runtime call and the driver call in it share an id, the outer
        one counts; where an id comes again, the new call does."""
        kinds = (SpanKind.RUNTIME_CALL, SpanKind.DRIVER_CALL)
        calls = np.isin(placed.rows["kind"], kinds) & (placed.rows["correlation"] != 0)
        if not calls.any():
            return
        new = placed.take(calls)
        order = np.lexsort((new.rows["start"], new.rows["kind"], new.rows["correlation"]))
        new = new.take(order)
        first = np.ones(len(order), np.bool_)
        first[1:] = np.diff(new.rows["correlation"]) != 0
        new = new.take(first)
        old = ~np.isin(self.correlation, new.rows["correlation"])
        fresh = {
            "correlation": new.rows["correlation"],
            "start": new.rows["start"],
            **{name: getattr(new, name) for name in _COLUMNS[2:]},
        }
        joined = {n: np.concatenate([getattr(self, n)[old], fresh[n]]) for n in _COLUMNS}
        self._keep(joined, np.argsort(joined["correlation"], kind="stable"))

    def forget_before(self, start_ns: int) -> None:
        """Drop calls whose kernels have long come."""
        if len(self) and int(self.start.min()) < start_ns:
            self._keep({n: getattr(self, n) for n in _COLUMNS}, self.start >= start_ns)

    def _keep(
        self, columns: dict[str, npt.NDArray[np.generic]], pick: npt.NDArray[np.generic]
    ) -> None:
        for name, values in columns.items():
            setattr(self, name, values[pick])

    def find(self, correlation: U64) -> I64:
        """The row of each id, -1 where there is none. Shape (n,)."""
        if not len(self):
            return np.full(len(correlation), -1, np.int64)
        at = np.minimum(np.searchsorted(self.correlation, correlation), len(self) - 1)
        return np.where((self.correlation[at] == correlation) & (correlation != 0), at, -1)
