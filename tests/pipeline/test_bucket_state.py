"""The work of one bucket, without Flink: what is decided, written, counted and remembered."""

from __future__ import annotations

from typing import Any

import pytest
from spanlite.archive.layout import hour_folder
from spanlite.codec import Batch
from spanlite.codec.lite import encode_lite
from spanlite.v1 import spanlite_pb2 as pb
from spanlite_pipeline.bucket_state import Bucket
from spanlite_pipeline.settings import BucketSettings
from spanlite_pipeline.state import MemoryStore

NOW_MS = 1_764_576_000_000
ERRORS_ONLY = (
    "policies:\n  - {name: errors, type: status_code, status_code: {status_codes: [ERROR]}}\n"
)
QUICK = {"bucket_count": 4, "decision_wait_ms": 1000, "flush_interval_ms": 100}


def make(store: MemoryStore | None = None, **settings: Any) -> Bucket:
    return Bucket(
        1, store if store is not None else MemoryStore(), BucketSettings(**(QUICK | settings))
    )


def test_a_trace_is_written_once_it_is_quiet_and_whole(kit: Any) -> None:
    bucket, producer = make(), kit.Producer()
    (trace,) = kit.trace_ids(1)
    first = kit.message(producer.batch([kit.Span(trace, 1), kit.Span(trace, 2, 1)]))
    second = kit.message(producer.batch([kit.Span(trace, 3, 1)]))
    out = bucket.accept(first, NOW_MS) + bucket.flush(NOW_MS + 900)
    out += bucket.accept(second, NOW_MS + 950) + bucket.flush(NOW_MS + 1100)
    assert kit.read_outputs(out).spans == []  # the second batch kept it open
    assert bucket.open_spans == 3
    read = kit.read_outputs(bucket.flush(NOW_MS + 1950))
    assert [row["span_id"] for row in read.spans] == [1, 2, 3]
    assert bucket.open_spans == 0
    assert not bucket.busy
    assert read.folders[0] == f"incoming/{hour_folder(kit.T0_NS)}/bucket=1"


def test_the_row_of_a_trace_sums_it_up(kit: Any) -> None:
    bucket, producer = make(), kit.Producer()
    (trace,) = kit.trace_ids(1)
    start = kit.T0_NS
    late_root = kit.Span(trace, 9, 0, start + 50, 10, name="late root", kind=9)
    out = bucket.accept(kit.message(producer.batch([late_root])), NOW_MS)
    root = kit.Span(trace, 1, 0, start - 7, 100, name="decode", kind=9)
    kernel = kit.Span(trace, 2, 1, start + 20, 400, status=2)
    out += bucket.accept(kit.message(producer.batch([kernel, root])), NOW_MS)
    (row,) = kit.read_outputs(out + bucket.flush(NOW_MS, drain=True)).traces
    assert (row["start_ns"], row["end_ns"]) == (start - 7, start + 420)
    assert (row["spans"], row["errors"]) == (3, 1)
    assert (row["device_spans"], row["device_ns"]) == (1, 400)
    assert (row["root_name"], row["root_kind"]) == ("decode", "step")
    assert (row["service"], row["host"], row["bucket"]) == ("llm", "host-0", 1)
    assert (row["kept"], row["policy"], row["sampling_weight"]) == (True, "keep-all", 1.0)
    assert row["late"] is False


def test_late_spans_follow_their_trace_even_after_a_restart(kit: Any) -> None:
    store, producer = MemoryStore(), kit.Producer()
    bad, good = kit.trace_ids(2)
    bucket = make(store, rules=ERRORS_ONLY)
    spans = [kit.Span(bad, 1, status=2), kit.Span(good, 2)]
    out = bucket.accept(kit.message(producer.batch(spans)), NOW_MS)
    out += bucket.flush(NOW_MS + 1000)
    bucket = make(store.snapshot(), rules=ERRORS_ONLY)
    # Alone, neither of these would be decided the way its trace was.
    late = [kit.Span(bad, 3), kit.Span(good, 4, status=2)]
    out += bucket.accept(kit.message(producer.batch(late)), NOW_MS + 1200)
    out += bucket.flush(NOW_MS + 1300)
    read = kit.read_outputs(out)
    assert [row["span_id"] for row in read.spans] == [1, 3]
    late_rows = [(row["spans"], row["kept"]) for row in read.traces if row["late"]]
    assert sorted(late_rows) == [(1, False), (1, True)]
    assert bucket.open_spans == 0


