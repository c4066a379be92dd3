"""Covered steps stand for the steps of their own kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite_collectors.agent.layout import RECORDS, RecordType
from spanlite_collectors.agent.strata import StepKinds, bin_of, valleys

#: Mean duration in ns and share of each kind of step: two sorts of graph, and eager ones.
KINDS = {"short": (505_000, 0.88), "long": (950_000, 0.10), "eager": (8_000_000, 0.02)}
#: Their launches, and for how many ns these run: in eager steps the host is what takes the time.
WORK = ((3, 400_000), (3, 800_000), (90, 410_000))
STEP = RecordType.STEP


def no_work(steps):
    """Nothing is known of what ran in the steps."""
    return np.zeros((len(steps), 2), np.int64)


class Server:
    """Steps of several kinds, one after the other, and windows that slow those in them."""

    def __init__(self, seed: int, slower_ns: int = 230_000, slow_part: float = 0.0) -> None:
        self.random, self.slower_ns = np.random.default_rng(seed), slower_ns
        #: Of the steps in a window so many are slowed by far more than the others.
        self.slow_part = slow_part
        self.kinds = StepKinds()
        self.number = self.now = self.window = 0
        self.of: list[int] = []
        self.told = np.zeros(len(KINDS))
        self.weights: list[float] = []

    def run(self, count: int, window: int = 0, name: int = 1) -> np.ndarray:
        """Their records. Durations have a tail to the right, as real ones."""
        means, shares = zip(*KINDS.values(), strict=True)
        kind = self.random.choice(len(KINDS), count, p=shares)
        noise = np.exp(np.abs(self.random.normal(0, 0.04, count)))
        duration = (np.array(means)[kind] * noise).astype(np.int64) + self.slower_ns * bool(window)
        if window:
            slow = self.random.random(count) < self.slow_part
            duration += np.where(slow, self.random.integers(150_000, 600_000, count), 0)
        end = self.now + np.cumsum(duration + 1000)
        records = np.zeros(count, RECORDS[STEP])
        records["start_ns"], records["end_ns"] = end - duration, end
        records["number"] = np.arange(self.number, self.number + count)
        records["name"], records["window"], records["covered"] = name, window, bool(window)
        self.number, self.now = self.number + count, int(end[-1])
        self.of += kind.tolist()
        self.kinds.take(records, {1: "step:", 2: "step: prefill 17"})
        return records

    def work_of(self, steps: np.ndarray) -> np.ndarray:
        """What some steps started."""
        work = np.array(WORK)[[self.of[number] for number in steps["number"].tolist()]]
        noise = np.stack([np.ones(len(work)), self.random.uniform(0.99, 1.01, len(work))], 1)
        return (work.reshape(-1, 2) * noise).astype(np.int64)

    def waiting(self) -> float:
        """Steps that no covered one stands for yet."""
        return float(sum(name.waiting.sum() for name in self.kinds._names.values()))

    def cover(self, count: int, since: int, name: int = 1) -> None:
        """A window, and what its steps say that ran."""
        self.window += 1
        self.run(count, self.window, name)
        self.now += 1000
        found = self.kinds.close(
            self.window, self.now - 500, count, self.number - since, self.work_of
        )
        for number, weight in found.items():
            self.told[self.of[number]] += weight
            self.weights.append(weight)


def serve(seed: int, windows: int, steps: int, apart: int) -> Server:
    server = Server(seed)
    serve_on(server, windows, steps, apart)
    return server


def serve_on(server: Server, windows: int, steps: int, apart: int) -> None:
    since = 0
    for _ in range(windows):
        server.run(apart)
        server.cover(steps, since)
        since = server.number


@pytest.mark.parametrize("seed", range(5))
def test_rare_kinds_get_their_share_though_few_steps_are_covered(seed):
    """30 windows of 20 steps: chance alone would miss the long ones' share by 12 %."""
    server = serve(seed, 30, 20, 4000)
    true = np.bincount(server.of, minlength=len(KINDS)) / len(server.of)
    told = server.told / server.told.sum()
    # Those of the last windows may still wait for a covered one.
    assert told == pytest.approx(true, rel=(server.waiting() + 1) / server.number / 0.02 + 0.01)
    assert told[1] == pytest.approx(true[1], rel=0.07)


@pytest.mark.parametrize("seed", range(5))
def test_slow_steps_of_a_common_kind_do_not_pass_for_a_rare_one(seed):
    """By their durations alone 3 % of the short ones would, and the long ones lose 11 to 21 %."""
    server = Server(seed, slow_part=0.03)
    serve_on(server, 40, 40, 4000)
    true = np.bincount(server.of, minlength=len(KINDS)) / len(server.of)
    told = server.told / server.told.sum()
    assert told[1] == pytest.approx(true[1], rel=0.02)


