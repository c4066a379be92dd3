"""The twelve faults, each on a synthetic recording (see conftest.py): the cause named first.

What these hold is the rules, not that they work on a GPU: that is for recordings of the H200.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from spanlite_replay.bottlenecks.diagnose import Diagnosis, diagnose

US = 1_000
STEPS = 16
Step = Callable[[Any, random.Random], None]


def usual(m: Any, r: random.Random, slower: float = 1.0, host: int = 0, **more: Any) -> None:
    """A decode step of six kinds of kernels on two streams, 5 % jitter."""

    def took(us: float) -> int:
        return int(us * US * slower * r.uniform(0.97, 1.03))

    for layer in range(4):
        m.host(host)
        m.launch("nvjet_gemm_qkv", took(40), stream=1)
        m.launch("flash_attention", took(60), stream=1)
        m.launch("layer_norm_kernel", took(20), stream=2)
        m.launch("elementwise_kernel", took(15), stream=2)
        m.launch("custom_kernel", took(30), stream=1, **more)
        m.launch("splitKreduce", took(10), stream=2)
        if layer == 3:
            m.copy(took(8), 4_096, stream=1)


def run(m: Any, fault: Step, faulty_from: int = STEPS // 2) -> Diagnosis:
    r = random.Random(1)
    for number in range(STEPS):
        m.begin_step(f"step:{number}")
        (fault if number >= faulty_from else usual)(m, r)
        m.sync()
        m.end_step()
        m.host(20 * US)
    return diagnose(m.recording())


def first(diagnosis: Diagnosis) -> str:
    assert diagnosis.causes, diagnosis.compared
    return diagnosis.causes[0].name


def test_a_healthy_run_has_no_cause(machine: Any) -> None:
    assert run(machine, usual).causes == []


def test_clocks_throttled(machine: Any) -> None:
    def slow(m: Any, r: random.Random) -> None:
        usual(m, r, slower=1.4)

    found = run(machine, slow)
    assert first(found) == "clock_throttled"
    assert "1.40 times" in found.causes[0].evidence[0]


def _with_kernel(name: str, took: int, **more: Any) -> Step:
    def step(m: Any, r: random.Random) -> None:
        launch = m.launch

        def other(this: str, us: int, **rest: Any) -> int:
            return int(
                launch(this, took * US, **rest, **more)
                if this == name
                else launch(this, us, **rest)
            )

        m.launch = other
        usual(m, r)
        m.launch = launch

    return step


def test_a_slow_kernel(machine: Any) -> None:
    found = run(machine, _with_kernel("custom_kernel", 90))
    assert first(found) == "slow_kernel"
    assert "custom_kernel" in found.causes[0].evidence[0]


def test_a_small_gemm_regression(machine: Any) -> None:
    assert first(run(machine, _with_kernel("nvjet_gemm_qkv", 110))) == "gemm_regression"


def test_attention_is_no_matrix_product(machine: Any) -> None:
    assert first(run(machine, _with_kernel("flash_attention", 160))) == "slow_kernel"


def test_register_spill(machine: Any) -> None:
    spilled = '{"local_memory_per_thread": 256}'
    found = run(machine, _with_kernel("custom_kernel", 90, attributes=spilled))
    assert first(found) == "register_spill"
    assert found.causes[0].evidence[1] == "256 bytes of local memory a thread"


def test_bank_conflicts(machine: Any) -> None:
    counted = '{"bank_conflicts_per_request": 15.5}'
    found = run(machine, _with_kernel("custom_kernel", 90, attributes=counted))
    assert first(found) == "bank_conflicts"


def test_a_stray_sync(machine: Any) -> None:
    def step(m: Any, r: random.Random) -> None:
        launch = m.launch

        def other(this: str, us: int, **rest: Any) -> int:
            end = launch(this, us, **rest)
            m.sync()
            m.host(15 * US)
            return int(end)

        m.launch = other
        usual(m, r)
        m.launch = launch

    assert first(run(machine, step)) == "stray_sync"


def test_launch_starvation(machine: Any) -> None:
    def step(m: Any, r: random.Random) -> None:
        usual(m, r, host=250 * US)

    found = run(machine, step)
    assert first(found) == "launch_starvation"


def test_more_launches_are_no_busy_host(machine: Any) -> None:
    """A step without the graph that others have: the host is not late, it has more to launch."""

    def step(m: Any, r: random.Random) -> None:
        usual(m, r)
        for number in range(60):
            m.host(15 * US)
            m.launch(f"small_{number}", 2 * US)

    cause = run(machine, step).causes[0]
    assert cause.name == "more_launches"
    assert any("launches a step in place of" in line for line in cause.evidence)


def _two_streams(m: Any, r: random.Random, serial: bool = False) -> None:
    done = 0
    for _ in range(6):
        for stream in (1, 2, 3, 4):
            took = int(60 * US * r.uniform(0.97, 1.03))
            done = m.launch("gemm", took, stream=stream, after=done + US if serial else 0)


def test_serialised_streams(machine: Any) -> None:
    r = random.Random(2)
    for number in range(STEPS):
        machine.begin_step(f"step:{number}")
        _two_streams(machine, r, serial=number >= STEPS // 2)
        machine.sync()
        machine.end_step()
    assert first(diagnose(machine.recording())) == "serialised_streams"


def test_an_oversubscribed_copy_engine(machine: Any) -> None:
    def step(m: Any, r: random.Random) -> None:
        for _ in range(6):
            m.copy(150 * US, 8_000_000, stream=1)
        usual(m, r)

    found = run(machine, step)
    assert first(found) == "copy_engine"


def test_a_fragmented_batch(machine: Any) -> None:
    def step(m: Any, r: random.Random) -> None:
        launch = m.launch

        def other(this: str, us: int, **rest: Any) -> int:
            for _ in range(6):
                end = launch(this, us // 3, **rest, grid_x=22)
            return int(end)

        m.launch = other
        usual(m, r)
        m.launch = launch

    assert first(run(machine, step)) == "fragmented_batch"


def test_a_noisy_neighbour_that_is_recorded_too(machine: Any) -> None:
    def step(m: Any, r: random.Random) -> None:
        begin = m.now
        usual(m, r, slower=1.5)
        process, trace = m.process, m.step
        m.process, m.step = 2, None
        row = {"device": 0, "context": 9, "stream": 50, "grid_x": 100, "block_x": 64}
        m._add("kernel", "stranger", begin, begin + 600 * US, **row)
        m.process, m.step = process, trace

    assert first(run(machine, step)) == "noisy_neighbour"


def test_a_noisy_neighbour_that_is_not(machine: Any) -> None:
    def step(m: Any, r: random.Random) -> None:
        launch = m.launch

        def other(this: str, us: int, **rest: Any) -> int:
            return int(launch(this, us * 3 if r.random() < 0.3 else us, **rest))

        m.launch = other
        usual(m, r)
        m.launch = launch

    assert first(run(machine, step)) == "noisy_neighbour"


def test_a_neighbour_that_gets_time_slices(machine: Any) -> None:
    def step(m: Any, r: random.Random) -> None:
        launch = m.launch

        def other(this: str, us: int, **rest: Any) -> int:
            hit = r.random() < us / (250 * US)
            return int(launch(this, us + 400 * US if hit else us, **rest))

        m.launch = other
        usual(m, r)
        m.launch = launch

    assert first(run(machine, step)) == "noisy_neighbour"


def test_a_long_tail_request(machine: Any) -> None:
    r = random.Random(4)
    for number, steps in enumerate((4, 5, 4, 30, 4, 5)):
        machine.begin_request(f"request:{number}")
        for step in range(steps):
            machine.begin_step(f"step:{step}")
            usual(machine, r)
            machine.sync()
            machine.end_step()
        machine.end_request()
    found = diagnose(machine.recording())
    assert first(found) == "long_tail_request"
    assert "request:3" in found.causes[0].evidence[0]


@pytest.mark.parametrize("lengths", [(4, 5, 4, 7, 4, 5), (3, 4, 3, 12, 3, 9)])
def test_requests_alike_or_of_all_lengths_are_no_tail(
    machine: Any, lengths: tuple[int, ...]
) -> None:
    r = random.Random(4)
    for number, steps in enumerate(lengths):
        machine.begin_request(f"request:{number}")
        for step in range(steps):
            machine.begin_step(f"step:{step}")
            usual(machine, r)
            machine.sync()
            machine.end_step()
        machine.end_request()
    assert diagnose(machine.recording()).causes == []


def _said(m: Any, row: int, **said: object) -> None:
    m.rows[row - 1]["attributes"] = json.dumps(said)


def test_a_measured_clock_is_the_evidence(machine: Any) -> None:
    """Kernels bound by memory do not follow the clock: only some are slower."""

    def step(m: Any, r: random.Random) -> None:
        slow = m.rows[m.step[1] - 1]["name"] >= "step:08"
        clock = {"gpu.sm_clock_mhz": 1400 if slow else 1980}
        _said(m, m.step[1], **clock, **({"gpu.throttled": "sw_power_cap"} if slow else {}))
        for _ in range(4):
            m.launch("gemm", int((170 if slow else 120) * US * r.uniform(0.98, 1.02)))
            m.launch("elementwise", int(60 * US * r.uniform(0.98, 1.02)))

    r = random.Random(1)
    for number in range(STEPS):
        machine.begin_step(f"step:{number:02}")
        step(machine, r)
        machine.sync()
        machine.end_step()
    found = diagnose(machine.recording())
    assert first(found) == "clock_throttled"
    assert "1,400 MHz in place of 1,980, held down by sw_power_cap" in found.causes[0].evidence[0]


@pytest.mark.parametrize(
    ("context", "cause"), [(9_000, "long_tail_request"), (1_100, "slow_kernel")]
)
def test_a_long_context_in_a_batch(machine: Any, context: int, cause: str) -> None:
    """Attention lasts as long as its longest request; without one it is a slow kernel."""
    r = random.Random(1)
    requests = []
    for number in range(5):
        machine.begin_request(f"request:{number}")
        requests.append(machine.request)
        _said(machine, machine.request[1], **{"gen_ai.usage.input_tokens": 1_000 + number})
    _said(machine, requests[4][1], **{"gen_ai.usage.input_tokens": context})
    machine.request = None
    for number in range(STEPS):
        slow = number >= STEPS // 2
        machine.begin_step(f"step:{number}")
        served = requests if slow else requests[:4]
        machine.rows[-1]["links"] = [{"trace_id": t, "span_id": span} for t, span in served]
        for _ in range(4):
            machine.launch("gemm", int(100 * US * r.uniform(0.98, 1.02)))
            machine.launch("decode_attention", (300 if slow else 100) * US)
        machine.sync()
        machine.end_step()
    found = diagnose(machine.recording())
    assert first(found) == cause
    assert len(found.causes) == 1
    if cause == "long_tail_request":
        assert "a context of 9,000 tokens" in " ".join(found.causes[0].evidence)


def test_pieces_of_a_kernel_that_always_fills_the_gpu(machine: Any) -> None:
    """A persistent product has as many blocks however small its share of the rows is."""

    def step(m: Any, r: random.Random) -> None:
        launch = m.launch

        def other(this: str, us: int, **rest: Any) -> int:
            if "gemm" not in this:
                return int(launch(this, us, **rest))
            for _ in range(6):
                end = launch("nvjet_gemm_64x8", us // 2, **rest)
            return int(end)

        m.launch = other
        usual(m, r)
        m.launch = launch

    assert first(run(machine, step)) == "fragmented_batch"


def test_more_of_the_same_kernels_is_more_work(machine: Any) -> None:
    def step(m: Any, r: random.Random) -> None:
        usual(m, r)
        usual(m, r)

    assert first(run(machine, step)) == "more_work"


def test_what_no_rule_knows_is_said_to_be_unexplained(machine: Any) -> None:
    """Launched, the stream free, and not started: nothing recorded says what it waited for."""

    def step(m: Any, r: random.Random) -> None:
        m.launch("gemm", 50 * US)
        m.launch("elementwise", 50 * US, after=m.now + 400 * US)

    def short(m: Any, r: random.Random) -> None:
        m.launch("gemm", 50 * US)
        m.launch("elementwise", int(50 * US * r.uniform(0.97, 1.03)))

    r = random.Random(1)
    for number in range(STEPS):
        machine.begin_step(f"step:{number}")
        (step if number >= STEPS // 2 else short)(machine, r)
        machine.sync()
        machine.end_step()
    found = diagnose(machine.recording())
    assert found.causes == [] and found.unexplained == 1.0


def test_against_a_baseline(machine: Any, another: Callable[[], Any]) -> None:
    healthy, ill = machine, another()
    r = random.Random(1)
    for one, slower in ((healthy, 1.0), (ill, 1.3)):
        for number in range(6):
            one.begin_step(f"step:{number}")
            usual(one, r, slower=slower)
            one.sync()
            one.end_step()
    assert first(diagnose(ill.recording(), healthy.recording())) == "clock_throttled"
    assert diagnose(healthy.recording(), healthy.recording()).causes == []


@pytest.mark.parametrize("steps", [1, 3])
def test_too_few_to_compare(machine: Any, steps: int) -> None:
    r = random.Random(1)
    for number in range(steps):
        machine.begin_step(f"step:{number}")
        usual(machine, r)
        machine.sync()
        machine.end_step()
    found = diagnose(machine.recording())
    assert found.causes == [] and "too few to compare" in found.compared