def test_a_decision_is_forgotten_after_its_time(kit: Any) -> None:
    producer = kit.Producer()
    (trace,) = kit.trace_ids(1)
    bucket = make(rules=ERRORS_ONLY, decision_ttl_ms=5000)
    out = bucket.accept(kit.message(producer.batch([kit.Span(trace, 1)])), NOW_MS)
    out += bucket.flush(NOW_MS + 1000) + bucket.flush(NOW_MS + 7000)
    late = kit.message(producer.batch([kit.Span(trace, 2, status=2)]))
    out += bucket.accept(late, NOW_MS + 8000) + bucket.flush(NOW_MS + 9000)
    assert [row["span_id"] for row in kit.read_outputs(out).spans] == [2]


def test_a_repeated_batch_is_dropped_and_a_gap_counted(kit: Any) -> None:
    bucket, producer = make(), kit.Producer(epoch=NOW_MS * 1_000_000)
    traces = kit.trace_ids(4)
    batches = [producer.batch([kit.Span(t, i + 1)] * 5) for i, t in enumerate(traces)]
    for at in (1, 1, 3):  # 0 and 2 never come
        assert bucket.accept(kit.message(batches[at]), NOW_MS) == []
    read = kit.read_outputs(bucket.flush(NOW_MS, drain=True))
    assert len(read.spans) == 10
    assert read.dropped("pipeline") == {"duplicate": 5}
    assert read.dropped("wire") == {"lost": 10}
    assert read.sums("wire") == {"in": 20, "out": 10, "dropped": 10, "open": 0}


def test_a_batch_that_comes_out_of_order_is_not_lost(kit: Any) -> None:
    bucket, producer = make(), kit.Producer(epoch=NOW_MS * 1_000_000)
    (trace,) = kit.trace_ids(1)
    batches = [producer.batch([kit.Span(trace, at + 1)] * (at + 1)) for at in range(4)]
    for at in (2, 0, 3, 0, 1, 2, 3):
        bucket.accept(kit.message(batches[at]), NOW_MS)
    read = kit.read_outputs(bucket.flush(NOW_MS, drain=True))
    assert len(read.spans) == 1 + 2 + 3 + 4
    assert read.dropped("pipeline") == {"duplicate": 1 + 3 + 4}
    assert read.sums("wire") == {"in": 10, "out": 10, "dropped": 0, "open": 0}


def test_a_new_epoch_starts_counting_anew(kit: Any) -> None:
    bucket = make()
    for epoch in (1, 2):
        producer = kit.Producer(epoch=epoch)
        bucket.accept(kit.message(producer.batch([kit.Span(kit.trace_ids(1)[0], epoch)])), NOW_MS)
    read = kit.read_outputs(bucket.flush(NOW_MS, drain=True))
    assert [row["span_id"] for row in read.spans] == [1, 2]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "empty"),
        (b"\x0a\xff\xff\xff\xff\x0f", "malformed"),
        (b"\x0a", "malformed"),
        (b"\xff\xff\xff", "malformed"),
    ],
)
def test_what_cannot_be_read_is_a_dead_letter(kit: Any, value: bytes, reason: str) -> None:
    bucket = make()
    out = bucket.accept(kit.message(value, offset=17), NOW_MS) + bucket.flush(NOW_MS)
    read = kit.read_outputs(out)
    (letter,) = read.dead
    assert (letter.reason, letter.payload, letter.offset) == (reason, value, 17)
    assert letter.topic == "spans.raw"
    assert letter.detail
    assert [r["messages"] for r in read.ledger if r["direction"] == "dropped"] == [1]
    assert kit.read_outputs(bucket.flush(NOW_MS, drain=True)).spans == []


