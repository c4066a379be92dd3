"""The end of a run: what was taken is delivered, on disk, or told as lost."""

from __future__ import annotations

import argparse
import errno
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from spanlite.cli import main
from spanlite.codec import BatchView
from spanlite.errors import ServiceError, UsageError
from spanlite_collectors.batching import Batcher
from spanlite_collectors.commands import import_
from spanlite_collectors.delivery import (
    KafkaSink,
    Message,
    Numbering,
    Outbox,
    Role,
    Spool,
    add_delivery_arguments,
    open_sink,
)
from spanlite_collectors.delivery.arguments import open_spool
from spanlite_collectors.delivery.spool import Room, SpoolFullError
from spanlite_collectors.delivery.transport import Listener

MakeSpans = Callable[..., pa.RecordBatch]


class SilentTransport:
    """A broker that takes everything and never answers; or none at all."""

    def __init__(self, up: bool) -> None:
        self.up = up
        self.sent: list[Message] = []

    def ready(self) -> bool:
        return self.up

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def poll(self, listener: Listener) -> None:
        """Nothing has happened."""

    def close(self) -> None:
        """Nothing to let go of."""


class RejectingTransport(SilentTransport):
    """Refuses what has spans in it, and takes the rest."""

    def poll(self, listener: Listener) -> None:
        sent, self.sent = self.sent, []
        for message in sent:
            if message.spans:
                listener.rejected(message, "too large")
            else:
                listener.delivered(message)


def sink_with(
    transport: SilentTransport, spool: Spool | None, batch_spans: int = 100, buckets: int = 4
) -> KafkaSink:
    outbox = Outbox(transport, spool, stall_s=0.1)
    batcher = Batcher(batch_spans=batch_spans, batch_age_s=1e9)
    return KafkaSink(outbox, Numbering("test", buckets), batcher, block=False)


def wait_until_spooling(sink: KafkaSink) -> None:
    while not sink.stats().spooling:
        time.sleep(0.01)


def left_in(folder: Path) -> list[BatchView]:
    spool = Spool(folder)
    views = [BatchView(found[1]) for found in iter(spool.pop, None)]
    spool.close()
    return views


def drops_of(views: list[BatchView]) -> Counter[str]:
    out: Counter[str] = Counter()
    for view in views:
        for drop in view.header.drops:
            out[drop.reason] += drop.spans
    return out


def test_there_is_room_for_what_was_taken_when_the_spool_is_full(
    tmp_path: Path, make_spans: MakeSpans
) -> None:
    sink = sink_with(
        SilentTransport(False), Spool(tmp_path, max_bytes=20_000, reserved_bytes=9_000)
    )
    sink.write(make_spans(100, per_trace=100), {})
    wait_until_spooling(sink)
    written, first = 100, 101
    while not sink.overloaded:
        sink.write(make_spans(100, first_id=first, per_trace=100), {})
        written, first = written + 100, first + 100
    sink.write(make_spans(40, first_id=first), {})  # in batches that are not full
    dropped = sink.stats().dropped_spans.get("spool_full", 0)
    sink.close()
    assert sink.stats().dropped_spans.get("spool_full", 0) == dropped
    views = left_in(tmp_path)
    assert sum(view.count for view in views) == written + 40 - dropped
    assert drops_of(views)["spool_full"] == dropped


def test_a_sender_is_told_to_wait_before_what_was_taken_fills_the_rest(
    tmp_path: Path, make_spans: MakeSpans
) -> None:
    sink = sink_with(SilentTransport(False), Spool(tmp_path, max_bytes=20_000), batch_spans=10_000)
    wait_until_spooling(sink)
    first = 1
    while not sink.overloaded:
        sink.write(make_spans(10, first_id=first), {})
        first += 10
    assert first > 100
    assert sink.stats().spool_messages == 0  # all of it waits in batches
    sink.close()
    assert sum(view.count for view in left_in(tmp_path)) == first - 1


def test_what_has_no_room_is_told_by_the_next_run_and_by_the_exit_code(
    tmp_path: Path, make_spans: MakeSpans
) -> None:
    sink = sink_with(SilentTransport(False), Spool(tmp_path, max_bytes=1), batch_spans=1000)
    sink.write(make_spans(500), {})
    sink.drop("head_sampled", 7)
    with pytest.raises(ServiceError, match=r"\d+ spans that were taken .*the next run tells"):
        sink.close()
    views = left_in(tmp_path)
    kept = sum(view.count for view in views)
    assert 0 < kept < 500
    assert drops_of(views) == {"spool_full": 500 - kept, "head_sampled": 7}


def test_a_full_disk_is_told_too(
    tmp_path: Path, make_spans: MakeSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_with(SilentTransport(False), Spool(tmp_path))
    sink.write(make_spans(10), {})

    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ServiceError, match=r"10 spans .*nothing tells the ledger"):
        sink.close()
    assert sink.stats().dropped_spans == {"spool_full": 10}


