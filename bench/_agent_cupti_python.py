"""NVIDIA's cupti-python as a recorder: the peer that hands out each kernel as an object."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

#: As NVIDIA's own samples have it.
BUFFER_BYTES = 8 << 20


class CuptiPython:
    """Kernels between `start` and `stop`, counted; its cheapest setting. One a process."""

    def __init__(self) -> None:
        from cupti import cupti  # type: ignore[import-not-found,unused-ignore]

        self._cupti, self._kind = cupti, cupti.ActivityKind.CONCURRENT_KERNEL
        #: Since the last start.
        self.records = 0
        cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._completed)

    @staticmethod
    @lru_cache(1)
    def only() -> CuptiPython:
        """The one of this process. Raises ImportError where cupti-python is not installed."""
        return CuptiPython()

    def _completed(self, activities: list[Any]) -> None:
        self.records += len(activities)

    def start(self) -> None:
        """Record kernels."""
        self.records = 0
        self._cupti.activity_enable(self._kind)

    def stop(self) -> None:
        """Record no more, and have all records handed out."""
        self._cupti.activity_flush_all(1)
        self._cupti.activity_disable(self._kind)
