"""The job in real Flink, reading from a real broker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
import yaml
from confluent_kafka import Consumer, Producer
from spanlite.bucket import bucket_of
from spanlite.codec import Batch
from spanlite.codec.lite import encode_lite
from spanlite.topics import bucket_key, partition_of
from spanlite.v1 import spanlite_pb2 as pb
from spanlite_stack import StackInfo

pytestmark = [pytest.mark.flink, pytest.mark.stack, pytest.mark.timeout(900)]

PARTITIONS = 4
Ids = list[tuple[str, int]]


class Feed:
    """Batches of a small fleet into a topic, some of them twice, with junk between."""

    def __init__(self, kit: Any, bootstrap: str, topic: str, buckets: int = 8) -> None:
        self._kit, self._topic, self._buckets = kit, topic, buckets
        self._kafka = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._fleet = [
            kit.Producer(epoch=time.time_ns(), bucket=bucket, bucket_count=buckets)
            for bucket in range(buckets)
        ]
        self._traces = [kit.trace_ids(20, bucket, bucket, buckets) for bucket in range(buckets)]
        self.ids: Ids = []
        self.repeated = 0

    def _send(self, value: bytes, bucket: int) -> None:
        partition = partition_of(bucket, PARTITIONS)
        self._kafka.produce(self._topic, value, key=bucket_key(bucket), partition=partition)

    def batches(self, rounds: int) -> None:
        """Each trace gets spans in every round."""
        for _ in range(rounds):
            for bucket, producer in enumerate(self._fleet):
                spans = [
                    self._kit.Span(trace, len(self.ids) + at + 1)
                    for at, trace in enumerate(self._traces[bucket])
                ]
                self.ids += [(f"{span.trace:032x}", span.span_id) for span in spans]
                value = producer.batch(spans)
                self._send(value, bucket)
                if producer.seq % 3 == 0:
                    self._send(value, bucket)
                    self.repeated += len(spans)
        self._kafka.flush()

    def junk(self) -> None:
        """Messages nobody can read."""
        self._send(b"\x0a\x03abc", 0)
        self._send(b"hello", 1)
        self._kafka.flush()

    def lites(self, count: int) -> None:
        """Messages of one span each, as anybody might send them: no key."""
        ids = [(1 << 62) + at for at in range(count)]
        spans = [self._kit.Span(trace, 1) for trace in ids]
        batch = Batch(pb.BatchHeader(), self._kit.record_batch(spans), {"service.name": "web"})
        for value in encode_lite(batch):
            self._kafka.produce(self._topic, value)
        self.ids += [(f"{trace:032x}", 1) for trace in ids]
        self._kafka.flush()


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "spanlite.cli", "pipeline", *args]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("run", *args), capture_output=True, text=True, timeout=600, check=False
    )


def flags(archive: Path, stack: StackInfo, topic: str) -> list[str]:
    quick = ["--decision-wait", "1s", "--flush-interval", "1s", "--checkpoint-interval", "1s"]
    where = ["--archive", str(archive), "--bootstrap", stack.bootstrap, "--topic", topic]
    return [*where, *quick, "--table-interval", "3s", "--restarts", "0", "--group", topic]


def table(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(folder, format="parquet").to_table().to_pylist()
    return rows


def kept(archive: Path) -> Ids:
    return sorted((row["trace_id"], row["span_id"]) for row in table(archive / "incoming"))


def balance(archive: Path, hop: str) -> dict[tuple[str, str], int]:
    out: dict[tuple[str, str], int] = {}
    for row in table(archive / "ledger"):
        if row["hop"] == hop and row["spans"]:
            key = (row["direction"], row["reason"])
            out[key] = out.get(key, 0) + row["spans"]
    return {key: spans for key, spans in out.items() if spans}


def wait_for(
    what: Callable[[], bool], process: subprocess.Popen[str], limit_s: float = 400
) -> None:
    end = time.monotonic() + limit_s
    while not what():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.3)


def dead_letters(stack: StackInfo, topic: str, count: int) -> list[pb.DeadLetter]:
    consumer = Consumer(
        {"bootstrap.servers": stack.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["spans.dead"])
    found: list[pb.DeadLetter] = []
    end = time.monotonic() + 60
    while len(found) < count and time.monotonic() < end:
        message = consumer.poll(1.0)
        if message is not None and message.value():
            letter = pb.DeadLetter.FromString(message.value())
            found += [letter] if letter.topic == topic else []
    consumer.close()
    return found


def test_stop_go_on_and_drain(
    kit: Any, stack: StackInfo, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    """SIGTERM in the middle, then the rest: all spans once, junk put aside, the ledger closes."""
    topic, archive = new_topic(PARTITIONS), tmp_path / "archive"
    feed = Feed(kit, stack.bootstrap, topic)
    args = [*flags(archive, stack, topic), "--buckets", "8"]
    feed.batches(3)
    feed.junk()
    first = subprocess.Popen(command("run", *args), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(archive.glob("incoming/*/*/*/[!.]*.parquet")), first)
    feed.batches(3)
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=300)
    assert first.returncode == 0, said
    assert "stopped; state in" in said
    feed.batches(3)
    feed.lites(50)
    second = run(*args, "--until-idle", "2s")
    assert second.returncode == 0, second.stderr
    assert kept(archive) == sorted(feed.ids)
    spans = len(feed.ids)
    assert balance(archive, "pipeline") == {
        ("in", ""): spans + feed.repeated,
        ("out", ""): spans,
        ("dropped", "duplicate"): feed.repeated,
    }
    assert balance(archive, "archive") == {("in", ""): spans, ("out", ""): spans}
    assert sum(row["spans"] for row in table(archive / "kernel_minutes")) == spans
    letters = dead_letters(stack, topic, 2)
    assert {letter.payload for letter in letters} == {b"\x0a\x03abc", b"hello"}
    assert all(letter.reason == "malformed" and letter.detail for letter in letters)
    # Drained, and still able to go on: nothing is read twice, late spans are welcome.
    feed.batches(1)
    third = run(*args, "--until-idle", "1s")
    assert third.returncode == 0, third.stderr
    assert kept(archive) == sorted(feed.ids)


def test_stopped_while_starting_and_drained_later(
    kit: Any, stack: StackInfo, new_topic: Callable[[int], str], tmp_path: Path
) -> None:
    """A savepoint right after the first messages has no timers; the next run needs none."""
    topic, archive = new_topic(PARTITIONS), tmp_path / "archive"
    feed = Feed(kit, stack.bootstrap, topic)
    args = [*flags(archive, stack, topic), "--buckets", "8"]
    feed.batches(9)
    first = subprocess.Popen(command("run", *args), stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None and first.stderr.readline()
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=300)
    assert first.returncode == 0, said
    second = run(*args, "--until-idle", "1s")
    assert second.returncode == 0, second.stderr
    assert kept(archive) == sorted(feed.ids)
    balanced = balance(archive, "pipeline")
    assert balanced[("in", "")] == balanced[("out", "")] + feed.repeated


def test_the_same_job_on_a_session_cluster(
    kit: Any, stack: StackInfo, new_topic: Callable[[int], str], tmp_path: Path, cluster: Cluster
) -> None:
    """`flink run -py` on a standalone cluster, then `flink stop --drain`."""
    topic, archive = new_topic(PARTITIONS), tmp_path / "archive"
    feed = Feed(kit, stack.bootstrap, topic)
    feed.batches(6)
    args = [*flags(archive, stack, topic), "--buckets", "8"]
    submitted = subprocess.run(
        command("submit", *args), env=cluster.env, capture_output=True, text=True, timeout=300
    )
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    job = submitted.stdout.split("JobID")[-1].split()[0]
    cluster.wait_for(lambda: any(archive.glob("incoming/*/*/*/[!.]*.parquet")))
    stopped = cluster.flink("stop", "--drain", "-p", str(tmp_path / "savepoints"), job)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert kept(archive) == sorted(feed.ids)
    assert balance(archive, "pipeline")[("out", "")] == len(feed.ids)


class Cluster:
    """The session cluster that the apache-flink package starts."""

    def __init__(self, folder: Path) -> None:
        import pyflink

        self._bin = Path(pyflink.__file__).parent / "bin"
        conf = folder / "conf"
        conf.mkdir(parents=True)
        port, rpc = free_ports(2)
        (conf / "masters").write_text(f"localhost:{port}\n")
        (conf / "workers").write_text("localhost\n")
        settings = yaml.safe_load((self._bin.parent / "conf" / "config.yaml").read_text())
        settings["jobmanager"]["rpc"]["port"] = rpc
        settings["jobmanager"]["memory"]["process"]["size"] = "1200m"
        settings["taskmanager"]["memory"]["process"]["size"] = "2500m"
        settings["taskmanager"]["numberOfTaskSlots"] = 2
        settings["rest"]["port"] = port
        (conf / "config.yaml").write_text(yaml.safe_dump(settings, width=1 << 20))
        for name in ("log4j.properties", "log4j-cli.properties", "log4j-console.properties"):
            shutil.copy(self._bin.parent / "conf" / name, conf)
        self.logs = folder / "logs"
        self.logs.mkdir()  # a daemon whose log has no folder ends without a word
        self.env = os.environ | {
            "FLINK_CONF_DIR": str(conf),
            "FLINK_LOG_DIR": str(self.logs),
            "FLINK_PID_DIR": str(folder),
            "FLINK_IDENT_STRING": folder.name,
        }

    def _run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._bin / args[0]), *args[1:]],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def start(self) -> None:
        started = self._run("start-cluster.sh")
        assert started.returncode == 0, started.stdout + started.stderr

    def stop(self) -> None:
        self._run("stop-cluster.sh")

    def flink(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self._run("flink", *args)

    def wait_for(self, what: Callable[[], bool], limit_s: float = 400) -> None:
        end = time.monotonic() + limit_s
        while not what():
            assert time.monotonic() < end, self._tails()
            time.sleep(0.5)

    def _tails(self) -> str:
        return "\n".join(p.read_text(errors="replace")[-3000:] for p in self.logs.glob("*.log"))


def free_ports(count: int) -> list[int]:
    probes: Sequence[socket.socket] = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path / "flink")
    try:
        found.start()
        yield found
    finally:
        found.stop()


def test_java_and_python_agree_on_buckets_and_shares() -> None:
    """The Java side routes single spans; the keys it picks give each slot the same share."""
    code = """
