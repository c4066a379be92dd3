"""The SMs' clock of each GPU over the last minute, for the steps of the processes that use it."""

from __future__ import annotations

import threading
from bisect import bisect_right
from typing import Any

#: The attributes that a step gets: MHz, and why the GPU holds its clocks down (only if it does).
CLOCK, THROTTLED = "gpu.sm_clock_mhz", "gpu.throttled"
KEPT_NS = 60_000_000_000
#: A reading says nothing of a step that ended longer ago, or began later, than this.
FAR_NS = 2_000_000_000


class ClockHistory:
    """Readings of one GPU in order of time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: list[int] = []
        self._said: list[dict[str, Any]] = []

    def add(self, at_ns: int, megahertz: float, reasons: str) -> None:
        """One reading; `reasons` in words, separated by commas, empty for none."""
        said: dict[str, Any] = {CLOCK: round(megahertz)}
        if reasons:
            said[THROTTLED] = reasons
        with self._lock:
            self._at.append(at_ns)
            self._said.append(said)
            old = bisect_right(self._at, at_ns - KEPT_NS)
            del self._at[:old], self._said[:old]

    def around(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """The reading nearest to the middle of a stretch of time; empty where none is near."""
        middle = (start_ns + end_ns) // 2
        with self._lock:
            after = bisect_right(self._at, middle)
            near = [place for place in (after - 1, after) if 0 <= place < len(self._at)]
            if not near:
                return {}
            best = min(near, key=lambda place: abs(self._at[place] - middle))
            far = max(start_ns - self._at[best], self._at[best] - end_ns) > FAR_NS
            return {} if far else self._said[best]
