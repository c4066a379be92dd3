"""The job's counters, over a REST endpoint like Flink's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest
from spanlite_pipeline import metrics
from spanlite_pipeline.metrics import JobMetrics

NAME = "Source__spans.KafkaSourceReader.topic.spans.raw.partition.{}.currentOffset"


class Flink(ThreadingHTTPServer):
    """A source of some partitions, each read up to an offset."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.offsets: dict[int, int] = {}
        self.asked: Counter[str] = Counter()

    def answer(self, path: str, wanted: list[str]) -> object:
        if path == "/jobs/j":
            return {"vertices": [{"id": "v", "name": "Source: spans"}]}
        self.asked["values" if wanted else "list"] += 1
        by_name = {NAME.format(partition): offset for partition, offset in self.offsets.items()}
        if not wanted:
            return [{"id": name} for name in [*by_name, "numRecordsIn"]]
        return [{"id": name, "max": by_name[name]} for name in wanted[0].split(",")]


class Handler(BaseHTTPRequestHandler):
    server: Flink

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        body = json.dumps(self.server.answer(parts.path, parse_qs(parts.query).get("get", [])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def flink() -> Iterator[Flink]:
    server = Flink()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_positions_are_after_the_last_message(flink: Flink) -> None:
    flink.offsets = {0: 41, 3: -1, 7: 0}
    assert JobMetrics(flink.server_port, "j").positions() == {0: 42, 7: 1}


def test_a_poll_does_not_list_all_metrics_again(
    flink: Flink, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now)
    job, flink.offsets = JobMetrics(flink.server_port, "j"), {0: 5}
    job.positions()
    flink.asked.clear()
    for offset in range(6, 16):
        flink.offsets[0] = offset
        assert job.positions() == {0: offset + 1}
    assert flink.asked == {"values": 10}
    flink.offsets[1] = 9  # the source took another partition
    now += metrics._LIST_S
    assert job.positions() == {0: 16, 1: 10}
    assert flink.asked["list"] == 1


def test_nothing_is_known_of_a_job_that_is_away() -> None:
    assert JobMetrics(metrics.free_port(), "j").positions() == {}