import json
from spanlite.v1 import spanlite_pb2 as pb
from pyflink.java_gateway import get_gateway
from spanlite_pipeline.config import JobConfig
from spanlite_pipeline.job import environment
environment(JobConfig("a", "b", "c"))
jvm = get_gateway().jvm
buckets = jvm.io.spanlite.flink.Buckets
groups = jvm.org.apache.flink.runtime.state.KeyGroupRangeAssignment
def owner(key, slots):
    row = jvm.org.apache.flink.types.Row.withPositions(1)
    row.setField(0, key)
    return groups.assignKeyToParallelOperator(row, 128, slots)
keys = list(buckets.flinkKeys(64, 128))
owners = {n: [owner(key, n) for key in keys] for n in (2, 3, 4, 8)}
ids = [(1, 0), (2**64 - 1, 0), (2**63, 7), (0, 2**64 - 1), (123456789, 987654321)]
spans = [pb.SpanLite(trace_id=a, trace_id_high=b, name="x", span_id=9) for a, b in ids]
got = [buckets.ofMessage(span.SerializeToString(), 64) for span in spans]
print(json.dumps([keys, owners, ids, got]))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert out.returncode == 0, out.stderr
    keys, slots, ids, got = json.loads(out.stdout.splitlines()[-1])
    assert len(set(keys)) == 64
    for count, owners in slots.items():
        shares = np.bincount(owners, minlength=int(count))
        assert shares.max() - shares.min() <= 1, (count, shares)
    low, high = (np.array(half, np.uint64) for half in zip(*ids, strict=True))
    assert got == bucket_of(low, high, 64).tolist()
