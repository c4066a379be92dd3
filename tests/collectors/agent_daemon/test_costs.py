"""The bench that judges the agent's costs: its arithmetic, and the whole of it on a stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[3]))  # bench/ is no installed package
from bench._agent_detached import change, changes
from bench._agent_events import AFTER, PARTS, study, tail_cost_pct, typical
from bench._agent_turns import Turn

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "collectors" / "agent" / "build" / "tests"
AGENT = ROOT / "collectors" / "spanlite_collectors" / "lib" / "libspanlite_agent.so"
#: What each part of a window costs in the made-up server, in ns.
COSTS = {"open": 900_000, "inside": 8 * 20_000, "close": 500_000, "after": 5 * 10_000}


def server(windows: int, noise_ns: float) -> tuple[Any, Any, Any]:
    """Edges of its steps of 1 ms, and when windows of ten steps opened and closed."""
    random = np.random.default_rng(3)
    took = 1_000_000 + random.normal(0, noise_ns, windows * 100 + 100)
    begins = np.arange(windows) * 100 + 50
    for begin in begins:
        took[begin] += COSTS["open"]
        took[begin + 1 : begin + 9] += COSTS["inside"] / 8
        took[begin + 9] += COSTS["close"]
        took[begin + 10 : begin + 15] += COSTS["after"] / 5
    edges = np.concatenate([[0], np.cumsum(took)]).astype(np.int64)
    return edges, edges[begins] + 1000, edges[begins + 10] - 1000


def test_a_window_costs_what_its_steps_took_longer_than_those_around_it() -> None:
    found = study(*server(20, 0))
    assert found.costs == pytest.approx(np.tile([COSTS[part] for part in PARTS], (20, 1)), abs=50)
    assert typical(found) == pytest.approx([COSTS[part] for part in PARTS], abs=50)
    assert set(found.steps) == {10}


def test_medians_over_windows_leave_a_neighbours_noise_out() -> None:
    edges, opened, closed = server(21, 2_000)
    took = np.diff(edges)
    at = np.searchsorted(edges, opened[4]) + 3
    took[at] += 50_000_000  # somebody else had the machine, in one window
    late = np.cumsum(np.concatenate([[0], took]))
    shift = late - edges
    moved = [
        times + shift[np.searchsorted(edges, times, side="right") - 1] for times in (opened, closed)
    ]
    found = study(late, *moved)
    whole = sum(COSTS.values())
    assert found.whole.mean() > 2 * whole
    assert typical(found).sum() == pytest.approx(whole, rel=0.03)
    assert np.median(found.whole) == pytest.approx(whole, rel=0.05)


def test_windows_that_cannot_be_compared_are_left_out() -> None:
    edges, opened, closed = server(3, 0)
    near_the_end = len(edges) - 1 - AFTER // 2
    opened = np.append(opened, edges[near_the_end])
    closed = np.append(closed, edges[near_the_end + 2])
    assert len(study(edges, opened, closed).usual) == 3
    with pytest.raises(ValueError, match="no window"):
        study(edges, opened[-1:], closed[-1:])


def test_the_tail_moves_with_the_share_of_steps_in_windows() -> None:
    calm, touched = np.arange(1000, 2000), np.full(100, 3000)
    assert tail_cost_pct(calm, touched, 0.0) == pytest.approx(0, abs=0.1)
    assert tail_cost_pct(calm, touched, 0.02) == pytest.approx((3000 / 1989 - 1) * 100, abs=0.1)


def turns(step_ns: list[float]) -> list[Turn]:
    return [Turn(np.array([ns, ns]), 0, 0, 0, 0) for ns in step_ns]


def test_what_processes_always_differ_by_is_no_cost_of_the_detach() -> None:
    drift = np.linspace(1000, 1100, 12)
    before = [turns(list(drift)), turns(list(drift * 1.1)), turns(list(drift * 1.2))]
    after = [turns(list(drift)), turns(list(drift * 1.1)), turns(list(drift * 1.2 * 1.005))]
    for by in ("mean", "median"):
        cost, interval = change(*changes((before, after), by), middle=by == "median")
        assert cost == pytest.approx(0.5)
        assert interval == pytest.approx([0.5, 0.5])


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, Any]]:
    """What the whole bench prints, by metric."""
    if not ((BUILD / "libcupti.so.13").exists() and AGENT.exists()):
        pytest.skip("the agent's test programs are not built: run tests/collectors/agent first")
    command = [sys.executable, "-m", "bench.agent_costs", "--stand-in", "--quick"]
    more = ["--workloads", "graphs_600us", "--variant", "other=continuous,BUFFER_BYTES:262144"]
    done = subprocess.run(
        [*command, *more], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["metric"]: row for row in rows}


def test_cupti_was_attached_by_the_windows_alone_and_then_detached(figures: Any) -> None:
    assert figures["agent.detached_state"]["value"] == 0
    assert figures["agent.detached_state"]["detaches"] >= 1
    rounds = figures["agent.throughput_cost_pct.detached.graphs_600us"]["rounds"]
    assert rounds[0] == rounds[1] >= 2


def test_each_window_is_found_and_held_against_what_the_agent_believes(figures: Any) -> None:
    window = figures["agent.window_cost_us.graphs_600us"]
    assert 1 <= window["windows"] <= window["detaches"]
    assert abs(window["steps_a_window"] - window["window_steps"]) <= 1
    assert figures["agent.window_cost_ratio.graphs_600us"]["told_us"] > 0
    assert figures["agent.throughput_cost_pct.windows_by_window.graphs_600us"]["spacing_s"] > 0


def test_a_level_switched_on_and_off_is_compared_with_what_it_takes(figures: Any) -> None:
    whole = figures["agent.throughput_cost_pct.continuous_switched_with_stop.graphs_600us"]
    inside = figures["agent.throughput_cost_pct.continuous_switched.graphs_600us"]
    assert whole["stop_ms"] > 0 and whole["value"] > inside["value"]
    for name in ("continuous", "other", "continuous_switched"):
        assert figures[f"agent.records.costs.{name}"]["value"] > 0
        assert figures[f"agent.records.costs.{name}"]["drops"] == {}
