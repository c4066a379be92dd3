"""The whole way on one host: an instrumented process, its ring, the daemon, a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from ring_writer import RingWriter, write_recording
from spanlite.codec import BatchView
from spanlite.kinds import SpanKind
from spanlite_collectors.agent import ring

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
_APPLICATION = f"""
from spanlite import instrument
assert instrument.enabled()
with instrument.request("00-{TRACE}-00f067aa0ba902b7-01", name="chat") as request:
    for number in range(100):
        with instrument.step([request]), instrument.stage("decode"):
            pass
"""


def _read(bootstrap: str, topic: str) -> list[BatchView]:
    """Every message of the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        partitions = [TopicPartition(topic, number, 0) for number in range(8)]
        consumer.assign(partitions)
        ends = [consumer.get_watermark_offsets(tp, timeout=60)[1] for tp in partitions]
        messages = []
        while len(messages) < sum(ends):
            messages += consumer.consume(500, timeout=1.0)
        return [BatchView(message.value()) for message in messages]
    finally:
        consumer.close()


@pytest.mark.stack
def test_spans_of_a_process_reach_kafka_with_its_request_trace(
    stack, new_topic, tmp_path, recording
):
    agent = Path(ring.library_path()).with_name("libspanlite_agent.so")
    if not agent.exists():
        pytest.skip("the agent is not built: make agent")
    rings, topic = tmp_path / "rings", new_topic(8)
    env = dict(os.environ, NVTX_INJECTION64_PATH=str(agent), SPANLITE_AGENT_DIR=str(rings))
    subprocess.run([sys.executable, "-c", _APPLICATION], env=env, check=True)
    records = recording("graph_node_s1")
    writer = RingWriter(rings)
    write_recording(writer, records)
    writer.die()

    flags = ("--otlp-port", "0", "--metrics-port", "0", "--bootstrap", stack.bootstrap)
    more = ("--topic", topic, "--agent-dir", str(rings), "--no-spool")
    daemon = subprocess.Popen(
        [sys.executable, "-m", "spanlite.cli", "collect", *flags, *more],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while list(rings.iterdir()):
            assert daemon.poll() is None
            time.sleep(0.1)
        daemon.send_signal(signal.SIGTERM)
        _, log = daemon.communicate()
    finally:
        daemon.kill()
    assert daemon.returncode == 0, log

    rows = [
        row
        for view in _read(stack.bootstrap, topic)
        for row in view.to_arrow().to_pylist()
    ]  # fmt: skip
    low = int(TRACE[16:], 16)
    ours = [row for row in rows if row["trace_id_low"] == low]
    kinds = [row["kind"] for row in ours]
    assert (kinds.count(SpanKind.STEP), kinds.count(SpanKind.NVTX_RANGE)) == (100, 100)
    assert kinds.count(SpanKind.REQUEST) == 1
    kernels = sum(row["kind"] == SpanKind.KERNEL for row in rows)
    assert kernels == sum(record["t"] == "kernel" for record in records)
