"""Counters of a GPU over time, and how they get to the spans."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from ring_writer import RingWriter
from spanlite.errors import ServiceError
from spanlite.kinds import SpanKind
from spanlite_collectors.agent.layout import RecordType
from spanlite_collectors.agent.measure import Measure
from spanlite_collectors.agent.pm import (
    METRICS,
    CuptiPmDevice,
    FakePmDevice,
    PmHistory,
    PmSampler,
    PmSamples,
    library_path,
)
from spanlite_collectors.agent.rows import DEVICE, HOST, Texts, empty
from spanlite_collectors.agent.source import RingOptions, RingSource
from spanlite_collectors.sinks import MemorySink

MS = 1_000_000
T0 = 1_796_143_900_000_000_000
BUILD = Path(__file__).parents[3] / "collectors" / "agent" / "build" / "tests"


def samples(values: list[float], at: int = T0, length: int = MS) -> PmSamples:
    start = at + np.arange(len(values), dtype=np.int64) * length
    return PmSamples(start, start + length, np.tile(np.array(values)[:, None], (1, len(METRICS))))


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=30),
    st.integers(0, 30 * MS),
    st.integers(1, 30 * MS),
)
@settings(max_examples=200, deadline=None)
def test_means_are_those_of_what_lies_inside(values, offset, length):
    history = PmHistory()
    history.add(samples(values))
    start, end = T0 + offset, T0 + offset + length
    inside = [
        max(0, min(end, T0 + (i + 1) * MS) - max(start, T0 + i * MS)) for i in range(len(values))
    ]
    (found,) = history.means(np.array([start]), np.array([end]))
    if sum(inside) < length / 2:
        assert np.isnan(found).all()
    else:
        expected = np.dot(inside, values) / sum(inside)
        assert found == pytest.approx([expected] * len(METRICS), abs=1e-6)


def test_gaps_and_the_long_first_sample_are_left_out():
    history = PmHistory()
    history.add(samples([99.0], T0 - 1_000 * MS, 1_000 * MS))
    history.add(samples([10.0] * 5))
    history.add(samples([30.0] * 5, T0 + 100 * MS))
    starts = np.array([T0 - 100 * MS, T0, T0 + 4 * MS, T0 + 40 * MS])
    ends = np.array([T0 - 90 * MS, T0 + 5 * MS, T0 + 101 * MS, T0 + 50 * MS])
    means = history.means(starts, ends)[:, 0]
    assert np.isnan(means[[0, 2, 3]]).all()
    assert means[1] == 10


def test_only_the_last_minute_is_kept():
    history = PmHistory(kept_ns=50 * MS)
    for second in range(10):
        history.add(samples([1.0] * 20, T0 + second * 20 * MS))
    assert 50 <= len(history._samples.start) <= 70


class Clock:
    now = T0

    def __call__(self) -> int:
        return self.now


def test_steps_and_long_kernels_get_the_figures_of_their_time(tmp_path):
    clock = Clock()
    ramp = FakePmDevice(lambda t: (t - T0) / MS, uuid="GPU-a", clock=clock)
    sampler = PmSampler([ramp])
    clock.now += 100 * MS
    sampler.poll()
    options = RingOptions(
        [tmp_path], attributes={"gpu.uuid": "GPU-a"}, history_of=sampler.history_of
    )
    sink = MemorySink()
    source = RingSource(sink, options)
    writer = RingWriter(tmp_path)
    name = writer.text("step:1")
    times = {"start_ns": T0 + 10 * MS, "end_ns": T0 + 20 * MS}
    writer.write(RecordType.RANGE, **times, id=1, thread_id=9, name=name)
    writer.write(RecordType.STEP, **times, number=1, thread_id=9, name=name)
    for start, length in ((12 * MS, 2 * MS), (15 * MS, MS // 2)):
        writer.write(
            RecordType.KERNEL,
            start_ns=T0 + start, end_ns=T0 + start + length, name=writer.text(f"gemm {length}"),
        )  # fmt: skip
    writer.die()
    source.step()
    said = {
        (row["kind"], row["duration_ns"]): json.loads(row["attributes"] or "{}")
        for batch, _ in sink.written
        for row in batch.to_pylist()
    }
    # Sample i, from i ms on, has the value i.
    assert said[SpanKind.STEP, 10 * MS]["gpu.tensor_pct"] == 14.5
    assert said[SpanKind.KERNEL, 2 * MS]["gpu.dram_pct"] == 12.5
    assert "gpu.dram_pct" not in said[SpanKind.KERNEL, MS // 2]
    sampler.stop()
    assert ramp.closed


def test_short_kernels_get_the_figures_of_their_stage():
    """Six of 0.3 ms: four in one stage last longer than 1 ms, two in the next do not."""
    texts, rows = Texts(), empty(7, DEVICE)
    rows["kind"], rows["duration"] = SpanKind.KERNEL, 3 * MS // 10
    rows["start"] = T0 + np.array([10, 10.5, 11, 11.7, 12, 12.4, 11.1]) * MS
    rows["stream"] = [7] * 6 + [8]
    stages = [texts.code(json.dumps({"stage": word})) for word in ("attention", "mlp")]
    rows["attributes"] = [stages[0]] * 4 + [stages[1]] * 2 + [stages[0]]
    history = PmHistory()
    history.add(samples([float(i) for i in range(100)]))
    Measure(lambda resource: history, {})(rows, texts)
    said = [json.loads(texts.text(code)) for code in rows["attributes"].tolist()]
    assert (
        said[0]
        == said[3]
        == {"stage": "attention", "gpu.of": "stage"} | dict.fromkeys(METRICS, pytest.approx(10.5))
    )
    assert said[4] == said[5] == {"stage": "mlp"}
    assert said[6] == {"stage": "attention"}  # alone on its stream


def test_short_steps_get_the_figures_of_the_steps_around_them():
    """Two threads, each a step of 0.6 ms each ms: those of the same 10 ms and thread as one."""
    texts, rows = Texts(), empty(43, HOST)
    rows["kind"], rows["duration"] = SpanKind.STEP, 6 * MS // 10
    start = np.arange(20) * MS
    rows["start"][:40] = T0 + np.concatenate([start, start])
    rows["thread"] = [7] * 20 + [8] * 20 + [9] * 3
    rows["attributes"][0] = texts.code('{"step":4}')
    rows["start"][40] = T0 + 3 * MS  # alone, and so too short
    rows["start"][41:], rows["kind"][41:] = T0 + 5 * MS, SpanKind.NVTX_RANGE
    history = PmHistory()
    history.add(samples([float(i) for i in range(100)]))
    Measure(lambda resource: history, {})(rows, texts)
    said = [json.loads(texts.text(c)) if c >= 0 else {} for c in rows["attributes"].tolist()]
    # From 0 to 9.6 ms: samples 0 to 8 whole and 0.6 of the tenth.
    first, second = (pytest.approx((sum(range(9)) + 0.6 * 9) / 9.6, abs=0.01), 14.31)
    assert said[0] == {"step": 4, "gpu.of": "steps"} | dict.fromkeys(METRICS, first)
    assert said[9]["gpu.l2_hit_pct"] == said[20]["gpu.l2_hit_pct"] == first
    assert (
        said[10]["gpu.l2_hit_pct"] == said[39]["gpu.l2_hit_pct"] == pytest.approx(second, abs=0.01)
    )
    assert said[40:] == [{}, {}, {}]


def test_a_process_of_several_gpus_or_of_another_one_has_no_figures():
    """Why is said once of each, where it is not that there is no such GPU."""
    said: list[str] = []
    sampler = PmSampler([FakePmDevice(lambda t: t * 0.0, uuid="GPU-a")], said.append)
    assert sampler.history_of({"gpu.uuid": "GPU-a", "process.pid": 9}) is not None
    for pid, uuid in enumerate(("GPU-a,GPU-b", "GPU-b", "MIG-a", ""), 1):
        for _ in range(2):
            assert sampler.history_of({"gpu.uuid": uuid, "process.pid": pid}) is None
    assert len(said) == 2
    assert said[0].startswith("process 1 gets no counters on its spans: it uses several GPUs")
    assert said[1].startswith("process 3 gets no counters on its spans: it uses a MIG instance")


def test_a_device_that_fails_is_told_once_and_left_alone():
    class Broken(FakePmDevice):
        def read(self):
            raise ServiceError("gone")

    said = []
    broken = Broken(lambda t: t * 0.0, uuid="GPU-b")
    sampler = PmSampler([broken, FakePmDevice(lambda t: t * 0.0 + 50, uuid="GPU-a")], said.append)
    sampler.poll()
    sampler.poll()
    assert said == ["GPU-b: gone"] and broken.closed


def test_the_last_second_is_on_the_metrics_page():
    import time

    now = [time.time_ns() - 3000 * MS]
    sampler = PmSampler([FakePmDevice(lambda t: t * 0.0 + 25, "GPU-a", lambda: now[0])])
    now[0] += 2000 * MS
    sampler.poll()
    now[0] += 2000 * MS
    sampler.poll()
    registry = CollectorRegistry()
    registry.register(sampler)
    text = generate_latest(registry).decode()
    assert 'hw_gpu_counter_ratio{counter="l2_hit",hw_id="GPU-a"} 0.25' in text


NATIVE = """
import time
from spanlite.errors import ServiceError
from spanlite_collectors.agent import pm
device = pm.CuptiPmDevice(0, "GPU-a")
try: pm.CuptiPmDevice(0)
except ServiceError as error: print(error)
try: pm.CuptiPmDevice(3)
except ServiceError as error: print(error)
total, last = 0, 0
while total < 100:
    time.sleep(0.02)
    samples = device.read()
    assert not last or not len(samples.start) or samples.start[0] == last
    assert (samples.end - samples.start == 1_000_000).all()
    assert (samples.values == [10, 20, 30, 40, 50, 60]).all()
    total += len(samples.start)
    last = samples.end[-1] if len(samples.end) else last
