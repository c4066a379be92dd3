"""GPU state beside the spans: NVML each second, under OpenTelemetry's `hw.gpu.*` names.

PCIe throughput takes NVML 20 ms a read, so everything is read on a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from spanlite_collectors.agent.clocks import ClockHistory

EVERY_S = 1.0

#: Family name -> what it means, and whether it is a counter. The dots of OpenTelemetry's names
#: are underscores here, as its Prometheus mapping says.
FAMILIES: dict[str, tuple[str, bool]] = {
    "hw_gpu_utilization_ratio": ("Share of time in which a kernel ran", False),
    "hw_gpu_memory_utilization_ratio": ("Share of time in which memory was read or written", False),
    "hw_gpu_memory_usage_bytes": ("Memory in use", False),
    "hw_gpu_memory_limit_bytes": ("Memory there is", False),
    "hw_gpu_power_watts": ("Power drawn", False),
    "hw_gpu_temperature_celsius": ("Temperature of the chip", False),
    "hw_gpu_clock_hertz": ("Clock, by kind", False),
    "hw_gpu_throttled": ("1 while clocks are held down, by reason", False),
    "hw_gpu_energy_joules": ("Energy since the driver was loaded", True),
    "hw_gpu_errors": ("ECC errors since the driver was loaded", True),
    "hw_gpu_io_bytes_per_second": ("PCIe bytes, by direction", False),
    "hw_gpu_nvlink_io_bytes": ("NVLink payload bytes of all links, by direction", True),
    "hw_gpu_process_memory_usage_bytes": ("Memory of a process", False),
}
#: Where there is no such link there is no such series.
OPTIONAL = frozenset({"hw_gpu_nvlink_io_bytes"})
#: `scopeId` of a field: all links of a GPU in sum (nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX).
_ALL_LINKS = 0xFFFFFFFF
#: NVML's throttle bits that mean trouble.
THROTTLES = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}


@dataclass(frozen=True)
class Reading:
    """One value: family, labels beside those of the GPU, number."""

    family: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


class NvmlSampler(Collector):
    """Reads all GPUs once a second. A Source of the daemon that writes no spans.

    `nvml` is the `pynvml` module, or what looks like it.
    """

    def __init__(self, nvml: Any, say: Callable[[str], None] = lambda text: None) -> None:
        self._nvml, self._say = nvml, say
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._gpus: dict[str, list[Reading]] = {}
        self._processes: dict[int, list[str]] = {}
        self._common: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._throttled: set[str] = set()
        self._clocks_by_uuid: dict[str, ClockHistory] = {}
        #: Called with a text when a GPU begins to hold its clocks down.
        self.on_throttle: Callable[[str], None] = lambda text: None
        self.read_seconds = 0.0

    @property
    def url(self) -> str:
        """For the log."""
        return f"NVML ({len(self._gpus)} GPUs)"

    def start(self) -> None:
        """Read once now, then each second."""
        self.sample()
        self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def gpus_of(self, pid: int | None) -> dict[str, Any]:
        """Resource attributes: driver, CUDA, and the GPUs that a process of this host uses."""
        with self._lock:
            uuids = self._processes.get(pid, []) if pid is not None else []
            uuids = uuids or (list(self._gpus) if len(self._gpus) == 1 else [])
            out: dict[str, Any] = dict(self._common)
        if uuids:
            out["gpu.uuid"] = ",".join(sorted(uuids))
        mig = [uuid for uuid in uuids if uuid.startswith("MIG-")]
        if mig:
            out["gpu.mig.uuid"] = ",".join(sorted(mig))
        return out

    @property
    def uuids(self) -> list[str]:
        """The GPUs, in NVML's order, which is that of the PCI bus."""
        with self._lock:
            return list(self._gpus)

    def sample(self) -> None:
        """Read everything once."""
        began = time.perf_counter()
        nvml = self._nvml
        gpus: dict[str, list[Reading]] = {}
        processes: dict[int, list[str]] = {}
        common = {
            "nvidia.driver.version": _text(self._try(nvml.nvmlSystemGetDriverVersion)),
            "cuda.driver.version": _cuda(self._try(nvml.nvmlSystemGetCudaDriverVersion_v2)),
        }
        for index in range(self._try(nvml.nvmlDeviceGetCount) or 0):
            handle = self._try(nvml.nvmlDeviceGetHandleByIndex, index)
            uuid = _text(self._try(nvml.nvmlDeviceGetUUID, handle)) if handle is not None else ""
            if uuid:
                gpus[uuid] = list(self._read(handle))
                for pid, where in self._users(handle, uuid):
                    processes.setdefault(pid, []).append(where)
        with self._lock:
            self._gpus, self._processes = gpus, processes
            self._common = {key: value for key, value in common.items() if value}
            self.read_seconds += time.perf_counter() - began
        for uuid, readings in gpus.items():
            self._keep_clock(uuid, readings)
        self._tell_throttling(gpus)

    def clocks_of(self, resource: Mapping[str, Any]) -> ClockHistory | None:
        """Of a process's GPU, from its resource attributes; None where it has several or none."""
        with self._lock:
            return self._clocks_by_uuid.get(str(resource.get("gpu.uuid", "")))

    def _keep_clock(self, uuid: str, readings: list[Reading]) -> None:
        clocks = [
            reading.value / 1e6
            for reading in readings
            if reading.family == "hw_gpu_clock_hertz" and reading.labels["clock"] == "sm"
        ]
        reasons = [
            reading.labels["reason"]
            for reading in readings
            if reading.family == "hw_gpu_throttled" and reading.value
        ]
        if clocks:
            with self._lock:
                history = self._clocks_by_uuid.setdefault(uuid, ClockHistory())
            history.add(time.time_ns(), clocks[0], ",".join(reasons))

    def _tell_throttling(self, gpus: Mapping[str, list[Reading]]) -> None:
        now = {
            f"{uuid}: {reading.labels['reason']}"
            for uuid, readings in gpus.items()
            for reading in readings
            if reading.family == "hw_gpu_throttled" and reading.value
        }
        fresh, self._throttled = now - self._throttled, now
        if fresh:
            self.on_throttle(", ".join(sorted(fresh)))

    def collect(self) -> Iterator[Family]:
        """The last readings."""
        with self._lock:
            gpus = dict(self._gpus)
        for name, (text, counts) in FAMILIES.items():
            found = [(u, r) for u, readings in gpus.items() for r in readings if r.family == name]
            if not found:
                continue
            words = sorted({word for _, reading in found for word in reading.labels})
            make = CounterMetricFamily if counts else GaugeMetricFamily
            family = make(name, text, labels=["hw_id", *words])
            for uuid, reading in found:
                family.add_metric(
                    [uuid, *(reading.labels.get(w, "") for w in words)], reading.value
                )
            yield family

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.sample()

    def _try(self, function: Callable[..., Any], *args: Any) -> Any:
        """None where this GPU or driver does not know the question."""
        try:
            return function(*args)
        except self._nvml.NVMLError:
            return None

    def _read(self, gpu: Any) -> Iterator[Reading]:
        nvml = self._nvml
        if (use := self._try(nvml.nvmlDeviceGetUtilizationRates, gpu)) is not None:
            yield Reading("hw_gpu_utilization_ratio", use.gpu / 100)
            yield Reading("hw_gpu_memory_utilization_ratio", use.memory / 100)
        if (memory := self._try(nvml.nvmlDeviceGetMemoryInfo, gpu)) is not None:
            yield Reading("hw_gpu_memory_usage_bytes", memory.used)
            yield Reading("hw_gpu_memory_limit_bytes", memory.total)
        if (power := self._try(nvml.nvmlDeviceGetPowerUsage, gpu)) is not None:
            yield Reading("hw_gpu_power_watts", power / 1e3)
        if (energy := self._try(nvml.nvmlDeviceGetTotalEnergyConsumption, gpu)) is not None:
            yield Reading("hw_gpu_energy_joules", energy / 1e3)
        heat = self._try(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU)
        if heat is not None:
            yield Reading("hw_gpu_temperature_celsius", heat)
        yield from self._clocks(gpu)
        yield from self._errors(gpu)
        yield from self._io(gpu)

    def _clocks(self, gpu: Any) -> Iterator[Reading]:
        nvml = self._nvml
        for word, kind in (("sm", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM)):
            if (megahertz := self._try(nvml.nvmlDeviceGetClockInfo, gpu, kind)) is not None:
                yield Reading("hw_gpu_clock_hertz", megahertz * 1e6, {"clock": word})
        bits = self._try(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu)
        if bits is not None:
            for bit, word in THROTTLES.items():
                yield Reading("hw_gpu_throttled", float(bool(bits & bit)), {"reason": word})

    def _errors(self, gpu: Any) -> Iterator[Reading]:
        nvml = self._nvml
        kinds = (
            ("corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ("uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        )
        for word, kind in kinds:
            count = self._try(nvml.nvmlDeviceGetTotalEccErrors, gpu, kind, nvml.NVML_VOLATILE_ECC)
            if count is not None:
                yield Reading("hw_gpu_errors", count, {"error_type": word})

    def _io(self, gpu: Any) -> Iterator[Reading]:
        nvml = self._nvml
        directions = (
            ("transmit", nvml.NVML_PCIE_UTIL_TX_BYTES),
            ("receive", nvml.NVML_PCIE_UTIL_RX_BYTES),
        )
        for word, counter in directions:
            rate = self._try(nvml.nvmlDeviceGetPcieThroughput, gpu, counter)
            if rate is not None:
                yield Reading("hw_gpu_io_bytes_per_second", rate * 1024, {"direction": word})
        yield from self._nvlink(gpu)
        for process in self._try(nvml.nvmlDeviceGetComputeRunningProcesses, gpu) or ():
            if process.usedGpuMemory is not None:
                labels = {"pid": str(process.pid)}
                yield Reading("hw_gpu_process_memory_usage_bytes", process.usedGpuMemory, labels)

    def _nvlink(self, gpu: Any) -> Iterator[Reading]:
        """KiB that the links have carried, without what the protocol adds."""
        nvml = self._nvml
        fields = {
            "transmit": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
            "receive": nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        }
        asked = [(number, _ALL_LINKS) for number in fields.values()]
        answers = self._try(nvml.nvmlDeviceGetFieldValues, gpu, asked) or ()
        for word, answer in zip(fields, answers, strict=False):
            if answer.nvmlReturn == 0:
                kib = answer.value.ullVal
                yield Reading("hw_gpu_nvlink_io_bytes", kib * 1024, {"direction": word})

    def _users(self, gpu: Any, uuid: str) -> Iterator[tuple[int, str]]:
        """(pid, GPU or MIG instance) of each process on a GPU."""
        nvml = self._nvml
        parts = [(gpu, uuid)]
        mode = self._try(nvml.nvmlDeviceGetMigMode, gpu)
        if mode and mode[0]:
            parts = []
            for index in range(self._try(nvml.nvmlDeviceGetMaxMigDeviceCount, gpu) or 0):
                part = self._try(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, index)
                if part is not None:
                    parts.append((part, _text(self._try(nvml.nvmlDeviceGetUUID, part))))
        for handle, where in parts:
            for process in self._try(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ():
                yield int(process.pid), where


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _cuda(value: Any) -> str:
    return f"{value // 1000}.{value % 1000 // 10}" if value else ""


def open_nvml(say: Callable[[str], None]) -> NvmlSampler | None:
    """A sampler where the extra `gpu` is installed and a driver answers, else None."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        say(f"no GPU figures: NVML answers: {error}")
        return None
    return NvmlSampler(pynvml, say)
