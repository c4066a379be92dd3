"""GPU figures, from a stand-in for NVML with two GPUs, one of them in MIG mode."""

import json
import time
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from ring_writer import RingWriter
from spanlite.kinds import SpanKind
from spanlite_collectors.agent.clocks import ClockHistory
from spanlite_collectors.agent.layout import WindowReason
from spanlite_collectors.agent.measure import Measure
from spanlite_collectors.agent.nvml import NvmlSampler
from spanlite_collectors.agent.rows import HOST, Texts, empty
from spanlite_collectors.agent.source import RingOptions, RingSource
from spanlite_collectors.agent.triggers import CaptureTrigger
from spanlite_collectors.sinks import MemorySink


class NVMLError(Exception):
    pass


class StandIn:
    """Answers as `pynvml` does; what a GPU has not, raises."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_VOLATILE_ECC = 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 138, 139

    def __init__(self):
        self.throttle = 0

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.10"

    def nvmlSystemGetCudaDriverVersion_v2(self):  # noqa: N802
        return 13000

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return f"gpu{index}"

    def nvmlDeviceGetUUID(self, gpu):  # noqa: N802
        return {"gpu0": "GPU-aaa", "gpu1": "GPU-bbb", "mig": "MIG-ccc"}[gpu]

    def nvmlDeviceGetUtilizationRates(self, gpu):  # noqa: N802
        return SimpleNamespace(gpu=75, memory=20)

    def nvmlDeviceGetMemoryInfo(self, gpu):  # noqa: N802
        return SimpleNamespace(used=5 << 30, total=140 << 30)

    def nvmlDeviceGetPowerUsage(self, gpu):  # noqa: N802
        return 345_600

    def nvmlDeviceGetTemperature(self, gpu, sensor):  # noqa: N802
        return 61

    def nvmlDeviceGetClockInfo(self, gpu, kind):  # noqa: N802
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu):  # noqa: N802
        return self.throttle

    def nvmlDeviceGetMigMode(self, gpu):  # noqa: N802
        return [gpu == "gpu1", 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu):  # noqa: N802
        return 2

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, index):  # noqa: N802
        if index:
            raise NVMLError("not found")
        return "mig"

    def nvmlDeviceGetPcieThroughput(self, gpu, counter):  # noqa: N802
        return 1000

    def nvmlDeviceGetFieldValues(self, gpu, fields):  # noqa: N802
        """The second GPU has no links."""
        assert [scope for _, scope in fields] == [0xFFFFFFFF] * 2
        return [
            SimpleNamespace(nvmlReturn=3 * (gpu == "gpu1"), value=SimpleNamespace(ullVal=number))
            for number, _ in fields
        ]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):  # noqa: N802
        pid = {"gpu0": 10, "mig": 11}.get(gpu)
        return [SimpleNamespace(pid=pid, usedGpuMemory=1 << 20)] if pid else []

    def __getattr__(self, name):
        def refuse(*_):
            raise NVMLError("not supported")

        return refuse


@pytest.fixture
def nvml():
    return StandIn()


def text_of(sampler):
    registry = CollectorRegistry()
    registry.register(sampler)
    return generate_latest(registry).decode()


def test_figures_have_opentelemetry_names_and_si_units(nvml):
    sampler = NvmlSampler(nvml)
    sampler.sample()
    text = text_of(sampler)
    assert 'hw_gpu_utilization_ratio{hw_id="GPU-aaa"} 0.75' in text
    assert 'hw_gpu_power_watts{hw_id="GPU-aaa"} 345.6' in text
    assert 'hw_gpu_clock_hertz{clock="sm",hw_id="GPU-bbb"} 1.98e+09' in text
    assert 'hw_gpu_io_bytes_per_second{direction="receive",hw_id="GPU-aaa"} 1.024e+06' in text
    assert 'hw_gpu_process_memory_usage_bytes{hw_id="GPU-aaa",pid="10"} 1.048576e+06' in text


def test_what_a_gpu_does_not_know_is_left_out(nvml):
    sampler = NvmlSampler(nvml)
    sampler.sample()
    assert "hw_gpu_errors" not in text_of(sampler)
    assert "hw_gpu_energy" not in text_of(sampler)


def test_bytes_over_nvlink_where_there_is_one(nvml):
    """NVML counts in KiB, over all links."""
    sampler = NvmlSampler(nvml)
    sampler.sample()
    text = text_of(sampler)
    name = "hw_gpu_nvlink_io_bytes_total"
    assert f'{name}{{direction="transmit",hw_id="GPU-aaa"}} {138 * 1024:.1f}' in text
    assert f'{name}{{direction="receive",hw_id="GPU-aaa"}} {139 * 1024:.1f}' in text
    assert text.count(f"{name}{{") == 2


def test_throttling_is_told_by_reason(nvml):
    nvml.throttle = 0x40
    sampler = NvmlSampler(nvml)
    sampler.sample()
    text = text_of(sampler)
    assert 'hw_gpu_throttled{hw_id="GPU-aaa",reason="hw_thermal"} 1.0' in text
    assert 'hw_gpu_throttled{hw_id="GPU-aaa",reason="sw_power_cap"} 0.0' in text


def test_steps_get_the_clock_of_their_gpu(nvml):
    nvml.throttle = 0x4
    sampler = NvmlSampler(nvml)
    before = time.time_ns()
    sampler.sample()
    clocks = sampler.clocks_of({"gpu.uuid": "GPU-aaa"})
    assert sampler.clocks_of({"gpu.uuid": "GPU-aaa,GPU-bbb"}) is None
    assert sampler.clocks_of({}) is None
    texts, rows = Texts(), empty(3, HOST)
    rows["kind"], rows["start"], rows["duration"] = SpanKind.STEP, before, 5_000_000
    rows["kind"][1] = SpanKind.NVTX_RANGE
    rows["start"][2] -= 60_000_000_000  # long before the reading
    rows["attributes"] = texts.code('{"step":4}')
    Measure(lambda resource: None, {}, lambda resource: clocks)(rows, texts)
    said = [json.loads(texts.text(code)) for code in rows["attributes"].tolist()]
    assert said[0] == {"step": 4, "gpu.sm_clock_mhz": 1980, "gpu.throttled": "sw_power_cap"}
    assert said[1] == said[2] == {"step": 4}


def test_old_readings_of_a_clock_are_forgotten():
    history, second = ClockHistory(), 1_000_000_000
    for number in range(200):
        history.add(number * second, 1980 - number, "")
    assert history.around(100 * second, 101 * second) == {}
    assert history.around(150 * second, 150 * second) == {"gpu.sm_clock_mhz": 1830}
    assert history.around(198 * second + 1, 300 * second) == {"gpu.sm_clock_mhz": 1781}


def test_a_gpu_that_begins_to_throttle_opens_a_window_once_a_minute(nvml, tmp_path):
    writer, said = RingWriter(tmp_path), []
    rings = RingSource(MemorySink(), RingOptions([tmp_path]))
    rings.step()
    sampler = NvmlSampler(nvml)
    sampler.on_throttle = CaptureTrigger(
        rings, said.append, "clocks are held down", WindowReason.THROTTLE
    )
    sampler.sample()
    assert writer.control_word(1) == 0
    for bits in (0x4, 0x4, 0, 0x4):
        nvml.throttle = bits
        sampler.sample()
    assert (writer.control_word(1), writer.control_word(2)) == (1, 20)
    assert writer.control_word(9) == WindowReason.THROTTLE
    assert "GPU-aaa: sw_power_cap" in said[0]
    rings.stop()


def test_a_process_is_described_by_its_gpus(nvml):
    sampler = NvmlSampler(nvml)
    sampler.sample()
    common = {"nvidia.driver.version": "580.10", "cuda.driver.version": "13.0"}
    assert sampler.gpus_of(10) == common | {"gpu.uuid": "GPU-aaa"}
    assert sampler.gpus_of(11) == common | {"gpu.uuid": "MIG-ccc", "gpu.mig.uuid": "MIG-ccc"}
    assert sampler.gpus_of(12) == common


def test_it_reads_until_it_is_stopped(nvml):
    sampler = NvmlSampler(nvml)
    sampler.start()
    sampler.stop()
    assert "2 GPUs" in sampler.url
