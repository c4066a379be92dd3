"""The soak's own program for seconds: stand-in device, real agent, daemon, spool and judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench._soak_memory import rounds_slope
from bench._soak_processes import Process

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "collectors" / "agent" / "build" / "tests"
AGENT = ROOT / "collectors" / "spanlite_collectors" / "lib" / "libspanlite_agent.so"


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, Any]]:
    """What it prints, by metric."""
    if not ((BUILD / "libcupti.so.13").exists() and AGENT.exists()):
        pytest.skip("the agent's test programs are not built: run tests/collectors/agent first")
    command = [sys.executable, "-m", "bench.agent_soak", "--stand-in"]
    more = ["--seconds", "5", "--switch", "1.5"]
    done = subprocess.run(
        [*command, *more], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["metric"]: row for row in rows}


def test_every_hop_closes_its_account(figures: dict[str, dict[str, Any]]) -> None:
    assert figures["agent.soak_ledger_open"]["hops"] == {
        "rings": 0, "daemon": 0, "delivery": 0, "batches": 0,
    }  # fmt: skip
    assert figures["agent.soak_ledger_open"]["spans"] > 1000
    assert figures["agent.unaccounted_records"]["value"] == 0


def test_whole_steps_were_seen_and_none_was_lost(figures: dict[str, dict[str, Any]]) -> None:
    assert figures["agent.unaccounted_records"]["whole_steps"] > 0
    lost = figures["agent.soak_steps_lost"]["value"]
    assert lost <= figures["agent.soak_dropped"]["value"]
    assert figures["agent.soak_seconds"]["levels"]["ranges"] >= 1


@pytest.mark.parametrize("grows_mib_per_min", [0.0, 3.0])
def test_memory_that_comes_back_after_a_level_is_flat(grows_mib_per_min: float) -> None:
    """Rounds of 40 s at `windows` and 10 s at a level that takes more each time."""
    began, began_ns = time.monotonic(), time.time_ns()
    levels = [(level, began_ns + int(1e9 * (50 * n + at)))
              for n in range(12) for level, at in (("windows", 0), ("continuous", 40))]  # fmt: skip
    process = Process(1)
    for second in range(600):
        more = 1024 * 20 * (second // 50) if second % 50 >= 40 else 0
        process.seconds.append(float(second))
        process.anonymous_kib.append(int(300_000 + grows_mib_per_min * 1024 * second / 60 + more))
    run = SimpleNamespace(
        levels=levels,
        watch=SimpleNamespace(began=began),
        stretches=lambda level: [n for n, (word, _) in enumerate(levels) if word == level],
    )
    found = rounds_slope(cast(Any, run), process, 90)
    assert found == pytest.approx(grows_mib_per_min, abs=0.05)
    assert process.slope(process.anonymous_kib, 90) > grows_mib_per_min + 1
