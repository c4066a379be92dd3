"""Calls that can wait for each other for ever are kept apart."""

from __future__ import annotations

import pytest
from builds import Build, Hosts
from rings import check_whole

CIRCLE = ["steps=60", "kernels=4", "step_us=200", "graph=1", "wait=1", "threads=3"]
STAYS = {"window_seconds": 0.02, "window_steps": 3, "budget_pct": 10000, "detach": "never"}


@pytest.fixture
def circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph's launch and a wait for an event take two locks in opposite orders."""
    monkeypatch.setenv("STANDIN_CIRCLE", "1")


@pytest.mark.usefixtures("circle")
def test_calls_that_wait_for_each_other_for_ever_are_kept_apart(plain: Build, hosts: Hosts) -> None:
    ended = hosts.run(plain, *CIRCLE, **STAYS, learn_seconds=60, learn_steps=20)
    assert ended.reports["host"]["subscribe"] == 1
    assert ended.stderr == ""
    check_whole(hosts.drained().records, 4)


@pytest.mark.usefixtures("circle")
@pytest.mark.parametrize("why", ["no gate", "another client is told of calls"])
def test_without_the_gate_they_end_the_stand_ins_process(
    plain: Build, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """So the test before this one means something."""
    monkeypatch.setenv("STANDIN_REFUSE", "subscribe")
    words = ["steps=100000", *CIRCLE[1:]]
    settings = {**STAYS, "gate": int(why != "no gate"), "learn_seconds": 60, "learn_steps": 20}
    said = hosts.end(hosts.start(plain, *words, **settings), code=-6).stderr
    assert "two calls wait for each other" in said
    assert said.count("no gate: another CUPTI client is told of calls") == settings["gate"]


def test_no_gate_where_a_window_ends_in_a_detach(build: Build, hosts: Hosts) -> None:
    words = ["steps=1500", "kernels=4", "step_us=300", "graph=1", "wait=1", "sync=0"]
    settings = {"window_seconds": 0.02, "window_steps": 10, "budget_pct": 100}
    ended = hosts.run(build, *words, **settings)
    assert ended.reports["host"]["finalize"] >= 1
    assert ended.reports["host"]["subscribe"] == 0


def test_the_gate_under_many_threads(build: Build, hosts: Hosts) -> None:
    """Steps stay whole, and a race of its own would show."""
    words = ["steps=300", "kernels=4", "step_us=300", "graph=1", "wait=1", "threads=6"]
    ended = hosts.run(build, *words, **STAYS)
    assert ended.reports["host"]["subscribe"] == 1
    check_whole(hosts.drained().records, 4)
