"""Spans do not depend on how the records were cut into drains."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from ring_writer import RingWriter, write_recording
from spanlite_collectors.agent.convert import Converter
from spanlite_collectors.agent.layout import RecordType
from spanlite_collectors.agent.process import Patience, ProcessSpans
from spanlite_collectors.agent.ring import Ring
from spanlite_collectors.sinks import MemorySink

SECOND = 1_000_000_000


class Process:
    def __init__(self, folder):
        self.sink = MemorySink()
        self.writer = RingWriter(folder)
        self.ring = Ring(self.writer.path)
        patience = Patience(grace_ns=SECOND // 5, hold_ns=5 * SECOND)
        self.spans = ProcessSpans(self.sink, {}, "test", patience)
        self.converter = Converter(self.spans.texts)

    def drain(self, now_ns: int, final: bool = False) -> None:
        count, records, strings = self.ring.drain()
        assert count >= 0
        if count:
            self.spans.take(self.converter.convert(records, strings))
        self.spans.flush(now_ns, final)

    def described(self) -> Counter:
        """Each span with its parent and trace, by names and times: ids differ."""
        rows = [row for batch, _ in self.sink.written for row in batch.to_pylist()]
        by_id = {row["span_id"]: row for row in rows}
        assert len(by_id) == len(rows)
        out = Counter()
        for row in rows:
            parent = by_id.get(row["parent_span_id"], {"name": None, "start_ns": None})
            out[
                row["name"], row["kind"], row["start_ns"], row["duration_ns"], row["attributes"],
                row["flags"], parent["name"], parent["start_ns"], row["trace_id_low"],
                json.dumps([link["trace_id_low"] for link in row["links"] or ()]),
            ] += 1  # fmt: skip
        return out


def test_small_drains_give_what_one_large_one_gives(tmp_path, recording):
    records = [r for r in recording("eager_s1") if r["t"] in ("kernel", "api", "memcpy", "nvtx")]
    whole = Process(tmp_path / "whole")
    write_recording(whole.writer, records)
    whole.drain(0, final=True)

    # CUPTI's records come some 0.1 s after their end, ranges at once.
    def comes(record):
        return record["end"] + (0 if record["t"] == "nvtx" else SECOND // 10)

    pieces = Process(tmp_path / "pieces")
    records.sort(key=comes)
    write_recording(pieces.writer, [])
    now, at = comes(records[0]), 0
    while at < len(records):
        now += SECOND // 100
        end = next((i for i in range(at, len(records)) if comes(records[i]) > now), len(records))
        write_recording(pieces.writer, records[at:end])
        pieces.drain(now)
        at = end
    written_before_the_end = pieces.sink.span_count
    pieces.drain(now, final=True)
    assert pieces.described() == whole.described()
    assert written_before_the_end > 0


def test_nothing_waits_for_ever(tmp_path, recording):
    records = recording("graph_node_s1")
    process = Process(tmp_path)
    write_recording(process.writer, records)
    last = max(r["end"] for r in records if "end" in r)
    process.drain(last)
    waiting = process.spans.waiting
    process.drain(last + 60 * SECOND)
    assert waiting > 0
    assert process.spans.waiting == 0


def test_forgotten_texts_do_not_mix_up_names(tmp_path, recording):
    records = recording("eager_s1")
    plain, tight = Process(tmp_path / "plain"), Process(tmp_path / "tight")
    tight.spans.texts._least = tight.spans.texts._keep = 8
    for process in (plain, tight):
        for first in range(0, len(records), 500):
            write_recording(process.writer, records[first : first + 500])
            process.drain(0)
        process.drain(0, final=True)
    assert tight.described() == plain.described()


def test_threads_that_drain_rings_of_their_own_do_not_mix_them(tmp_path):
    def fill_and_drain(number: int) -> list[tuple[int, int]]:
        writer = RingWriter(tmp_path / str(number), capacity=4 << 20)
        ring, found = Ring(writer.path), []
        for first in range(0, 2_000, 5):
            for step in range(first, first + 5):
                writer.write(RecordType.STEP, number=step, thread_id=number)
            _, records, _ = ring.drain()
            rows = records.get(RecordType.STEP)
            found += [] if rows is None else [(int(r["thread_id"]), int(r["number"])) for r in rows]
        return found

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(fill_and_drain, range(4)))
    assert found == [[(number, step) for step in range(2_000)] for number in range(4)]


def test_work_is_not_given_to_a_call_of_an_earlier_window(tmp_path):
    """CUPTI counts ids anew when it attaches again; the kernel comes before its call."""
    process = Process(tmp_path)
    begin = 1_796_143_900 * SECOND
    for window in (1, 2):
        start = begin + window * 2 * SECOND
        writer = process.writer
        writer.write(
            RecordType.API, start_ns=start, end_ns=start + 1000, thread_id=7, correlation_id=5,
            call=211, domain=1, window=window,
        )  # fmt: skip
        writer.write(
            RecordType.KERNEL, start_ns=start + 2000, end_ns=start + 3000, correlation_id=5,
            window=window, name=writer.text("k"),
        )  # fmt: skip
        writer.write(
            RecordType.WINDOW, open_ns=start - 1, close_ns=start + 5000, window=window, level=2
        )
        process.drain(start + SECOND // 20)
        process.drain(start + SECOND)
    process.drain(0, final=True)
    kernels = [row for row in process.described() if row[0] == "k"]
    assert sorted(row[2] - row[7] for row in kernels) == [2000, 2000]


@pytest.mark.parametrize("windows", [2, 5])
def test_windows_in_quick_succession_keep_their_calls(tmp_path, windows):
    """Calls with the same ids as those whose kernels still wait, from each next window."""
    process = Process(tmp_path)
    begin = 1_796_143_900 * SECOND
    writer = process.writer
    for window in range(1, windows + 1):
        start = begin + window * SECOND // 2
        for number in range(3):
            at, where = start + number * 100_000, {"correlation_id": 7 + number, "window": window}
            writer.write(
                RecordType.API, start_ns=at, end_ns=at + 1000, thread_id=7, call=211, domain=1,
                **where,
            )  # fmt: skip
            writer.write(
                RecordType.KERNEL, start_ns=at + 2000 + window, end_ns=at + 3000,
                name=writer.text("k"), **where,
            )  # fmt: skip
        process.drain(start + SECOND // 4)
    process.drain(begin + windows * SECOND)
    for window in range(1, windows + 1):  # what closed them comes last
        start = begin + window * SECOND // 2
        writer.write(
            RecordType.WINDOW, open_ns=start - 1, close_ns=start + SECOND // 8, window=window,
            level=2,
        )  # fmt: skip
    process.drain(begin + (windows + 3) * SECOND)
    process.drain(0, final=True)
    kernels = [row for row in process.described() if row[0] == "k"]
    expected = sorted(2000 + window for window in range(1, windows + 1) for _ in range(3))
    assert sorted(row[2] - row[7] for row in kernels) == expected


def test_a_window_after_a_continuous_stretch_keeps_its_own_calls(tmp_path):
    """Ids begin anew in it, and its kernels come before its calls: those of the stretch before,
    which has the number before, are still there."""
    process = Process(tmp_path)
    begin = 1_796_143_900 * SECOND
    writer = process.writer
    for window, level in ((1, 3), (2, 2)):
        start = begin + window * 2 * SECOND
        where = {"correlation_id": 20, "window": window}
        call = {"thread_id": 7, "call": 211, "domain": 1}
        closed = {"open_ns": start - 1, "close_ns": start + 5000, "window": window}
        kernel = {"start_ns": start + 2000, "end_ns": start + 3000, "name": writer.text("k")}
        writer.write(RecordType.WINDOW, level=level, reason=level if level == 3 else 0, **closed)
        if window == 2:
            writer.write(RecordType.KERNEL, **kernel, **where)
            process.drain(start + SECOND // 20)
            process.drain(start + SECOND // 10)
        writer.write(RecordType.API, start_ns=start, end_ns=start + 1000, **call, **where)
        if window == 1:
            writer.write(RecordType.KERNEL, **kernel, **where)
        process.drain(start + SECOND // 2)
        process.drain(start + SECOND)
    process.drain(0, final=True)
    kernels = [row for row in process.described() if row[0] == "k"]
    assert sorted(row[2] - row[7] for row in kernels) == [2000, 2000]
