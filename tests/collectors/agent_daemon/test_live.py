"""The daemon beside a running process: the real agent, with a stand-in for CUDA and CUPTI."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind
from spanlite_collectors.agent import ring
from spanlite_collectors.agent.source import RingOptions, RingSource
from spanlite_collectors.sinks import MemorySink

BUILD = Path(__file__).parents[3] / "collectors" / "agent" / "build" / "tests"


@pytest.fixture
def watched(tmp_path):
    """Runs a program under the agent and gives what it said, its spans, and the batches."""
    agent = ring.library_path().with_name("libspanlite_agent.so")
    host = BUILD / "host"
    if not (agent.exists() and host.exists()):
        pytest.skip("the agent's test programs are not built: run tests/collectors/agent first")

    def run(*words: str, **settings: str) -> tuple[dict, list[dict], MemorySink]:
        sink = MemorySink()
        source = RingSource(sink, RingOptions([tmp_path]))
        source.start()
        env = os.environ | {
            "CUDA_INJECTION64_PATH": str(agent),
            "NVTX_INJECTION64_PATH": str(agent),
            "LD_LIBRARY_PATH": str(BUILD),
            "SPANLITE_AGENT_DIR": str(tmp_path),
        }
        env |= {f"SPANLITE_AGENT_{name.upper()}": value for name, value in settings.items()}
        done = subprocess.run([host, *words], env=env, capture_output=True, text=True, check=True)
        while list(tmp_path.glob("*.ring")):
            time.sleep(0.1)
        source.stop()
        rows = [row for batch, _ in sink.written for row in batch.to_pylist()]
        return json.loads(done.stdout), rows, sink

    return run


def test_continuous_gives_every_kernel_its_call_stage_and_step(watched):
    said, rows, sink = watched("steps=500", "kernels=8", "threads=2", level="continuous")
    assert sink.dropped == {}
    by_id = {row["span_id"]: row for row in rows}
    kernels = [row for row in rows if row["kind"] == SpanKind.KERNEL]
    assert len(kernels) == said["launched"]
    for kernel in kernels:
        call = by_id[kernel["parent_span_id"]]
        stage = by_id[call["parent_span_id"]]
        step = by_id[stage["parent_span_id"]]
        assert call["name"] == "cudaLaunchKernel"
        assert json.loads(kernel["attributes"]) == {"stage": stage["name"]}
        assert step["kind"] == SpanKind.STEP
        assert len({row["trace_id_low"] for row in (kernel, call, stage, step)}) == 1
    assert Counter(row["kind"] for row in rows)[SpanKind.STEP] == 1000


def test_waits_overheads_and_foreign_ids_hang_under_their_calls(watched):
    """Recorded beside the kernels; a wait is part of its step."""
    words = ["steps=60", "kernels=3", "external=1", "start_end=1"]
    _, rows, _ = watched(*words, level="continuous", activities="sync,overhead,external")
    by_id = {row["span_id"]: row for row in rows}
    waits = [row for row in rows if row["kind"] == SpanKind.SYNC]
    assert len(waits) == 60
    for wait in waits:
        call = by_id[wait["parent_span_id"]]
        assert (wait["name"], call["name"]) == ("context sync", "cudaDeviceSynchronize")
        assert by_id[call["parent_span_id"]]["kind"] == SpanKind.STEP
    names = Counter(row["name"] for row in rows if row["kind"] == SpanKind.OVERHEAD)
    assert names == {"lazy function loading": 1}
    ids = Counter(
        json.loads(row["attributes"] or "{}").get("external.id")
        for row in rows
        if row["name"] == "cudaLaunchKernel"
    )
    assert ids == {1000 + step: 3 for step in range(60)}
    shared = [row for row in rows if row["name"] == "two steps"]
    assert len(shared) == 30
    assert not {row["span_id"] for row in shared} & {row["parent_span_id"] for row in rows}


def test_windows_hold_whole_steps_and_say_what_they_weigh(watched):
    _, rows, sink = watched(
        "steps=3000", "kernels=8", window_seconds="0.1", window_steps="5", learn_seconds="0"
    )
    steps = {row["trace_id_low"]: row for row in rows if row["kind"] == SpanKind.STEP}
    assert len(steps) == 3000
    covered = {
        trace
        for trace, row in steps.items()
        if json.loads(row["attributes"] or "{}").get("capture.covered")
    }
    whole = Counter(
        row["trace_id_low"]
        for row in rows
        if row["kind"] == SpanKind.KERNEL and not row["flags"] & SpanFlag.PARTIAL
    )
    assert covered
    assert {whole[trace] for trace in covered} == {8}
    windows = {
        resource["spanlite.capture.window"]: resource
        for _, resource in sink.written
        if resource.get("spanlite.capture.weight")
    }
    for resource in windows.values():
        seen, taken = resource["spanlite.capture.steps_seen"], resource["spanlite.capture.steps"]
        assert resource["spanlite.capture.weight"] == pytest.approx(seen / taken, rel=1e-5)
    # Each step is seen by one window: weighed up they give all but those after the last.
    last = max(windows)
    assert sum(w["spanlite.capture.steps"] for w in windows.values()) == len(covered)
    assert sum(w["spanlite.capture.steps_seen"] for w in windows.values()) <= 3000
    assert windows[last]["spanlite.capture.level"] == "windows"
