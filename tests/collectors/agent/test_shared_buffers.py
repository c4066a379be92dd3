"""Where CUPTI stays beside threads that launch, they write into one buffer."""

from __future__ import annotations

import pytest
from builds import Build, Hosts
from rings import check_whole

STEPS = ["steps=1500", "kernels=4", "step_us=300"]
OFTEN = {"window_seconds": 0.02, "window_steps": 3, "budget_pct": 10000}


def test_windows_stay_whole(build: Build, hosts: Hosts) -> None:
    """While a window is open some work mostly runs, so the buffer is complete only later."""
    ended = hosts.run(build, *STEPS, "sync=0", "side=1", **OFTEN, detach="never")
    assert ended.reports["host"]["shared"] == 1
    assert ended.stderr == ""
    reader = hosts.drained()
    check_whole(reader.records, 4)
    assert len(reader.records.window) >= 3
    assert reader.drops() == dict.fromkeys(reader.drops(), 0)


def test_not_where_windows_end_in_a_detach(build: Build, hosts: Hosts) -> None:
    """What it holds would come too late to prove that a detach is safe."""
    ended = hosts.run(build, *STEPS, "sync=0", **OFTEN, detach="proven")
    assert ended.reports["host"]["finalize"] >= 1
    assert ended.reports["host"]["shared"] == 0


@pytest.mark.parametrize("why", ["switched off", "refused"])
def test_windows_open_without_it(
    plain: Build, hosts: Hosts, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setenv("STANDIN_REFUSE", "shared" if why == "refused" else "")
    settings = {**OFTEN, "detach": "never", "shared_buffers": int(why == "refused")}
    ended = hosts.run(plain, *STEPS, "threads=3", **settings)
    assert ended.reports["host"]["shared"] == 0
    check_whole(hosts.drained().records, 4)