def test_numbered_batches_that_have_no_room_show_as_a_gap(
    tmp_path: Path, make_spans: MakeSpans
) -> None:
    transport = SilentTransport(True)
    sink = sink_with(transport, Spool(tmp_path, max_bytes=1), batch_spans=10)
    sink.write(make_spans(400, per_trace=10), {})
    with pytest.raises(ServiceError, match="the next run tells the ledger"):
        sink.close(timeout_s=0)
    views = left_in(tmp_path)
    kept = Counter[int]()
    told = Counter[int]()
    for view in views:
        kept[view.header.bucket] += view.count
        told[view.header.bucket] = view.header.spans_before + view.count
    assert sum(kept.values()) == 400 - sink.stats().lost_spans < 400
    assert sum(told.values()) == 400  # so the job counts what is not there as lost


def test_a_refused_last_batch_shows_as_a_gap(tmp_path: Path, make_spans: MakeSpans) -> None:
    transport = RejectingTransport(True)
    sink = sink_with(transport, None, buckets=1)
    sink.write(make_spans(30), {})
    sink.flush()
    assert sink.stats().lost_spans == 30
    sent: list[Message] = []
    transport.send = sent.append  # type: ignore[method-assign]
    with pytest.raises(ServiceError):  # nobody answers for the last one here
        sink.close(timeout_s=0.1)
    assert [(m.spans, BatchView(m.payload).header.spans_before) for m in sent] == [(0, 30)]


def test_without_a_spool_drops_that_nobody_heard_of_are_said(make_spans: MakeSpans) -> None:
    sink = sink_with(SilentTransport(False), None)
    sink.drop("invalid_id", 3)
    with pytest.raises(ServiceError, match="how many spans were dropped could not be told"):
        sink.close(timeout_s=0.1)


def named(spans: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    at = spans.schema.get_field_index("name")
    column = pa.array(names).dictionary_encode()
    return spans.set_column(at, spans.schema.field(at), column)


def test_a_span_too_large_to_send_is_dropped_alone_and_said(
    tmp_path: Path, make_spans: MakeSpans, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = sink_with(SilentTransport(False), Spool(tmp_path))
    names = ["small"] * 9
    names[4] = np.random.default_rng(1).bytes(9 << 20).hex()  # 18 MiB
    sink.write(named(make_spans(9, per_trace=9), names), {})
    sink.close()
    assert sink.stats().dropped_spans == {"too_large": 1}
    assert sink.stats().lost_spans == 0
    views = left_in(tmp_path)
    assert sum(view.count for view in views) == 8
    assert drops_of(views) == {"too_large": 1}
    [error] = import_._say_delivered(sink, begun=True)
    assert "1 spans were dropped as too_large" in error
    assert "1 too_large" in capsys.readouterr().err


def test_an_import_that_could_not_send_a_span_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "small", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps([event, event | {"name": "n" * (17 << 20)}]))
    sink = sink_with(SilentTransport(False), Spool(tmp_path / "spool"))
    monkeypatch.setattr(import_, "open_sink", lambda *_: sink)
    assert main(["import", str(trace)]) == 2
    assert "1 spans were dropped as too_large" in capsys.readouterr().err
    assert sum(view.count for view in left_in(tmp_path / "spool")) == 1


@pytest.mark.parametrize(
    ("resource", "reason"),
    [({"a": "\ud800"}, "malformed"), ({"a": "x" * (17 << 20)}, "too_large")],
)
def test_a_resource_that_cannot_be_sent_drops_its_spans_at_once(
    tmp_path: Path, make_spans: MakeSpans, resource: dict[str, str], reason: str
) -> None:
    sink = sink_with(SilentTransport(False), Spool(tmp_path), batch_spans=10_000, buckets=1)
    sink.write(make_spans(2000), resource)
    sink.write(make_spans(5, first_id=5000), {})
    sink.close()
    assert sink.stats().dropped_spans == {reason: 2000}
    views = left_in(tmp_path)
    assert sum(view.count for view in views) == 5
    assert drops_of(views) == {reason: 2000}


def test_the_reserve_is_for_what_was_taken(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=2_000, reserved_bytes=1_000)
    while spool.has_room:
        spool.append(os.urandom(100))
    with pytest.raises(SpoolFullError):
        spool.append(b"new")
    while spool.has(Room.RESERVED):
        spool.append(os.urandom(100), room=Room.RESERVED)
    assert 2_000 <= spool.size_bytes < 2_300
    with pytest.raises(SpoolFullError):
        spool.append(b"taken", room=Room.RESERVED)
    spool.append(b"account", room=Room.ANY)
    spool.close()


def test_a_spool_that_cannot_be_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    for root in (file, file / "below"):
        with pytest.raises(ServiceError, match="cannot be used"):
            open_spool(root, "spans.raw", 1 << 20)

    def read_only(*_: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(ServiceError, match="Read-only file system; give --spool a folder"):
        open_spool(tmp_path / "spool", "spans.raw", 1 << 20)


@pytest.mark.parametrize("flag", ["--producer", "--topic", "--bootstrap"])
def test_words_that_are_no_text_are_said(flag: str) -> None:
    parser = argparse.ArgumentParser()
    add_delivery_arguments(parser)
    args = parser.parse_args([flag, "a\udcff", "--no-spool"])
    with pytest.raises(UsageError, match=f"{flag} is not text"):
        open_sink(args, Role("test", needs_broker=False))