def test_a_damaged_batch_counts_its_spans_and_the_job_goes_on(kit: Any) -> None:
    bucket, producer = make(), kit.Producer()
    (trace,) = kit.trace_ids(1)
    damaged = producer.batch([kit.Span(trace, 1)] * 3)
    out = bucket.accept(kit.message(damaged[:-9]), NOW_MS)
    out += bucket.accept(kit.message(producer.batch([kit.Span(trace, 2)])), NOW_MS)
    read = kit.read_outputs(out + bucket.flush(NOW_MS, drain=True))
    assert [row["span_id"] for row in read.spans] == [2]
    assert read.dropped("pipeline") == {"malformed": 3}
    assert read.sums("pipeline") == {"in": 4, "out": 1, "dropped": 3, "open": 0}


def test_a_batch_of_another_bucket_count_is_refused(kit: Any) -> None:
    producer = kit.Producer(bucket_count=8)
    (trace,) = kit.trace_ids(1, buckets=8)
    out = make().accept(kit.message(producer.batch([kit.Span(trace, 1)])), NOW_MS)
    assert [letter.reason for letter in kit.read_outputs(out).dead] == ["wrong_bucket"]


def test_messages_of_one_span_are_gathered_and_survive_a_restart(kit: Any) -> None:
    store = MemoryStore()
    bucket = make(store)
    traces = kit.trace_ids(3)
    spans = [kit.Span(trace, i + 1, start_ns=kit.T0_NS + 7) for i, trace in enumerate(traces)]
    batch = Batch(pb.BatchHeader(), kit.record_batch(spans), {"service.name": "web"})
    out = []
    for at, value in enumerate(encode_lite(batch)):
        out += bucket.accept(kit.message(value, at), NOW_MS)
    assert bucket.busy
    bucket = make(store.snapshot())
    out += bucket.accept(kit.message(b"\x99", 3), NOW_MS)
    read = kit.read_outputs(out + bucket.flush(NOW_MS, drain=True))
    assert sorted(row["span_id"] for row in read.spans) == [1, 2, 3]
    assert {(row["service"], row["start_ns"]) for row in read.spans} == {("web", kit.T0_NS + 7)}
    assert [(letter.reason, letter.offset) for letter in read.dead] == [("malformed", 3)]
    assert read.sums("pipeline") == {"in": 3, "out": 3, "dropped": 0, "open": 0}


def test_a_huge_trace_is_decided_at_once_and_does_not_pile_up(kit: Any) -> None:
    store, producer = MemoryStore(), kit.Producer()
    (trace,) = kit.trace_ids(1)
    bucket = make(store, max_trace_spans=1000, decision_wait_ms=3_600_000)
    out, most = [], 0
    for part in range(40):
        spans = [kit.Span(trace, 1 + part * 200 + i) for i in range(200)]
        out += bucket.accept(kit.message(producer.batch(spans)), NOW_MS)
        most = max(most, bucket.open_spans)
    assert most <= 1400
    read = kit.read_outputs(out + bucket.flush(NOW_MS, drain=True))
    assert sorted(row["span_id"] for row in read.spans) == list(range(1, 8001))


def test_state_is_bounded_by_deciding_the_oldest_traces_early(kit: Any) -> None:
    store, producer = MemoryStore(), kit.Producer()
    bucket = make(store, max_pending_bytes=20_000, decision_wait_ms=3_600_000)
    out = []
    for at, trace in enumerate(kit.trace_ids(200)):
        spans = [kit.Span(trace, 1 + at * 10 + i) for i in range(10)]
        out += bucket.accept(kit.message(producer.batch(spans)), NOW_MS + at)
        held = sum(len(v) for k, v in store.items() if k.startswith("b/"))
        assert held <= 20_000
    read = kit.read_outputs(out + bucket.flush(NOW_MS, drain=True))
    assert sorted(row["span_id"] for row in read.spans) == list(range(1, 2001))
    assert all(row["spans"] == 10 for row in read.traces)


