"""The GPU's clocks, temperature and power around a measurement, through NVML."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

#: Reasons for lower clocks that a reader of a time must know, by NVML's bits.
_THROTTLES = {0x4: "power cap", 0x8: "slowdown", 0x20: "temperature", 0x40: "hot", 0x80: "brake"}


class Clocks:
    """Reads device 0's state; gives nothing where NVML is not there."""

    def __init__(self) -> None:
        self._nvml: Any = None
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            self._nvml, self._device = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)

    def read(self) -> dict[str, Any]:
        """SM and memory clock in MHz, degrees Celsius, watts, and what holds the clocks down."""
        nvml = self._nvml
        if nvml is None:
            return {}
        asked: dict[str, Callable[[], Any]] = {
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(self._device, nvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(self._device, nvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(
                self._device, nvml.NVML_TEMPERATURE_GPU
            ),
            "power_w": lambda: round(nvml.nvmlDeviceGetPowerUsage(self._device) / 1000),
            "throttled": lambda: _words(
                nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._device)
            ),
        }
        found: dict[str, Any] = {}
        for name, ask in asked.items():
            # A GPU may not know one of them: the others still count.
            with contextlib.suppress(Exception):
                found[name] = ask()
        return found

    def since(self, before: dict[str, Any]) -> dict[str, Any]:
        """The state now, with the SM clock before and whatever throttled at either time."""
        now = self.read()
        if "sm_mhz" in before:
            now["sm_mhz_before"] = before["sm_mhz"]
        if before.get("throttled"):
            now["throttled"] = now.get("throttled") or before["throttled"]
        return now


def _words(bits: int) -> str:
    return ", ".join(word for bit, word in _THROTTLES.items() if bits & bit)
