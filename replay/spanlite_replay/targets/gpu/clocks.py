"""Clocks, throttling, power and temperature of the GPU, as NVML tells them."""

from __future__ import annotations

from typing import Any

#: NVML's bits, by word; idle and the application's own setting slow nothing that runs.
REASONS = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
    0x100: "display clocks",
}


class Clocks:
    """Asks NVML; without nvidia-ml-py everything is "unknown"."""

    def __init__(self, name: str) -> None:
        self._nvml: Any = None
        self._name = name
        self._handle: Any = None
        self.driver = "unknown"
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = self._find(pynvml)
            self._nvml = pynvml
            version = pynvml.nvmlSystemGetDriverVersion()
            self.driver = version.decode() if isinstance(version, bytes) else str(version)
        except Exception:  # noqa: BLE001, RUF100 - NVML has many ways to be absent
            self._nvml = None

    def _find(self, nvml: Any) -> Any:
        """The first GPU of that name: NVML does not number them as CUDA does."""
        for number in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            told = nvml.nvmlDeviceGetName(handle)
            if (told.decode() if isinstance(told, bytes) else told) == self._name:
                return handle
        return nvml.nvmlDeviceGetHandleByIndex(0)

    def most_sm_mhz(self) -> int:
        """The highest clock of the SMs, 0 where it is not known."""
        if self._nvml is None:
            return 0
        try:
            return int(self._nvml.nvmlDeviceGetMaxClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))
        except self._nvml.NVMLError:
            return 0

    def read(self) -> dict[str, int | str]:
        """SM and memory clock in MHz, reasons for throttling, watts, degrees."""
        if self._nvml is None:
            return {"clocks": "unknown (nvidia-ml-py is not installed)"}
        nvml, handle = self._nvml, self._handle
        out: dict[str, int | str] = {}
        for word, ask in (
            ("sm_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            ("memory_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            ("throttle", lambda: reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
            ("watts", lambda: nvml.nvmlDeviceGetPowerUsage(handle) // 1000),
            ("celsius", lambda: nvml.nvmlDeviceGetTemperature(handle, 0)),
        ):
            try:
                out[word] = ask()
            except nvml.NVMLError:
                out[word] = "unknown"
        return out


def reasons(bits: int) -> str:
    """Words for NVML's bits."""
    found = [word for bit, word in REASONS.items() if bits & bit]
    return ", ".join(found) or "none"
