"""Counters of a whole GPU at 1 kHz beside the spans: CUPTI's PM sampling.

Every process on the GPU is in them: there is one sampler a device and it knows no contexts, so
under time slicing or MPS a span's figures are those of its time, not of its process alone.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from spanlite.errors import ServiceError

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

#: Our names -> CUPTI's, for Hopper; one pass holds them all. All are per cent.
METRICS: Mapping[str, str] = {
    # Anything runs; of the SMs, those with a warp.
    "gpu.active_pct": "gr__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "gpu.sm_active_pct": "sm__cycles_active.avg.pct_of_peak_sustained_elapsed",
    "gpu.dram_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu.l2_hit_pct": "LTS.TriageCompute.lts__average_t_sector_hit_rate_realtime.pct",
    "gpu.warps_active_pct": "sm__warps_active_realtime.avg.pct_of_peak_sustained_elapsed",
    "gpu.tensor_pct": (
        "TPC.TriageCompute.sm__pipe_tensor_cycles_active_realtime.avg.pct_of_peak_sustained_elapsed"
    ),
}
INTERVAL_NS = 1_000_000
#: Each read costs some fixed time, so few of them; spans wait longer than this anyway.
POLL_EVERY_S = 1.0
#: Room in one read: two seconds, should a poll come late.
MAX_SAMPLES = 2048
#: What is this old has been read.
_READ_NS = 1_200_000_000
KEPT_NS = 60_000_000_000
#: A span must be covered to this share by samples, or it gets no figures.
_LEAST_COVERED = 0.5


@dataclass(frozen=True)
class PmSamples:
    """Samples in order of time: `start` and `end` in Unix ns, shape (n,); values (n, metrics)."""

    start: I64
    end: I64
    values: F64
    overflow: bool = False


class PmDevice(Protocol):
    """One sampled GPU."""

    #: As NVML and `gpu.uuid` name it; empty where that is not known.
    uuid: str

    def read(self) -> PmSamples:
        """What has been sampled since the last read. Raises ServiceError."""
        ...

    def close(self) -> None:
        """Sample no more."""
        ...


class FakePmDevice:
    """A GPU without one: each metric's value is a function of time. For tests and trials."""

    def __init__(
        self,
        value: Callable[[I64], F64],
        uuid: str = "GPU-fake",
        clock: Callable[[], int] = time.time_ns,
        interval_ns: int = INTERVAL_NS,
    ) -> None:
        self.uuid, self._value, self._clock, self._interval_ns = uuid, value, clock, interval_ns
        self._next = clock()
        self.closed = False

    def read(self) -> PmSamples:
        """A sample for each interval that has passed."""
        count = min((self._clock() - self._next) // self._interval_ns, MAX_SAMPLES)
        start = self._next + np.arange(count, dtype=np.int64) * self._interval_ns
        self._next += count * self._interval_ns
        column = self._value(start)
        values = np.tile(column[:, None], (1, len(METRICS)))
        return PmSamples(start, start + self._interval_ns, values)

    def close(self) -> None:
        """End."""
        self.closed = True


class CuptiPmDevice:
    """A GPU through CUPTI. Raises ServiceError where it cannot be sampled, and says why.

    `metrics`: CUPTI's names of what is sampled, all of them in one pass.
    """

    def __init__(
        self,
        index: int = 0,
        uuid: str = "",
        cupti: str = "",
        interval_ns: int = INTERVAL_NS,
        metrics: Collection[str] = METRICS.values(),
    ) -> None:
        self.uuid = uuid
        self._library = _library()
        self._times = np.zeros((MAX_SAMPLES, 2), np.uint64)
        self._values = np.zeros((MAX_SAMPLES, len(metrics)), np.float64)
        # CUPTI keeps the texts' addresses.
        self._names = (ctypes.c_char_p * len(metrics))(*[m.encode() for m in metrics])
        error = ctypes.create_string_buffer(256)
        self._handle = self._library.spanlite_pm_open(
            cupti.encode(), index, self._names, len(metrics), interval_ns, MAX_SAMPLES,
            error, len(error),
        )  # fmt: skip
        if not self._handle:
            raise ServiceError(f"GPU {index} cannot be sampled: {error.value.decode()}")

    def read(self) -> PmSamples:
        """What has been sampled since the last read."""
        overflow = ctypes.c_uint32()
        count = self._library.spanlite_pm_read(
            self._handle, self._times.ctypes.data, self._values.ctypes.data, ctypes.byref(overflow)
        )
        if count < 0:
            raise ServiceError(f"CUPTI's PM sampling has stopped (error {-count})")
        times = self._times[:count].astype(np.int64)
        values = self._values[:count].copy()
        return PmSamples(times[:, 0], times[:, 1], values, bool(overflow.value))

    def close(self) -> None:
        """Give the device back."""
        if self._handle:
            self._library.spanlite_pm_close(self._handle)
            self._handle = None


def library_path() -> Path:
    """Where the library lies; it need not exist."""
    return Path(__file__).parents[1] / "lib" / "libspanlite_pm.so"


def _library() -> ctypes.CDLL:
    try:
        found = ctypes.CDLL(str(library_path()))
    except OSError as error:
        raise ServiceError(
            f"{library_path()} cannot be loaded ({error}); run `make agent`"
        ) from None
    handle, word = ctypes.c_void_p, ctypes.c_uint32
    found.spanlite_pm_open.restype = handle
    found.spanlite_pm_open.argtypes = [
        ctypes.c_char_p, word, handle, word, ctypes.c_uint64, word, ctypes.c_char_p, word,
    ]  # fmt: skip
    found.spanlite_pm_read.restype = ctypes.c_int64
    found.spanlite_pm_read.argtypes = [handle, handle, handle, handle]
    found.spanlite_pm_close.argtypes = [handle]
    return found


class PmHistory:
    """The last minute of one device's samples, and means over any stretch of it. Thread-safe."""

    def __init__(self, kept_ns: int = KEPT_NS, interval_ns: int = INTERVAL_NS) -> None:
        self._kept_ns, self._longest_ns = kept_ns, 10 * interval_ns
        self._lock = threading.Lock()
        none = np.empty(0, np.int64)
        self._samples = PmSamples(none, none, np.empty((0, len(METRICS))))

    def add(self, samples: PmSamples) -> None:
        """Take in newer samples. The first after a start is as long as the start took; left out."""
        good = (samples.end > samples.start) & (samples.end - samples.start <= self._longest_ns)
        old = self._samples
        if not good.any():
            return
        keep = old.end > int(samples.end[good][-1]) - self._kept_ns
        joined = PmSamples(
            np.concatenate([old.start[keep], samples.start[good]]),
            np.concatenate([old.end[keep], samples.end[good]]),
            np.concatenate([old.values[keep], samples.values[good]]),
        )
        with self._lock:
            self._samples = joined

    def means(self, start: I64, end: I64) -> F64:
        """Mean of each metric over each stretch, shape (n, metrics); NaN where too little is known.

        A sample that reaches over an edge counts with the part inside.
        """
        with self._lock:
            samples = self._samples
        out = np.full((len(start), len(METRICS)), np.nan)
        if not len(samples.start):
            return out
        length = (samples.end - samples.start).astype(np.float64)
        origin = int(samples.start[0])
        # The integral at both edges of every sample; flat in the gaps between them.
        edges = np.stack([samples.start, samples.end], 1).ravel() - origin
        covered = _integral(edges, np.cumsum(length), length, start - origin, end - origin)
        known = covered >= _LEAST_COVERED * np.maximum(end - start, 1)
        for metric in range(len(METRICS)):
            area = samples.values[:, metric] * length
            total = _integral(edges, np.cumsum(area), area, start - origin, end - origin)
            out[known, metric] = total[known] / covered[known]
        return out


def _integral(edges: I64, after: F64, each: F64, start: I64, end: I64) -> F64:
    heights = np.stack([after - each, after], 1).ravel()
    found: F64 = np.interp(end, edges, heights) - np.interp(start, edges, heights)
    return found


#: Of so many processes it is said why they get no figures.
_MOST_TOLD = 1000


class PmSampler(Collector):
    """Polls devices and keeps their histories. A Source of the daemon that writes no spans."""

    def __init__(
        self, devices: Sequence[PmDevice], say: Callable[[str], None] = lambda text: None
    ) -> None:
        self._say = say
        self._devices = {device: PmHistory() for device in devices}
        #: Processes that were told to get no figures.
        self._told: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pm sampling", daemon=True)
        self.overflows = 0
        self.samples = 0
        #: Of the thread that polls.
        self.cpu_seconds = 0.0

    @property
    def url(self) -> str:
        """For the log."""
        return f"PM sampling ({len(self._devices)} GPUs)"

    def start(self) -> None:
        """Sample from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Sample no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for device in self._devices:
            device.close()
        self._devices = {}

    def poll(self) -> None:
        """Read all devices once. One that fails is told and left alone from then on."""
        for device, history in list(self._devices.items()):
            try:
                samples = device.read()
            except ServiceError as error:
                self._say(f"{device.uuid or 'GPU'}: {error}")
                device.close()
                self._devices = {d: h for d, h in self._devices.items() if d is not device}
                continue
            self.overflows += samples.overflow
            self.samples += len(samples.start)
            history.add(samples)

    def history_of(self, resource: Mapping[str, Any]) -> PmHistory | None:
        """The history of the GPU that a process uses; None where it uses several or none of ours.

        A MIG instance is no device of its own here, so it has none. Which and why is said once.
        """
        uuid = str(resource.get("gpu.uuid", ""))
        for device, history in self._devices.items():
            if device.uuid and device.uuid == uuid:
                return history
        self._tell_why_none(resource, uuid)
        return None

    def _tell_why_none(self, resource: Mapping[str, Any], uuid: str) -> None:
        if "MIG-" in uuid:
            why = "uses a MIG instance, and the counters are of the whole GPU"
        elif "," in uuid:
            why = "uses several GPUs, and nothing says which of them a step ran on"
        else:
            return
        pid = int(resource.get("process.host_pid", resource.get("process.pid", 0)))
        if pid in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add(pid)
        self._say(
            f"process {pid} gets no counters on its spans: it {why}; hw_gpu_counter_ratio on the "
            "page of metrics has them by GPU"
        )

    def collect(self) -> Iterator[Family]:
        """Means of the last second."""
        family = GaugeMetricFamily(
            "hw_gpu_counter_ratio",
            "Share of what the GPU could do, by counter, over the last second",
            labels=["hw_id", "counter"],
        )
        now = time.time_ns()
        for device, history in self._devices.items():
            end = np.array([now - _READ_NS])
            row = history.means(end - 1_000_000_000, end)[0]
            for name, value in zip(METRICS, row.tolist(), strict=True):
                if np.isfinite(value):
                    word = name.removeprefix("gpu.").removesuffix("_pct")
                    family.add_metric([device.uuid, word], value / 100)
        yield family
        for name, text, count in (
            ("samples", "Samples read", self.samples),
            ("overflows", "Times that samples came faster than they were read", self.overflows),
            ("cpu_seconds", "CPU time of reading them", self.cpu_seconds),
        ):
            yield CounterMetricFamily(f"spanlite_pm_{name}", text, float(count))

    def _run(self) -> None:
        while not self._stop.wait(POLL_EVERY_S):
            self.poll()
            self.cpu_seconds = time.thread_time()


def open_devices(uuids: Sequence[str], say: Callable[[str], None]) -> list[PmDevice]:
    """A sampler for each GPU of the host, in the order of the PCI bus; those that refuse are told.

    Call it before anything in this process starts CUDA.
    """
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    cupti = _wheel_cupti()
    devices: list[PmDevice] = []
    for index, uuid in enumerate(uuids):
        try:
            devices.append(CuptiPmDevice(index, uuid, cupti))
        except ServiceError as error:
            say(f"no PM sampling: {error}")
    return devices


def _wheel_cupti() -> str:
    """The libcupti of NVIDIA's wheel on this Python's path; empty: the system's."""
    found = [p for base in sys.path for p in Path(base).glob("nvidia/*/lib/libcupti.so.1?")]
    return str(max(found, key=lambda path: path.name)) if found else ""
