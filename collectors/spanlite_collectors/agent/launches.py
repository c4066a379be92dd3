"""Calls that have been written, for the kernels and copies that come after them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind

from spanlite_collectors.agent.place import I64, U64, Placed

_COLUMNS = (
    "correlation", "start", "thread", "name", "window", "span_id", "low", "high", "path", "cut",
    "used",
)  # fmt: skip


class CallTable:
    """Launching calls by correlation id, 67 bytes each, sorted. All columns have shape (n,)."""

    def __init__(self) -> None:
        none = np.empty(0, np.uint64)
        self.correlation: U64 = none
        self.start: I64 = none.view(np.int64)
        self.span_id: U64 = none
        self.low: U64 = none
        self.high: U64 = none
        self.path: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self.thread: U64 = none
        self.name: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self.window: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        self.cut: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        #: Whether a kernel or copy has come that this call started.
        self.used: npt.NDArray[np.bool_] = np.empty(0, np.bool_)

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
        fresh = {
            **{
                name: new.rows[name]
                for name in ("correlation", "start", "thread", "name", "window")
            },
            **{name: getattr(new, name) for name in ("span_id", "low", "high", "path", "cut")},
            "used": np.zeros(len(new.rows), np.bool_),
        }
        if (
            not len(self) or fresh["correlation"][0] > self.correlation[-1]
        ):  # as a rule: they count up
            self._set({n: np.concatenate([getattr(self, n), fresh[n]]) for n in _COLUMNS})
            return
        old = ~np.isin(self.correlation, fresh["correlation"])
        joined = {n: np.concatenate([getattr(self, n)[old], fresh[n]]) for n in _COLUMNS}
        order = np.argsort(joined["correlation"], kind="stable")
        self._set({n: values[order] for n, values in joined.items()})

    def forget_before(self, start_ns: int) -> None:
        """Drop calls whose kernels have long come."""
        keep = self.start >= start_ns
        self._set({n: getattr(self, n)[keep] for n in _COLUMNS})

    def worth_forgetting(self, start_ns: int) -> bool:
        """Whether a good part of the calls began before then; each time costs a copy of all."""
        return bool(len(self)) and int((self.start < start_ns).sum()) * 4 > len(self)

    def captured(
        self, launch_names: list[int], before_ns: int
    ) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        """Runs of launches that started nothing: those of a stream capture, which become the
        nodes of a graph in the same order. For each run the path and name of each launch.

        The kernels of calls since `before_ns` may still come."""
        launches = np.flatnonzero(np.isin(self.name, launch_names) & (self.start < before_ns))
        launches = launches[np.lexsort((self.start[launches], self.thread[launches]))]
        used, thread = self.used[launches], self.thread[launches]
        cuts = np.flatnonzero((np.diff(thread) != 0) | (np.diff(used.view(np.int8)) != 0)) + 1
        runs = np.split(launches, cuts)
        unused = [run for run in runs if len(run) and not self.used[run[0]]]
        return [(self.path[run], self.name[run]) for run in unused]

    def _set(self, columns: dict[str, npt.NDArray[np.generic]]) -> None:
        for name, values in columns.items():
            setattr(self, name, values)

    def find(self, correlation: U64) -> I64:
        """The row of each id, -1 where there is none. Shape (n,)."""
        if not len(self):
            return np.full(len(correlation), -1, np.int64)
        at = np.minimum(np.searchsorted(self.correlation, correlation), len(self) - 1)
        return np.where((self.correlation[at] == correlation) & (correlation != 0), at, -1)
