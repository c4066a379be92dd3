"""What windows say about the spans in them: level, weight and cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spanlite_collectors.agent.layout import Level, WindowReason
from spanlite_collectors.agent.ring import Records
from spanlite_collectors.sinks import CAPTURE_WEIGHT

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
        self.cost_ppm = 0
        #: Whether the agent records all the time now: no weight depends on a window's end then.
        self.continuous = False

    def take(self, records: Records) -> None:
        """Windows that have closed."""
        for record in records:
            number = int(record["window"])
            self._windows[number] = _describe(record)
            self._times[number] = int(record["open_ns"]), int(record["close_ns"])
            self.cost_ppm = int(record["cost_ppm"])
        while len(self._windows) > _KEPT:
            oldest = next(iter(self._windows))
            del self._windows[oldest], self._times[oldest]

    def known(self, windows: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Of which windows all is known: closed ones, 0 (none), one that is continuous.

        Shape (n,).
        """
        closed = np.array([0, *self._windows], np.uint32)
        out: npt.NDArray[np.bool_] = np.isin(windows, closed)
        return out | (windows > closed[-1]) if self.continuous else out

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

    def attributes(self, window: int, *, cut: bool = False) -> Mapping[str, Any]:
        """Resource attributes of the spans of a window; `cut`: of steps that its edge cut."""
        if not window:
            return {}
        open_one = {"spanlite.capture.window": window} | (_CONTINUOUS if self.continuous else {})
        said = self._windows.get(window, open_one)
        return {k: v for k, v in said.items() if k != CAPTURE_WEIGHT} if cut else said


def _flows(said: Mapping[str, Any]) -> bool:
    return bool(said["spanlite.capture.reason"] == "continuous")


def _describe(record: Any) -> dict[str, Any]:
    """`weight` is steps seen over steps covered: how many steps each one here stands for.

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
