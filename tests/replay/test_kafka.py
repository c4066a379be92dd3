"""`--target kafka` against a real broker: every span arrives once, as a collector sends it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from spanlite.bucket import bucket_of
from spanlite.codec import Batch, decode_batch
from spanlite.topics import bucket_key, partition_of
from spanlite_stack import StackInfo

pytestmark = pytest.mark.stack

Run = Callable[..., tuple[int, str, str]]
HOUR = 1_796_108_400_000_000_000
MS = 1_000_000
TRACES, BUCKETS = 60, 4
ROWS = 3 * TRACES


def the_spans(make: Callable[..., pa.RecordBatch]) -> pa.RecordBatch:
    """Traces of a step and two kernels, 2 ms apart; each step links to the trace before."""
    number = np.arange(ROWS)
    trace, place = number // 3, number % 3
    links = [
        [{"trace_id_low": int(t), "trace_id_high": 9, "span_id": 1000 + 3 * (int(t) - 1)}]
        if p == 0 and t > 0
        else None
        for t, p in zip(trace, place, strict=True)
    ]
    return make(
        trace_id_low=trace + 1,
        trace_id_high=np.full(ROWS, 9),
        span_id=1000 + number,
        parent_span_id=np.where(place == 0, 0, 1000 + number - place),
        start_ns=HOUR + number * 2 * MS,
        duration_ns=np.where(place == 0, 5 * MS, MS),
        kind=np.where(place == 0, 9, 1),
        name=pa.array(["step" if p == 0 else f"gemm {p}" for p in place]).dictionary_encode(),
        stream=np.where(place == 0, -1, 7),
        grid_x=np.where(place == 0, 0, 132),
        bytes=number,
        links=links,
    )


@pytest.fixture
def archive(
    tmp_path: Path,
    make_spans: Callable[..., pa.RecordBatch],
    write_archive: Callable[..., Path],
) -> Path:
    resource = {"service.name": "llm", "host.name": "h", "process.pid": 4}
    return write_archive(tmp_path / "archive", the_spans(make_spans), resource, 2)


def read_topic(stack: StackInfo, topic: str, partitions: int = 8) -> list[Batch]:
    """All batches up to the end, keys and partitions checked."""
    consumer = Consumer(
        {"bootstrap.servers": stack.bootstrap, "group.id": "t", "enable.auto.commit": False}
    )
    left = {}
    for number in range(partitions):
        place = TopicPartition(topic, number, 0)
        low, high = consumer.get_watermark_offsets(place, timeout=30)
        if high > low:
            left[number] = high
    consumer.assign([TopicPartition(topic, number, 0) for number in left])
    batches = []
    while left:
        message = consumer.poll(30)
        assert message is not None and message.error() is None
        batch = decode_batch(message.value())
        assert message.key() == bucket_key(batch.header.bucket)
        assert message.partition() == partition_of(batch.header.bucket, partitions)
        if message.offset() + 1 >= left[message.partition()]:
            del left[message.partition()]
        batches.append(batch)
    consumer.close()
    return batches


def rows_of(batches: list[Batch]) -> list[dict[str, object]]:
    rows = [row for batch in batches for row in batch.spans.to_pylist()]
    return sorted(rows, key=lambda row: row["start_ns"])  # type: ignore[arg-type, return-value]


def check_numbering(batches: list[Batch]) -> None:
    """`seq` and `spans_before` leave no gap in any bucket."""
    seen: dict[int, tuple[int, int]] = {}
    for batch in batches:
        header = batch.header
        assert (header.seq, header.spans_before) == seen.get(header.bucket, (0, 0))
        seen[header.bucket] = header.seq + 1, header.spans_before + header.span_count
        low, high = (batch.spans.column(f"trace_id_{h}").to_numpy() for h in ("low", "high"))
        assert (bucket_of(low, high, header.bucket_count) == header.bucket).all()


def test_every_span_once_with_new_ids_and_times(
    spanlite: Run, archive: Path, stack: StackInfo, new_topic: Callable[[int], str]
) -> None:
    topic = new_topic(8)
    start = HOUR + 24 * 3600 * 10**9 - 10**9
    flags = ["--target", "kafka", "--bootstrap", stack.bootstrap, "--topic", topic, "--no-wait"]
    flags += ["--replay-id", "again", "--start-at", str(start), "--speed", "2", "--json"]
    code, out, _ = spanlite("replay", archive, *flags)
    report = json.loads(out)
    assert code == 0 and report["closes"]
    assert report["fates"]["launched"] == {"events": ROWS, "spans": ROWS}
    batches = read_topic(stack, topic)
    assert len(batches) == report["facts"]["messages"]
    check_numbering(batches)
    for batch in batches:
        assert batch.header.producer == "replay/again"
        assert batch.resource == {
            "service.name": "llm",
            "host.name": "h",
            "process.pid": 4,
            "spanlite.replay_id": "again",
        }
    rows = rows_of(batches)
    assert [row["start_ns"] for row in rows] == [start + i * MS for i in range(ROWS)]
    assert [row["bytes"] for row in rows] == list(range(ROWS))
    assert [row["duration_ns"] for row in rows[:3]] == [5 * MS // 2, MS // 2, MS // 2]
    assert {row["grid_x"] for row in rows} == {0, 132}
    traces = [(row["trace_id_low"], row["trace_id_high"]) for row in rows]
    assert len(set(traces)) == TRACES and not {high for _, high in traces} & {9}
    for i, row in enumerate(rows):
        step = rows[i - i % 3]
        assert row["parent_span_id"] == (0 if row is step else step["span_id"])
        assert traces[i] == traces[i - i % 3]
        if row is step and i > 0:
            (link,) = row["links"]  # type: ignore[misc]
            assert (link["trace_id_low"], link["trace_id_high"]) == traces[i - 3]
            assert link["span_id"] == rows[i - 3]["span_id"]


def test_a_trace_as_a_whole_keeps_its_inside(
    spanlite: Run, archive: Path, stack: StackInfo, new_topic: Callable[[int], str]
) -> None:
    topic = new_topic(3)
    flags = ["--target", "kafka", "--bootstrap", stack.bootstrap, "--topic", topic]
    flags += ["--unit", "trace", "--qps", "1000", "--over", "delay", "--json"]
    code, out, _ = spanlite("replay", archive, *flags)
    report = json.loads(out)
    assert code == 0 and report["fates"]["launched"] == {"events": TRACES, "spans": ROWS}
    assert report["timing"]["achieved_per_s"] > 0
    rows = rows_of(read_topic(stack, topic, 3))
    assert len(rows) == ROWS
    for first in range(0, ROWS, 3):
        starts = [int(row["start_ns"]) for row in rows[first : first + 3]]  # type: ignore[call-overload]
        assert np.diff(starts).tolist() == [2 * MS, 2 * MS]


def test_two_replays_share_no_trace(
    spanlite: Run, archive: Path, stack: StackInfo, new_topic: Callable[[int], str]
) -> None:
    topic = new_topic(8)
    flags = ["--target", "kafka", "--bootstrap", stack.bootstrap, "--topic", topic, "--no-wait"]
    for _ in range(2):
        assert spanlite("replay", archive, *flags)[0] == 0
    batches = read_topic(stack, topic)
    by_replay: dict[str, set[tuple[object, object]]] = {}
    for batch in batches:
        ids = {(row["trace_id_low"], row["trace_id_high"]) for row in batch.spans.to_pylist()}
        by_replay.setdefault(batch.header.producer, set()).update(ids)
    one, two = by_replay.values()
    assert len(one) == len(two) == TRACES and not one & two


def test_ctrl_c_sends_what_was_launched_and_nothing_else(
    archive: Path, stack: StackInfo, new_topic: Callable[[int], str]
) -> None:
    topic = new_topic(8)
    words = ["replay", str(archive), "--target", "kafka", "--bootstrap", stack.bootstrap]
    words += ["--topic", topic, "--speed", "1/20", "--json"]
    child = subprocess.Popen(
        [sys.executable, "-m", "spanlite.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    while not (line := child.stderr.readline()).startswith("replaying"):
        assert line, "it ended before it began"
    time.sleep(3)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    report = json.loads(out)
    assert child.returncode == 130 and report["closes"]
    launched = report["fates"]["launched"]["spans"]
    assert 0 < launched < ROWS
    batches = read_topic(stack, topic)
    check_numbering(batches)
    assert [row["bytes"] for row in rows_of(batches)] == list(range(launched))


def test_a_missing_topic_is_named(spanlite: Run, archive: Path, stack: StackInfo) -> None:
    flags = ["--target", "kafka", "--bootstrap", stack.bootstrap, "--topic", "no.such.topic"]
    code, _, err = spanlite("replay", archive, *flags)
    assert code == 2 and "no topic 'no.such.topic'" in err
