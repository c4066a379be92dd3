"""What windows say about the spans in them: level, weight and cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from spanlite_collectors.agent.layout import Level, WindowReason
from spanlite_collectors.agent.ring import Records
from spanlite_collectors.agent.strata import StepKinds
from spanlite_collectors.sinks import CAPTURE_WEIGHT

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

#: Windows kept, a handful of numbers each. Spans come within seconds of their window.
_KEPT = 256
#: The windows of a continuous stretch lie closer to each other than this.
GAP_NS = 1_000_000
_CONTINUOUS = {"spanlite.capture.level": "continuous", "spanlite.capture.reason": "continuous"}


class Windows:
    """The last windows of one process, and the attributes that their batches carry."""

    def __init__(self) -> None:
        self._windows: dict[int, Mapping[str, Any]] = {}
        self._times: dict[int, tuple[int, int]] = {}
        self._kinds = StepKinds()
        #: How many steps each covered one stands for, by its number, of each window.
        self._weights: dict[int, Mapping[int, float]] = {}
        #: Records of windows whose weights are not known yet, in their order.
        self._pending: deque[Any] = deque()
        self.cost_ppm = 0
        #: Whether the agent records all the time now: no weight depends on a window's end then.
        self.continuous = False

    def take_steps(self, records: Records, names: Mapping[int, str]) -> None:
        """Steps that have ended, before `take` of the window that closed after them. `names`: the
        text of each name in them."""
        self._kinds.take(records, names)

    def take(self, records: Records) -> None:
        """Windows that have closed; `settle` says what their steps stand for."""
        for record in records:
            number = int(record["window"])
            self._windows[number] = _describe(record)
            self._pending.append(record)
            self._times[number] = int(record["open_ns"]), int(record["close_ns"])
            self.cost_ppm = int(record["cost_ppm"])

    def settle(self, before_ns: int, work_of: Callable[[int, Records], I64]) -> None:
        """Weigh the steps of windows that closed before then: what ran in them has been taken.

        `work_of`: of a window and records of steps in it, their launches and for how many ns these
        ran. Of a continuous stretch each step stands for itself, so it needs no wait.
        """
        while self._pending:
            record = self._pending[0]
            flows = record["reason"] == WindowReason.CONTINUOUS
            if not flows and int(record["close_ns"]) > before_ns:
                break
            number = int(self._pending.popleft()["window"])
            self._weights[number] = self._weigh(number, record, work_of)
        while len(self._weights) > _KEPT:
            oldest = next(iter(self._weights))
            del self._windows[oldest], self._times[oldest], self._weights[oldest]

    def _weigh(
        self, number: int, record: Any, work_of: Callable[[int, Records], I64]
    ) -> Mapping[int, float]:
        close_ns = int(record["close_ns"])
        seen, steps = int(record["steps_since_last"]), int(record["steps"])
        if record["reason"] == WindowReason.CONTINUOUS:
            self._kinds.skip(close_ns, seen)
            return {}
        work = partial(work_of, number)
        return self._kinds.close(number, close_ns, steps, seen, work)

    def weights(self, windows: npt.NDArray[np.uint32], steps: npt.NDArray[np.uint64]) -> F64:
        """What spans stand for, shape (n,), by their window and step (its number and 1; 0: none).

        NaN where all that is known is what their window says.
        """
        out = np.full(len(steps), np.nan)
        for window in np.unique(windows[steps != 0]).tolist():
            weights = self._weights.get(window)
            if weights:
                at = np.flatnonzero((windows == window) & (steps != 0))
                distinct, inverse = np.unique(steps[at], return_inverse=True)
                found = [weights.get(step - 1, np.nan) for step in distinct.tolist()]
                out[at] = np.array(found)[inverse.ravel()]
        return out

    def known(self, windows: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Of which windows all is known: settled ones, 0 (none), one that is continuous.

        Shape (n,).
        """
        settled = np.array([0, *self._weights], np.uint32)
        out: npt.NDArray[np.bool_] = np.isin(windows, settled)
        last = next(reversed(self._windows), 0)
        return out | (windows > last) if self.continuous else out

    def joined(
        self, call: npt.NDArray[np.uint32], work: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.bool_]:
        """Whether a call of a window can have started work of another, by their numbers.

        CUPTI may count correlation ids anew in each window, but not in those of a continuous
        stretch, which follow each other without a gap. Shape (n,).
        """
        flowing = [number for number in self._windows if self._flows_on(number)]
        near = (work == call + np.uint32(1)) & np.isin(call, np.array(flowing, np.uint32))
        out: npt.NDArray[np.bool_] = (call == work) | (call == 0) | (work == 0) | near
        return out

    def _flows_on(self, number: int) -> bool:
        """Whether the next window is of the same continuous stretch: another one may follow a
        detach, after which the same ids are of other calls."""
        if not _flows(self._windows[number]):
            return False
        if number + 1 not in self._windows:
            return self.continuous and number == max(self._windows)
        gap_ns = self._times[number + 1][0] - self._times[number][1]
        return _flows(self._windows[number + 1]) and gap_ns < GAP_NS

    def attributes(
        self, window: int, *, cut: bool = False, weight: float = np.nan
    ) -> Mapping[str, Any]:
        """Resource attributes of the spans of a window; `cut`: of steps that its edge cut.

        `weight`: what the spans stand for, where that is known better than of the window.
        """
        if not window:  # what is recorded all the time, and what windows cost by now
            return {"spanlite.capture.level": "ranges", "spanlite.capture.cost_ppm": self.cost_ppm}
        open_one = {"spanlite.capture.window": window} | (_CONTINUOUS if self.continuous else {})
        said = self._windows.get(window, open_one)
        if cut:
            return {k: v for k, v in said.items() if k != CAPTURE_WEIGHT}
        return said if np.isnan(weight) else {**said, CAPTURE_WEIGHT: weight}


def _flows(said: Mapping[str, Any]) -> bool:
    return bool(said["spanlite.capture.reason"] == "continuous")


def _describe(record: Any) -> dict[str, Any]:
    """`weight` is steps seen over steps covered: how many steps each one here stands for, where
    kinds of steps are not told apart.

    Of a continuous stretch each stands for itself, those too that went out before it closed.
    """
    level, reason = int(record["level"]), int(record["reason"])
    steps, seen = int(record["steps"]), int(record["steps_since_last"])
    out: dict[str, Any] = {
        "spanlite.capture.window": int(record["window"]),
        "spanlite.capture.level": _word(Level, level),
        "spanlite.capture.reason": _word(WindowReason, reason),
        "spanlite.capture.steps": steps,
        "spanlite.capture.steps_seen": max(seen, steps),
        "spanlite.capture.cost_ppm": int(record["cost_ppm"]),
    }
    if steps and reason != WindowReason.CONTINUOUS:
        out[CAPTURE_WEIGHT] = round(max(seen, steps) / steps, 6)
    if record["partial"]:
        out["spanlite.capture.partial"] = True
    return out


def _word(words: type[Level] | type[WindowReason], value: int) -> str:
    try:
        return words(value).name.lower()
    except ValueError:
        return str(value)
