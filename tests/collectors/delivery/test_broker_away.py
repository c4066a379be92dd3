"""The broker is killed under load and comes back: nothing is lost, nothing is overtaken."""

from __future__ import annotations

import argparse
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from spanlite.codec import BatchView
from spanlite_collectors.delivery import KafkaSink, Role, add_delivery_arguments, open_sink
from spanlite_stack import Stack
from spanlite_stack.stack import QUICK_START

pytestmark = [pytest.mark.stack, pytest.mark.chaos]

MakeSpans = Callable[..., pa.RecordBatch]
ReadAll = Callable[[str, str], list[BatchView]]
#: Longer than the stall time below, so that the spool is used; an hour is no different.
DOWN_S = 10.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A broker to kill; each test has a topic of its own in it."""
    stack = Stack(tmp_path_factory.mktemp("stack"), jvm_options=QUICK_START)
    yield stack
    stack.remove()


@pytest.fixture
def topic(broker: Stack) -> str:
    broker.up()
    name = f"test.{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, 4)
    return name


def open_to(broker: Stack, topic: str, spool: Path) -> KafkaSink:
    info = broker.status()
    assert info is not None
    parser = argparse.ArgumentParser()
    add_delivery_arguments(parser)
    where = ["--bootstrap", info.bootstrap, "--topic", topic, "--spool", str(spool)]
    args = parser.parse_args([*where, "--batch-spans", "200"])
    sink = open_sink(args, Role("test", block=True, needs_broker=False))
    sink._outbox._stall_s = 1.0
    return sink


class Load:
    """A thread that writes spans 1, 2, 3, ... until it is stopped."""

    def __init__(self, sink: KafkaSink, make_spans: MakeSpans, first_id: int = 1) -> None:
        self._sink, self._make, self.next_id = sink, make_spans, first_id
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._sink.write(self._make(400, first_id=self.next_id), {"service.name": "x"})
            self.next_id += 400

    def stop(self) -> int:
        """The last id written."""
        self._stop.set()
        self._thread.join()
        return self.next_id - 1


def check_exact(views: list[BatchView], last_id: int) -> None:
    """After dropping repeats as the job does, every span is there once and in order."""
    seq: dict[tuple[int, int], int] = {}
    ids: list[int] = []
    for view in views:  # those of a bucket are in one partition, in its order
        key = (view.header.epoch, view.header.bucket)
        last = seq.get(key, -1)
        if view.header.seq <= last:
            continue
        assert view.header.seq == last + 1, "a batch was lost or overtaken"
        seq[key] = view.header.seq
        ids += view.column("span_id").tolist()
    assert sorted(ids) == list(range(1, last_id + 1))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def settle(sink: KafkaSink) -> None:
    """Everything is delivered, then the sink is closed."""
    sink.flush()
    wait_for(lambda: sink._outbox.idle, "not everything is delivered")
    sink.close()


def test_a_killed_broker_costs_nothing(
    broker: Stack, topic: str, tmp_path: Path, make_spans: MakeSpans, read_all: ReadAll
) -> None:
    sink = open_to(broker, topic, tmp_path / "spool")
    load = Load(sink, make_spans)
    wait_for(lambda: sink.stats().delivered_spans > 2000, "nothing is delivered")
    broker.kill9()
    wait_for(lambda: sink.stats().spooling, "it does not go over to the spool")
    time.sleep(DOWN_S)
    during = sink.stats()
    assert during.broker_away and during.spool_bytes > 0
    info = broker.up()
    wait_for(lambda: not sink.stats().spooling, "it does not come back from the spool")
    last_id = load.stop()
    settle(sink)
    stats = sink.stats()
    assert stats.delivered_spans == stats.received_spans == last_id
    assert stats.spool_bytes == 0 and stats.dropped_spans == {} and stats.lost_spans == 0
    check_exact(read_all(info.bootstrap, topic), last_id)


def test_the_collector_restarts_while_the_broker_is_away(
    broker: Stack, topic: str, tmp_path: Path, make_spans: MakeSpans, read_all: ReadAll
) -> None:
    """What one run leaves in the spool the next one delivers, before its own."""
    sink = open_to(broker, topic, tmp_path / "spool")
    load = Load(sink, make_spans)
    wait_for(lambda: sink.stats().delivered_spans > 1000, "nothing is delivered")
    broker.kill9()
    wait_for(lambda: sink.stats().spooled_messages > 50, "nothing is spooled")
    last_id = load.stop()
    sink.close(timeout_s=1)
    assert sink.stats().spool_messages > 0
    second = open_to(broker, topic, tmp_path / "spool")
    second.write(make_spans(5000, first_id=last_id + 1), {})
    second.flush()
    info = broker.up()
    settle(second)
    assert second.stats().spool_messages == 0
    views = read_all(info.bootstrap, topic)
    check_exact(views, last_id + 5000)
    by_bucket: dict[int, list[int]] = {}
    for view in views:
        by_bucket.setdefault(view.header.bucket, []).append(view.header.epoch)
    assert all(epochs == sorted(epochs) for epochs in by_bucket.values())


def test_several_kills_in_a_row(
    broker: Stack, topic: str, tmp_path: Path, make_spans: MakeSpans, read_all: ReadAll
) -> None:
    """Short outages, some over before the spool is used."""
    sink = open_to(broker, topic, tmp_path / "spool")
    load = Load(sink, make_spans)
    for _ in range(2):
        delivered = sink.stats().delivered_spans
        wait_for(lambda d=delivered: sink.stats().delivered_spans > d + 400, "no progress")
        broker.kill9()
        info = broker.up()
    last_id = load.stop()
    settle(sink)
    check_exact(read_all(info.bootstrap, topic), last_id)
