"""Vectorised sums against the same thing said slowly."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite.codec import BatchView
from spanlite_pipeline.rollups import RollUps
from spanlite_pipeline.summaries import Grouping, Words, add_roots, merge, summarise

NS_PER_MINUTE = 60_000_000_000
SPAN = st.tuples(
    st.integers(0, 4),  # trace
    st.booleans(),  # root
    st.integers(0, 3 * NS_PER_MINUTE),  # start
    st.integers(-5, 1000),  # duration
    st.sampled_from([1, 2, 5, 10]),  # kind
    st.integers(0, 2),  # status
    st.sampled_from(["a", "b", "ü"]),
)


def make(kit: Any, rows: list[Any]) -> list[Any]:
    traces = kit.trace_ids(5)
    return [
        kit.Span(
            traces[trace],
            at + 1,
            0 if root else 77,
            kit.T0_NS + start,
            duration,
            name,
            kind,
            status,
        )
        for at, (trace, root, start, duration, kind, status, name) in enumerate(rows)
    ]


@given(rows=st.lists(SPAN, min_size=1, max_size=40), cut=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_summaries_of_batches_merge_to_those_of_all_spans(
    kit: Any, rows: list[Any], cut: int
) -> None:
    spans, producer, words = make(kit, rows), kit.Producer(), Words()
    parts = []
    for chunk in (spans[:cut], spans[cut:]):
        if chunk:
            view = BatchView(producer.batch(chunk))
            grouping = Grouping(view)
            summary = summarise(view, grouping, np.zeros(grouping.traces, np.uint64), 100)
            add_roots(summary, view, grouping, words)
            parts.append(summary)
    for row in merge(parts):
        own = [s for s in spans if s.trace == row["low"]]
        device = [s for s in own if s.kind in (1, 2)]
        assert row["spans"] == len(own)
        assert row["errors"] == sum(s.status == 2 for s in own)
        assert row["start_ns"] == min(s.start_ns for s in own)
        assert row["end_ns"] == max(s.start_ns + s.duration_ns for s in own)
        assert row["device_spans"] == len(device)
        assert row["device_ns"] == sum(s.duration_ns for s in device)
        roots = [s for s in own if s.parent == 0]
        first = min((s.start_ns for s in roots), default=None)
        names = {(s.name, s.kind) for s in roots if s.start_ns == first}
        if roots:
            assert (words[row["root_name"]], row["root_kind"]) in names
        else:
            assert row["root_name"] == -1
    assert sum(len(part) for part in parts) >= len({s.trace for s in spans})


@given(rows=st.lists(SPAN, min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_roll_ups_sum_every_span(kit: Any, rows: list[Any]) -> None:
    spans = make(kit, rows)
    rollups = RollUps()
    for chunk in (spans, spans[:1]):
        rollups.add(BatchView(kit.Producer().batch(chunk)), "llm", "host-0")
    expected: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    words = {1: "kernel", 2: "memcpy", 5: "runtime_call", 10: "request"}
    errors = 0
    for span in [*spans, spans[0]]:
        minute = span.start_ns // NS_PER_MINUTE * NS_PER_MINUTE
        expected[(minute, words[span.kind], span.name)].append(span.duration_ns)
        errors += span.status == 2
    found = rollups.to_arrow().to_pylist()
    assert {
        (row["minute_ns"], row["kind"], row["name"]): (
            row["spans"],
            row["duration_ns"],
            row["min_ns"],
            row["max_ns"],
        )
        for row in found
    } == {key: (len(v), sum(v), min(v), max(v)) for key, v in expected.items()}
    assert sum(row["errors"] for row in found) == errors
    assert {(row["service"], row["host"], row["device"]) for row in found} == {("llm", "host-0", 0)}


def test_roll_ups_hold_more_groups_than_16_bits(kit: Any) -> None:
    (trace,) = kit.trace_ids(1)
    spans = [
        kit.Span(trace, at + 1, start_ns=kit.T0_NS + at * NS_PER_MINUTE * 40, name=f"k{at % 97}")
        for at in range(2000)
    ]
    rollups = RollUps()
    rollups.add(BatchView(kit.Producer().batch(spans)), "llm", "h")
    assert len(rollups) == 2000
