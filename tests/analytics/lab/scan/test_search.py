from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from spanlite_analytics.lab.scan.search import expected_improvement, strategy_of
from spanlite_analytics.lab.scan.space import configurations, key_of
from spanlite_analytics.lab.scan.spec import Config, Spec, load

from .conftest import FormulaGpu, built

Write = Callable[..., Path]


def gone_through(spec: Spec) -> list[Config]:
    """All that a strategy asks for, answered by the formula; tiles of 8 fail."""
    strategy, gpu, asked = strategy_of(spec), FormulaGpu(), []
    times: dict[str, float | None] = {}
    while batch := strategy.ask(times):
        for config in batch:
            assert key_of(config) not in times
            ok = config["tile"] != 8
            times[key_of(config)] = gpu.measure(built(spec, config), 1).times_ns[0] if ok else None
            asked.append(config)
    assert len(asked) == strategy.total
    return asked


def test_a_grid_is_gone_through_once(spec: Spec) -> None:
    assert gone_through(spec) == configurations(spec)


def test_random_ones_are_allowed_and_repeatable(write: Write) -> None:
    path = write(more="search: {method: random, budget: 9, seed: 4}")
    one = gone_through(load(path))
    assert len(one) == 9 and one == gone_through(load(path))
    assert one != configurations(load(path))[:9]
    assert all(config in configurations(load(path)) for config in one)


def test_bayesian_finds_the_best_with_a_part_of_the_grid(write: Write) -> None:
    pytest.importorskip("sklearn")
    path = write(more="search: {method: bayesian, budget: 20, initial: 6, seed: 2}")
    asked = gone_through(load(path))
    best = {"tile": 64, "threads": 128, "order": "column"}
    assert best in asked
    assert asked == gone_through(load(path)), "the same seed must ask for the same"


def test_a_budget_larger_than_the_space(write: Write) -> None:
    pytest.importorskip("sklearn")
    path = write(("<= 65536", "<= 1024"), more="search: {method: bayesian, budget: 500}")
    spec = load(path)
    assert len(gone_through(spec)) == len(configurations(spec))


def test_expected_improvement() -> None:
    pytest.importorskip("scipy")
    mean, deviation = np.array([1.0, 1.0, 3.0]), np.array([0.0, 1.0, 1e-9])
    got = expected_improvement(mean, deviation, 2.0)
    assert got[0] == pytest.approx(1.0) and got[1] > 1.0 and got[2] == pytest.approx(0.0)