assert abs(time.time_ns() - last) < 60e9
device.close()
pm.CuptiPmDevice(0).close()
print("done")
"""


def test_the_native_sampler_makes_cupti_s_calls_in_their_order():
    """On the stand-in CUPTI, which refuses a wrong order, a second sampler and unknown devices."""
    if not (library_path().exists() and (BUILD / "libcupti.so.13").exists()):
        pytest.skip("the agent's test programs are not built: run tests/collectors/agent first")
    env = os.environ | {"LD_LIBRARY_PATH": str(BUILD)}
    done = subprocess.run([sys.executable, "-c", NATIVE], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    busy, missing, last = done.stdout.splitlines()
    assert "another profiler or sampler" in busy
    assert missing.startswith("GPU 3 cannot be sampled: cuptiDeviceGetChipName")
    assert last == "done"


def test_what_is_sampled_fits_into_one_pass_of_a_hopper():
    """By CUPTI's own host part, which needs no GPU; so do the lists that the bench compares."""
    wheels = Path(__file__).parents[3] / ".venv-agent"
    found = sorted(wheels.glob("lib/*/site-packages/nvidia/*/lib/libcupti.so.1?"))
    if not found:
        pytest.skip("CUPTI's wheel is not there: make agent")
    program = (
        "import sys; from pathlib import Path\n"
        "from bench._pm_names import CANDIDATES, MetricNames\n"
        "from spanlite_collectors.agent.pm import METRICS\n"
        "names, ours = MetricNames('GH100', Path(sys.argv[1])), list(METRICS.values())\n"
        "print(names.passes(ours), names.passes([*ours, 'sm__nothing.sum']))\n"
        "print({names.passes(more) for more in CANDIDATES.values()})\n"
        "print('sm__warps_active_realtime' in names.names('warps_active'))\n"
    )
    command = [sys.executable, "-c", program, str(found[-1])]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "0", "{1}", "True"], done.stderr


def test_without_a_driver_the_reason_is_said():
    if not library_path().exists():
        pytest.skip("the agent is not built: make agent")
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    with pytest.raises(ServiceError, match="libcuda"):
        CuptiPmDevice()
