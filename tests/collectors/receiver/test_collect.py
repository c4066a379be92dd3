"""`spanlite collect` as a process: SDK to Kafka, its pages, and how it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client.parser import text_string_to_metric_families
from spanlite.cli import main
from spanlite.codec import BatchView
from spanlite_stack import StackInfo


class Collector:
    """The daemon, its log, and its two addresses."""

    def __init__(self, *flags: str) -> None:
        ports = ("--otlp-port", "0", "--metrics-port", "0")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spanlite.cli", "collect", *ports, *flags],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = ""
        self.pages = self._find(r"metrics on (http://\S+)/metrics")
        self.traces = self._find(r"taking spans on (http://\S+)")

    def _find(self, pattern: str) -> str:
        assert self.process.stderr is not None
        while not (found := re.search(pattern, self.log)):
            line = self.process.stderr.readline()
            assert line, f"it ended: {self.log}"
            self.log += line
        return found[1]

    def get(self, page: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.pages + page, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    def metric(self, name: str) -> float:
        """The sum over the labels."""
        total = 0.0
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            total += sum(sample.value for sample in family.samples if sample.name == name)
        return total

    def end(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        _, rest = self.process.communicate(timeout=120)
        self.log += rest
        return self.process.returncode


@pytest.fixture
def start() -> Iterator[Callable[..., Collector]]:
    made: list[Collector] = []

    def make(*flags: str) -> Collector:
        made.append(Collector(*flags))
        return made[-1]

    yield make
    for collector in made:
        if collector.process.poll() is None:
            collector.process.kill()
            collector.process.communicate()


def send_spans(url: str, count: int) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "llm"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
    tracer = provider.get_tracer("test")
    for _ in range(count):
        tracer.start_span("request").end()
    provider.shutdown()


def spans_in(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    total = 0
    try:
        for partition in consumer.list_topics(topic, timeout=60).topics[topic].partitions:
            end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)[1]
            consumer.assign([TopicPartition(topic, partition, 0)])
            for message in consumer.consume(end, timeout=60) if end else []:
                view = BatchView(message.value())
                assert view.resource["service.name"] == "llm"
                total += view.count
    finally:
        consumer.close()
    return total


@pytest.mark.stack
def test_sdk_to_kafka(
    start: Callable[..., Collector],
    stack: StackInfo,
    new_topic: Callable[[int], str],
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    flags = ("--bootstrap", stack.bootstrap, "--topic", topic, "--spool", str(tmp_path))
    collector = start(*flags)
    assert collector.get("/healthz") == (200, "ok\n")
    assert collector.get("/readyz") == (200, "ok\n")
    assert collector.get("/other")[0] == 404
    send_spans(collector.traces, 700)
    assert collector.metric("spanlite_received_spans_total") == 700
    assert collector.metric("spanlite_otlp_requests_total") >= 2
    deadline = time.monotonic() + 60
    while collector.metric("spanlite_delivered_spans_total") < 700:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    send_spans(collector.traces, 5)  # still waiting in batches when it is told to stop
    assert collector.end() == 0
    assert "705 spans taken, 705 delivered" in collector.log
    assert spans_in(stack.bootstrap, topic) == 705


@pytest.mark.stack
def test_without_a_broker_it_spools_and_the_next_run_delivers(
    start: Callable[..., Collector],
    stack: StackInfo,
    new_topic: Callable[[int], str],
    tmp_path: Path,
) -> None:
    topic = new_topic(2)
    flags = ("--topic", topic, "--spool", str(tmp_path))
    collector = start("--bootstrap", "127.0.0.1:9", *flags)
    send_spans(collector.traces, 300)
    deadline = time.monotonic() + 60
    while not collector.metric("spanlite_spool_batches"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert collector.metric("spanlite_broker_away") == 1
    assert collector.end() == 0
    assert "300 spans taken, 0 delivered" in collector.log
    second = start("--bootstrap", stack.bootstrap, *flags)
    assert "batches of an earlier run" in second.log
    while second.metric("spanlite_spool_batches"):
        assert time.monotonic() < deadline + 60
        time.sleep(0.1)
    assert second.metric("spanlite_replayed_batches_total") > 0
    assert second.end() == 0
    assert spans_in(stack.bootstrap, topic) == 300
    assert list(tmp_path.rglob("*.spool")) == []


def test_a_broker_that_is_away_is_named_and_keeps_no_sender_from_it(
    start: Callable[..., Collector], tmp_path: Path
) -> None:
    flags = ("--spool", str(tmp_path), "--no-agent", "--no-nvml")
    collector = start("--bootstrap", "127.0.0.1:9", *flags)
    assert "delivering to spans.raw at 127.0.0.1:9\n" in collector.log
    kept = collector._find(r"the broker at 127.0.0.1:9 does not answer; keeping batches on disk(.)")
    assert kept == ","
    send_spans(collector.traces, 5)
    assert collector.get("/healthz")[0] == collector.get("/readyz")[0] == 200
    assert collector.end() == 0
    assert "no room" not in collector.log and "5 spans taken" in collector.log


def test_bad_flags(tmp_path: Path) -> None:
    flags = ["collect", "--spool", str(tmp_path), "--bootstrap", "127.0.0.1:9"]
    assert main([*flags, "--otlp-port", "5", "--metrics-port", "5"]) == 2
    assert main([*flags, "--listen", "203.0.113.1", "--otlp-port", "0"]) == 2
    with pytest.raises(SystemExit):
        main([*flags, "--otlp-port", "70000"])
