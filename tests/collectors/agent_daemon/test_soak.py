"""The soak's own program for seconds: stand-in device, real agent, daemon, spool and judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
