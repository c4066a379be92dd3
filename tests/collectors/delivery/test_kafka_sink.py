"""KafkaSink on a real broker."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from spanlite.codec import BatchView
from spanlite.errors import ServiceError, UsageError
from spanlite_collectors.delivery import KafkaSink, Role, add_delivery_arguments, open_sink
from spanlite_collectors.delivery.arguments import open_spool, parse_bytes
from spanlite_collectors.sinks import CAPTURE_WEIGHT
from spanlite_stack import StackInfo

MakeSpans = Callable[..., pa.RecordBatch]
ReadAll = Callable[[str, str], list[BatchView]]


def parse(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_delivery_arguments(parser)
    return parser.parse_args(flags)


@pytest.fixture
def flags(
    stack: StackInfo, new_topic: Callable[[int], str], tmp_path: Path
) -> Iterator[tuple[str, ...]]:
    spool = str(tmp_path / "spool")
    yield ("--bootstrap", stack.bootstrap, "--topic", new_topic(4), "--spool", spool)


def span_ids(views: list[BatchView]) -> list[int]:
    return [int(i) for view in views for i in view.column("span_id")]


def check_rows(views: list[BatchView]) -> None:
    """seq counts from 0 without a gap and spans_before adds up, for each bucket."""
    seen: dict[tuple[str, int, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for view in views:
        header = view.header
        key = (header.producer, header.epoch, header.bucket)
        seq, spans = seen[key]
        assert (header.seq, header.spans_before) == (seq, spans)
        seen[key] = (seq + 1, spans + header.span_count)


@pytest.mark.stack
class TestWithBroker:
    def test_every_span_arrives_once_in_numbered_batches(
        self, flags: tuple[str, ...], stack: StackInfo, make_spans: MakeSpans, read_all: ReadAll
    ) -> None:
        with open_sink(parse(*flags, "--batch-spans", "500", "--producer", "p/1"), "test") as sink:
            for first in range(1, 50_001, 10_000):
                sink.write(make_spans(10_000, first_id=first), {"service.name": "llm", "n": 1})
        views = read_all(stack.bootstrap, flags[3])
        assert sorted(span_ids(views)) == list(range(1, 50_001))
        check_rows(views)
        assert {view.header.producer for view in views} == {"p/1"}
        assert {view.header.bucket for view in views} == set(range(64))
        assert all(view.resource == {"service.name": "llm", "n": 1} for view in views)
        stats = sink.stats()
        assert stats.received_spans == stats.delivered_spans == 50_000
        assert stats.delivered_messages == len(views)
        assert stats.spool_bytes == stats.on_way_bytes == stats.waiting_spans == 0

    def test_a_batch_that_is_not_full_leaves_by_age(
        self, flags: tuple[str, ...], stack: StackInfo, make_spans: MakeSpans, read_all: ReadAll
    ) -> None:
        with open_sink(parse(*flags, "--batch-age", "0.2"), "test") as sink:
            sink.write(make_spans(10, per_trace=10), {})
            for _ in range(600):
                if sink.stats().delivered_spans:
                    break
                sink._closing.wait(0.1)
            assert sink.stats().delivered_spans == 10

    def test_drops_are_told_even_without_a_span(
        self, flags: tuple[str, ...], stack: StackInfo, make_spans: MakeSpans, read_all: ReadAll
    ) -> None:
        with open_sink(parse(*flags), "test") as sink:
            sink.drop("ring_full", 7)
            sink.write(make_spans(10), {})
            sink.flush()
            sink.drop("ring_full", 3)
            sink.drop("refused", 1)
        views = read_all(stack.bootstrap, flags[3])
        told: dict[str, int] = defaultdict(int)
        for view in views:
            for drop in view.header.drops:
                told[drop.reason] += drop.spans
        assert told == {"ring_full": 10, "refused": 1}
        assert sink.stats().dropped_spans == told
        check_rows(sorted(views, key=lambda v: (v.header.bucket, v.header.seq)))

    def test_head_sampling_keeps_whole_traces_and_accounts_for_the_rest(
        self, flags: tuple[str, ...], stack: StackInfo, make_spans: MakeSpans, read_all: ReadAll
    ) -> None:
        with open_sink(parse(*flags, "--head-sample", "0.25"), "test") as sink:
            sink.write(make_spans(20_000), {CAPTURE_WEIGHT: 8})
        views = read_all(stack.bootstrap, flags[3])
        sizes: dict[int, int] = defaultdict(int)
        for view in views:
            assert view.header.sampling_probability in (0.25, 0)
            assert view.header.capture_probability == (0.125 if view.header.span_count else 0)
            for low in view.column("trace_id_low"):
                sizes[int(low)] += 1
        assert set(sizes.values()) == {20}
        assert 150 < len(sizes) < 350
        dropped = sum(d.spans for view in views for d in view.header.drops)
        assert dropped == 20_000 - sum(sizes.values())
        assert sink.stats().dropped_spans == {"head_sampled": dropped}

    def test_a_batch_too_large_for_a_message_is_cut(
        self, flags: tuple[str, ...], stack: StackInfo, make_spans: MakeSpans, read_all: ReadAll
    ) -> None:
        spans = make_spans(64, per_trace=64)
        text = pa.array(["x" * 400_000 + str(i) for i in range(64)]).dictionary_encode()
        at = spans.schema.get_field_index("attributes")
        spans = spans.set_column(at, spans.schema.field(at), text)
        with open_sink(parse(*flags), "test") as sink:
            sink.write(spans, {})
        views = read_all(stack.bootstrap, flags[3])
        assert len(views) == 4
        assert span_ids(views) == list(range(1, 65))
        check_rows(views)

    def test_a_topic_that_takes_less_than_we_send_loses_that_batch_only(
        self, flags: tuple[str, ...], stack: StackInfo, make_spans: MakeSpans, read_all: ReadAll
    ) -> None:

        topic = flags[3] + ".small"
        admin = AdminClient({"bootstrap.servers": stack.bootstrap})
        new = NewTopic(topic, 1, 1, config={"max.message.bytes": "20000"})
        admin.create_topics([new])[topic].result(60)
        small, large = make_spans(10, per_trace=10), make_spans(1, first_id=11)
        noise = np.random.default_rng(1).bytes(40_000).hex()
        at = large.schema.get_field_index("attributes")
        large = large.set_column(at, large.schema.field(at), pa.array([noise]).dictionary_encode())
        with open_sink(parse(*flags[:3], topic, *flags[4:]), "test") as sink:
            for part in (small, large, make_spans(10, first_id=12, per_trace=10)):
                sink.write(part, {})
                sink.flush()
            stats = sink.stats()
        assert stats.lost_spans == 1
        assert stats.delivered_spans == 20
        assert sorted(span_ids(read_all(stack.bootstrap, topic))) == [*range(1, 11), *range(12, 22)]

    def test_a_missing_topic_is_said_at_once(self, flags: tuple[str, ...]) -> None:
        with pytest.raises(ServiceError, match="has no topic nowhere"):
            open_sink(parse(*flags, "--topic", "nowhere"), "test")


class TestWithoutBroker:
    GONE = ("--bootstrap", "127.0.0.1:9")  # the discard port: nobody listens

    def test_a_command_says_so(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(open_sink.__globals__["check_broker"], "__defaults__", (1.0,))
        with pytest.raises(ServiceError, match=r"no Kafka broker answers at 127\.0\.0\.1:9"):
            open_sink(parse(*self.GONE, "--spool", str(tmp_path)), "test")

    def open(self, *flags: str) -> KafkaSink:
        sink = open_sink(parse(*self.GONE, *flags), Role("test", False, False))
        sink._outbox._stall_s = 0.2
        return sink

    def test_a_daemon_spools(self, tmp_path: Path, make_spans: MakeSpans) -> None:
        sink = self.open("--spool", str(tmp_path))
        sink.write(make_spans(1000), {})
        sink.flush()
        stats = sink.stats()
        assert stats.spool_messages > 0 and stats.spooling and stats.broker_away
        sink.close()
        spool = open_spool(tmp_path, "spans.raw", 1)
        views = [BatchView(found[1]) for found in iter(spool.pop, None)]
        assert sorted(span_ids(views)) == list(range(1, 1001))
        check_rows(views)
        spool.close()

    def test_what_has_no_room_is_dropped_and_counted(
        self, tmp_path: Path, make_spans: MakeSpans
    ) -> None:
        sink = self.open("--spool", str(tmp_path), "--spool-bytes", "20k", "--batch-spans", "100")
        for first in range(1, 50_001, 1000):
            sink.write(make_spans(1000, first_id=first, per_trace=1000), {})
        stats = sink.stats()
        sink.close()
        spool = open_spool(tmp_path, "spans.raw", 1)
        views = [BatchView(found[1]) for found in iter(spool.pop, None)]
        check_rows(views)
        kept = len(span_ids(views))
        assert stats.dropped_spans["spool_full"] > 0
        assert kept + sink.stats().dropped_spans["spool_full"] == 50_000
        spool.close()

    def test_without_a_spool_the_loss_is_an_error(self, make_spans: MakeSpans) -> None:
        sink = self.open("--no-spool")
        sink.write(make_spans(10), {})
        with pytest.raises(ServiceError, match="10 spans that were taken could not be delivered"):
            sink.close(timeout_s=1)
        assert sink.stats().dropped_spans == {"queue_full": 10}

    def test_two_processes_get_two_spools(self, tmp_path: Path) -> None:
        first = open_spool(tmp_path, "t", 1 << 20)
        second = open_spool(tmp_path, "t", 1 << 20)
        assert first.folder != second.folder
        second.append(b"left")
        second.close()
        first.close()
        # The next process takes the one with something in it.
        third = open_spool(tmp_path, "t", 1 << 20)
        assert third.folder == second.folder
        third.close()


def test_flags() -> None:
    assert parse_bytes("4GiB") == 4 << 30
    assert parse_bytes("512k") == 512 << 10
    assert parse_bytes("7") == 7
    for bad in ("", "x", "-1", "4 potatoes", "1.5G"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_bytes(bad)
    with pytest.raises(UsageError, match="exclude each other"):
        open_sink(parse("--spool", "x", "--no-spool"), "test")
    with pytest.raises(UsageError, match="power of two"):
        open_sink(parse("--buckets", "3"), "test")
    for bad_flag in (["--head-sample", "0"], ["--head-sample", "nan"], ["--batch-age", "0"]):
        with pytest.raises(SystemExit):
            parse(*bad_flag)
