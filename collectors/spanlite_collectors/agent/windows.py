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
_CONTINUOUS = {"spanlite.capture.level": "continuous", "spanlite.capture.reason": "continuous"}


class Windows:
    """The last windows of one process, and the attributes that their batches carry."""

    def __init__(self) -> None:
        self._windows: dict[int, Mapping[str, Any]] = {}
        self.cost_ppm = 0
        #: Whether the agent records all the time now: no weight depends on a window's end then.
        self.continuous = False

    def take(self, records: Records) -> None:
        """Windows that have closed."""
        for record in records:
            self._windows[int(record["window"])] = _describe(record)
            self.cost_ppm = int(record["cost_ppm"])
        while len(self._windows) > _KEPT:
            del self._windows[next(iter(self._windows))]

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
        flowing = [n for n, said in self._windows.items() if _flows(said)]
        near = (work == call + np.uint32(1)) & np.isin(call, np.array(flowing, np.uint32))
        out: npt.NDArray[np.bool_] = (call == work) | (call == 0) | (work == 0) | near
        return out

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
