"""Calls that have been written, for the kernels and copies that come after them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from spanlite.kinds import CALL_KINDS

from spanlite_collectors.agent.place import I64, U64, Placed
from spanlite_collectors.agent.rows import Rows

#: By so much work may seem to begin before its call: clocks. Windows lie further apart.
EARLY_NS = 1_000_000

_COLUMNS = (
    "correlation", "start", "thread", "name", "window", "span_id", "low", "high", "path", "cut",
    "step", "used",
)  # fmt: skip


class CallTable:
    """Launching calls by correlation id and start, 75 bytes each, sorted. All columns have shape
    (n,). CUPTI may count the ids anew in each window, so one may come several times."""

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
        self.step: U64 = none
        #: Whether a kernel or copy has come that this call started.
        self.used: npt.NDArray[np.bool_] = np.empty(0, np.bool_)

    def __len__(self) -> int:
        return len(self.correlation)

    def add(self, placed: Placed) -> None:
        """Take in calls. Where a runtime call and the driver call in it share an id, the outer
        one counts. In another window the same id is another call."""
        calls = np.isin(placed.rows["kind"], CALL_KINDS) & (placed.rows["correlation"] != 0)
        if not calls.any():
            return
        new = placed.take(calls)
        keys = [new.rows[name] for name in ("start", "kind", "window", "correlation")]
        new = new.take(np.lexsort(keys))
        first = np.ones(len(new.rows), np.bool_)
        first[1:] = (np.diff(new.rows["correlation"]) != 0) | (np.diff(new.rows["window"]) != 0)
        new = new.take(first)
        fresh = {
            **{
                name: new.rows[name]
                for name in ("correlation", "start", "thread", "name", "window")
            },
            **{n: getattr(new, n) for n in ("span_id", "low", "high", "path", "cut", "step")},
            "used": np.zeros(len(new.rows), np.bool_),
        }
        rising = not len(self) or fresh["correlation"][0] > self.correlation[-1]
        joined = {n: np.concatenate([getattr(self, n), fresh[n]]) for n in _COLUMNS}
        if not rising:  # as a rule they count up
            order = np.lexsort([joined["start"], joined["correlation"]])
            joined = {n: values[order] for n, values in joined.items()}
        self._set(joined)

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

    def find(
        self,
        work: Rows,
        joined: Callable[[npt.NDArray[np.uint32], npt.NDArray[np.uint32]], npt.NDArray[np.bool_]],
    ) -> I64:
        """The row of the call of each kernel or copy, -1 where there is none. Shape (n,).

        `joined` says of windows of calls and of work whether the one can have started the other.
        """
        found = np.full(len(work), -1, np.int64)
        wanted = work["correlation"]
        first = np.searchsorted(self.correlation, wanted)
        at = np.searchsorted(self.correlation, wanted, side="right") - 1
        # Of several calls with its id, by far most of them one, the last before the work.
        left = np.flatnonzero((at >= first) & (wanted != 0))
        while len(left):
            call, start = at[left], work["start"][left]
            fits = joined(self.window[call], work["window"][left])
            fits &= (self.start[call] <= start + EARLY_NS) | (start == 0)
            found[left[fits]] = call[fits]
            left = left[~fits]
            at[left] -= 1
            left = left[at[left] >= first[left]]
        return found