def test_nothing_is_left_in_the_store_but_what_late_spans_need(kit: Any) -> None:
    store, producer = MemoryStore(), kit.Producer()
    bucket = make(store)
    for at, trace in enumerate(kit.trace_ids(20)):
        bucket.accept(kit.message(producer.batch([kit.Span(trace, at + 1)])), NOW_MS + 100 * at)
        bucket.flush(NOW_MS + 100 * at)
    bucket.flush(NOW_MS + 10_000)
    assert {key.split("/")[0] for key, _ in store.items()} <= {"m", "g", "p", "c"}
    bucket.flush(NOW_MS + 48 * 3_600_000)
    assert {key.split("/")[0] for key, _ in store.items()} == {"m", "g"}


def test_head_sampling_multiplies_the_weight(kit: Any) -> None:
    bucket, producer = make(), kit.Producer()
    (trace,) = kit.trace_ids(1)
    out = bucket.accept(
        kit.message(producer.batch([kit.Span(trace, 1)], sampling_probability=0.25)), NOW_MS
    )
    read = kit.read_outputs(out + bucket.flush(NOW_MS, drain=True))
    assert [row["sampling_weight"] for row in read.spans] == [4.0]
    assert [row["sampling_weight"] for row in read.traces] == [4.0]


def test_capture_weighs_spans_and_not_their_traces(kit: Any) -> None:
    """A window that covered every tenth step: its kernels stand for ten, the step for itself."""
    bucket, producer = make(), kit.Producer()
    (trace,) = kit.trace_ids(1)
    share = {"sampling_probability": 0.5, "capture_probability": 0.1}
    step = producer.batch([kit.Span(trace, 1, kind=9)], sampling_probability=0.5)
    kernel = producer.batch([kit.Span(trace, 2, parent=1)], **share)
    out = bucket.accept(kit.message(step), NOW_MS) + bucket.accept(kit.message(kernel), NOW_MS)
    read = kit.read_outputs(out + bucket.flush(NOW_MS, drain=True))
    assert sorted(row["sampling_weight"] for row in read.spans) == [2.0, 20.0]
    assert [row["sampling_weight"] for row in read.traces] == [2.0]


def test_drops_of_the_collector_reach_the_ledger(kit: Any) -> None:
    bucket, producer = make(), kit.Producer()
    (trace,) = kit.trace_ids(1)
    drops = [pb.DropCount(reason="ring_full", spans=7)]
    out = bucket.accept(kit.message(producer.batch([kit.Span(trace, 1)], drops=drops)), NOW_MS)
    read = kit.read_outputs(out + bucket.flush(NOW_MS, drain=True))
    assert read.dropped("collector") == {"ring_full": 7}
    assert read.sums("collector") == {"in": 8, "out": 1, "dropped": 7, "open": 0}


def test_a_batch_without_spans_brings_its_drops(kit: Any) -> None:
    bucket, producer = make(), kit.Producer()
    drops = [pb.DropCount(reason="ring_full", spans=7)]
    out = bucket.accept(kit.message(producer.batch([], drops=drops)), NOW_MS)
    read = kit.read_outputs(out + bucket.flush(NOW_MS))
    assert read.dropped("collector") == {"ring_full": 7}
    assert not bucket.busy


def test_a_batch_decided_in_part_is_not_written_again_after_a_restart(kit: Any) -> None:
    store, producer = MemoryStore(), kit.Producer()
    quiet, busy = kit.trace_ids(2)
    bucket = make(store)
    both = [kit.Span(quiet, 1), kit.Span(busy, 2), kit.Span(quiet, 3)]
    out = bucket.accept(kit.message(producer.batch(both)), NOW_MS)
    out += bucket.accept(kit.message(producer.batch([kit.Span(busy, 4)])), NOW_MS + 900)
    out += bucket.flush(NOW_MS + 1000)
    assert [row["span_id"] for row in kit.read_outputs(out).spans] == [1, 3]
    bucket = make(store.snapshot())
    assert bucket.open_spans == 2
    read = kit.read_outputs(out + bucket.flush(NOW_MS + 5000))
    assert sorted(row["span_id"] for row in read.spans) == [1, 2, 3, 4]
    assert read.sums("pipeline") == {"in": 4, "out": 4, "dropped": 0, "open": 0}