def test_a_kind_without_work_of_its_own_does_not_wait_for_ever():
    """One step in fifty takes twice as long outside of windows, never inside: the host's doing."""
    server = Server(1)
    since = 0
    for _ in range(60):
        server.run(2000)
        server.kinds.take(slow_copies(server, 40), {1: "step:"})
        server.cover(40, since)
        since = server.number
    assert server.waiting() < 0.5 * 60 * 40
    assert sum(server.weights) + server.waiting() == pytest.approx(server.number, rel=1e-6)


def slow_copies(server: Server, count: int) -> np.ndarray:
    """Steps of 3 ms."""
    records = np.zeros(count, RECORDS[STEP])
    records["start_ns"] = server.now + np.arange(count) * 3_001_000
    records["end_ns"] = records["start_ns"] + 3_000_000
    records["number"] = np.arange(server.number, server.number + count)
    records["name"] = 1
    server.number, server.now = server.number + count, int(records["end_ns"][-1]) + 1000
    server.of += [0] * count
    return records


def test_every_step_is_stood_for_or_waits():
    server = serve(3, 12, 10, 1000)
    assert sum(server.weights) + server.waiting() == pytest.approx(server.number, rel=1e-6)
    assert server.waiting() < 0.05 * server.number


def test_names_are_kinds_of_their_own():
    server = Server(1)
    server.run(900, name=1)
    server.run(100, name=2)
    server.cover(10, 0, name=2)
    assert sum(server.weights) <= 110  # of the other name none is covered yet
    assert server.waiting() >= 900
    server.cover(10, server.number, name=1)
    assert sum(server.weights) + server.waiting() == pytest.approx(1020)
    assert server.waiting() < 150  # long and eager ones, 12 % of them


def test_one_kind_alone_has_the_windows_weight():
    kinds = StepKinds()
    records = np.zeros(1000, RECORDS[STEP])
    records["start_ns"] = np.arange(1000) * 1_000_000
    duration = np.random.default_rng(1).normal(500_000, 20_000, 1000).astype(np.int64)
    records["end_ns"] = records["start_ns"] + duration.astype(np.uint64)
    records["number"] = np.arange(1000)
    records["window"][-10:] = records["covered"][-10:] = 1
    kinds.take(records, {0: "execute_model"})
    found = kinds.close(1, 10**9, 10, 1000, no_work)
    assert found == dict.fromkeys(range(990, 1000), 100.0)


def test_steps_that_the_ring_dropped_are_stood_for():
    server = Server(1)
    server.run(50)
    server.cover(10, -940)  # 1,000 were seen by the agent, 60 came
    assert sum(server.weights) == pytest.approx(1000)


def test_a_window_without_records_of_its_steps_tells_nothing_and_they_wait():
    server = Server(1)
    server.run(500)
    assert server.kinds.close(1, server.now + 1, 10, 510, no_work) == {}
    server.window = 1
    server.cover(10, 500)
    assert sum(server.weights) == pytest.approx(520, abs=1)


def test_steps_without_a_window_for_hours_are_counted_and_not_kept():
    server = Server(1)
    for _ in range(60):
        server.run(5000)
    assert sum(len(part.records) for part in server.kinds._fresh) <= 1 << 16
    server.cover(30, 0)
    assert sum(server.weights) + server.waiting() == pytest.approx(300_030, rel=1e-6)
    assert sum(server.weights) > 280_000


def test_steps_of_continuous_stretches_stand_for_themselves():
    server = Server(1)
    server.run(500)
    server.run(300, window=1)
    server.kinds.skip(server.now + 1, 800)
    server.window = 1
    server.cover(10, 800)
    assert sum(server.weights) + server.waiting() == pytest.approx(510)


def test_valleys_lie_between_groups_only():
    random = np.random.default_rng(2)
    one = np.exp(random.normal(13, 0.2, 5000))
    assert valleys(np.bincount(bin_of(one), minlength=480).astype(float)) == []
    two = np.concatenate([one, np.exp(random.normal(15, 0.2, 500))])
    (cut,) = valleys(np.bincount(bin_of(two), minlength=480).astype(float))
    assert bin_of(np.exp([13.6]))[0] < cut < bin_of(np.exp([14.4]))[0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 30)), min_size=1, max_size=12),
       st.integers(0, 99))  # fmt: skip
def test_no_step_is_counted_twice(stretches, seed):
    server = Server(seed)
    since = 0
    for apart, steps in stretches:
        server.run(apart)
        server.cover(steps, since)
        since = server.number
        assert all(weight >= 0 for weight in server.weights)
        assert sum(server.weights) + server.waiting() == pytest.approx(server.number, rel=1e-6)


def test_a_window_that_says_it_covered_nothing_tells_nothing():
    server = Server(1)
    server.run(500)
    server.run(10, window=1)
    assert server.kinds.close(1, server.now + 1, 0, 510, server.work_of) == {}
