"""Whatever comes in whatever order, with crashes anywhere: each span once, whole traces."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite_pipeline.bucket_state import Bucket
from spanlite_pipeline.frames import Message, Output
from spanlite_pipeline.settings import KEEP_ALL, BucketSettings
from spanlite_pipeline.state import MemoryStore

NOW_MS = 1_764_576_000_000
HALF = """policies:
  - {name: errors, type: status_code, status_code: {status_codes: [ERROR]}}
  - {name: half, type: probabilistic, probabilistic: {sampling_percentage: 50}}
  - {name: few, type: rare, rare: {per_minute: 8}}
"""
STEPS = st.sampled_from(
    ["message", "message", "repeat", "swap", "flush", "wait", "checkpoint", "crash"]
)


class Run:
    """A bucket under Flink's rules: outputs count once the checkpoint after them completes."""

    def __init__(self, messages: list[Message], rules: str) -> None:
        self.settings = BucketSettings(
            rules=rules, bucket_count=4, decision_wait_ms=1000, max_trace_spans=60
        )
        self.messages, self.now_ms = messages, NOW_MS
        self.committed: list[Output] = []
        self._open: list[Output] = []
        self._at = 0
        self._store = MemoryStore()
        self.bucket = Bucket(1, self._store, self.settings)
        self._saved = (self._store.snapshot(), 0)

    def message(self) -> None:
        if self._at < len(self.messages):
            self._open += self.bucket.accept(self.messages[self._at], self.now_ms)
            self._at += 1

    def repeat(self) -> None:
        """The message before comes again: a producer that was not sure."""
        if self._at:
            self.messages.insert(self._at, self.messages[self._at - 1])
            self.message()

    def swap(self) -> None:
        """A retry lets the next two change places."""
        at, there = self._at, self.messages
        if at + 1 < len(there):
            there[at], there[at + 1] = there[at + 1], there[at]

    def flush(self) -> None:
        self.now_ms += 100
        self._open += self.bucket.flush(self.now_ms)

    def wait(self) -> None:
        self.now_ms += 700

    def checkpoint(self) -> None:
        self.committed += self._open
        self._open = []
        self._saved = (self._store.snapshot(), self._at)

    def crash(self) -> None:
        self._open = []
        store, self._at = self._saved
        self._store = store.snapshot()
        self.bucket = Bucket(1, self._store, self.settings)

    def finish(self) -> list[Output]:
        while self._at < len(self.messages):
            self.message()
        self._open += self.bucket.flush(self.now_ms, drain=True)
        self.checkpoint()
        return self.committed


def make_messages(kit: Any, seed: int) -> tuple[list[Message], dict[tuple[str, int], str]]:
    """Messages of two producers, and every span's (trace, id) -> trace."""
    rng = np.random.default_rng(seed)
    traces = kit.trace_ids(12, seed)
    owner = rng.integers(0, len(traces), 240)
    owner[:40] = 0  # one long trace
    rng.shuffle(owner)
    spans = [
        kit.Span(
            traces[trace],
            at + 1,
            parent=0 if rng.random() < 0.2 else 1 + int(rng.integers(0, 240)),
            start_ns=kit.T0_NS + int(rng.integers(0, 2 * 3_600_000_000_000)),
            status=2 if rng.random() < 0.01 else 0,
            name=f"kernel_{rng.integers(0, 6)}",
        )
        for at, trace in enumerate(owner.tolist())
    ]
    producers = [kit.Producer(name="a"), kit.Producer(name="b", epoch=5)]
    out, at = [], 0
    while at < len(spans):
        size = int(rng.integers(1, 30))
        value = producers[int(rng.integers(2))].batch(spans[at : at + size])
        out.append(kit.message(value, len(out)))
        at += size
    return out, {(f"{s.trace:032x}", s.span_id): f"{s.trace:032x}" for s in spans}


def check(read: Any, spans: dict[tuple[str, int], str]) -> None:
    found = Counter(read.ids())
    assert set(found.values()) <= {1}  # none twice
    assert set(found) <= set(spans)
    size, kept = Counter(spans.values()), Counter(trace for trace, _ in found)
    assert all(kept[trace] == size[trace] for trace in kept)  # whole or not at all
    words: dict[str, set[bool]] = {}
    total: Counter[str] = Counter()
    for row in read.traces:
        words.setdefault(row["trace_id"], set()).add(row["kept"])
        total[row["trace_id"]] += row["spans"]
    assert total == size
    assert {trace for trace, word in words.items() if word == {True}} == set(kept)
    assert sum(row["spans"] for row in read.kernel_minutes) == len(spans)
    for hop in ("pipeline", "archive", "wire", "collector"):
        sums = read.sums(hop)
        assert sums["in"] == sums["out"] + sums["dropped"] + sums["open"], hop
        assert sums["open"] == 0
    assert read.sums("archive")["out"] == len(read.spans) == read.sums("pipeline")["out"]
    assert read.dropped("wire").get("lost", 0) == 0


@given(seed=st.integers(0, 1 << 32), steps=st.lists(STEPS, max_size=40))
@settings(max_examples=20, deadline=None)
def test_keep_all_keeps_each_span_once(kit: Any, seed: int, steps: list[str]) -> None:
    messages, spans = make_messages(kit, seed)
    run = Run(messages, KEEP_ALL)
    for step in steps:
        getattr(run, step)()
    read = kit.read_outputs(run.finish())
    check(read, spans)
    assert len(read.spans) == len(spans)


@given(seed=st.integers(0, 1 << 32), steps=st.lists(STEPS, max_size=40))
@settings(max_examples=20, deadline=None)
def test_sampling_keeps_whole_traces(kit: Any, seed: int, steps: list[str]) -> None:
    messages, spans = make_messages(kit, seed)
    run = Run(messages, HALF)
    for step in steps:
        getattr(run, step)()
    check(kit.read_outputs(run.finish()), spans)
