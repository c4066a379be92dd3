"""Layers and stages of graph nodes, against an eager run of the same model."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from ring_writer import RingWriter, write_recording
from spanlite.kinds import SpanKind
from spanlite_collectors.agent.graphs import GraphStages
from spanlite_collectors.agent.layout import RecordType
from spanlite_collectors.agent.source import RingOptions, RingSource
from spanlite_collectors.sinks import MemorySink


def _kernels(folder, *parts, restarts=False):
    sink = MemorySink()
    source = RingSource(sink, RingOptions([folder]))
    writer = RingWriter(folder)
    for number, records in enumerate(parts):
        if restarts and number:
            source.stop()
            source = RingSource(sink, RingOptions([folder]))
        shift = number * 10_000_000  # the recordings count from 1 each
        for record in records:
            record |= {k: record[k] + shift for k in ("corr", "id", "parent") if record.get(k)}
        write_recording(writer, records)
        source.step()
    writer.die()
    source.step()
    table = pa.Table.from_batches([batch for batch, _ in sink.written])
    rows = table.filter(pa.compute.equal(table["kind"], int(SpanKind.KERNEL))).to_pylist()
    for row in rows:
        row["said"] = json.loads(row["attributes"]) if row["attributes"] else {}
    return rows


def _shares(rows):
    total = sum(row["duration_ns"] for row in rows)
    share = Counter()
    for row in rows:
        share[row["said"].get("stage", "")] += row["duration_ns"] / total
    return share


def test_a_graph_gets_the_stages_of_an_eager_step_of_its_process(tmp_path, recording):
    rows = _kernels(tmp_path, recording("eager_s1"), recording("graph_node_s1"))
    nodes = [row for row in rows if row["graph_id"]]
    known = [row for row in nodes if "stage.unknown" not in row["said"]]
    assert sum(r["duration_ns"] for r in known) / sum(r["duration_ns"] for r in nodes) > 0.99
    assert all(row["said"]["stage.inferred"] for row in known)
    # Judged without the ids that matched them: in order of time, a replay goes through the
    # same names and stages as an eager step does.
    traces = Counter(row["trace_id_low"] for row in rows if not row["graph_id"])
    step = next(trace for trace, count in traces.items() if count == 261)
    eager = sorted(
        (row for row in rows if row["trace_id_low"] == step), key=lambda row: row["start_ns"]
    )
    launches = sorted({row["correlation_id"] for row in nodes})
    assert len(launches) == 14
    for launch in launches:
        replay = sorted(
            (row for row in nodes if row["correlation_id"] == launch),
            key=lambda row: row["start_ns"],
        )
        expected = [(row["name"], row["said"].get("stage")) for row in eager]
        assert [(row["name"], row["said"].get("stage")) for row in replay] == expected
    # And the stages take the same part of the time, as the same kernels run.
    ours, theirs = _shares(nodes), _shares(eager)
    assert max(abs(ours[stage] - theirs[stage]) for stage in theirs) < 0.02


def test_a_graph_gets_them_also_from_a_daemon_that_came_after_the_eager_step(tmp_path, recording):
    rows = _kernels(tmp_path, recording("eager_s1"), recording("graph_node_s1"), restarts=True)
    nodes = [row for row in rows if row["graph_id"]]
    known = [row for row in nodes if "stage.unknown" not in row["said"]]
    assert sum(r["duration_ns"] for r in known) / sum(r["duration_ns"] for r in nodes) > 0.99


def test_a_graph_that_matches_nothing_says_so(tmp_path, recording):
    rows = _kernels(tmp_path, recording("graph_node_s1"))
    nodes = [row for row in rows if row["graph_id"]]
    assert nodes
    assert all(row["said"] == {"stage.unknown": True} for row in nodes)


def _keys(text):
    return np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)


def _stages(eager, stages, graph):
    known = GraphStages()
    known.learn(_keys(eager), stages)
    nodes = np.arange(len(graph), dtype=np.uint64)
    known.match(1, nodes, _keys(graph))
    return known.stages_of(1, nodes)


def test_a_part_that_occurs_in_each_layer_keeps_only_what_all_agree_on():
    stages = [f"layer_{i}/{s}" for i in range(3) for s in ("qkv", "qkv", "ffn", "ffn")]
    assert _stages("abcd" * 3, stages, "abcd") == ["qkv", "qkv", "ffn", "ffn"]
    assert _stages("abcd" * 3, stages, "abcd" * 3) == stages


def test_kernels_that_the_eager_step_has_not_stay_unknown():
    stages = ["a"] * 6 + ["b"] * 6
    found = _stages("abcdefghijkl", stages, "abcdefXYghijkl")
    assert found == ["a"] * 6 + [None] * 2 + ["b"] * 6
    assert _stages("abcdefghijkl", stages, "mnopqrstuvwx") == [None] * 12


def test_node_ids_may_come_in_any_order():
    known = GraphStages()
    known.learn(_keys("abcdef"), list("ABCDEF"))
    order = np.array([3, 0, 5, 1, 4, 2])
    known.match(1, order.astype(np.uint64), _keys("abcdef")[order])
    assert known.stages_of(1, np.arange(7, dtype=np.uint64)) == [*"ABCDEF", None]


@pytest.mark.parametrize("first", ["abcd", "abcdefgh"])
def test_a_graph_seen_before_its_eager_step_is_matched_later(first):
    known = GraphStages()
    nodes = np.arange(len(first), dtype=np.uint64)
    known.match(1, nodes, _keys(first))
    assert known.stages_of(1, nodes) == [None] * len(first)
    known.learn(_keys("abcdefgh"), list("ABCDEFGH"))
    known.match(1, nodes, _keys(first))
    assert known.stages_of(1, nodes) == list("ABCDEFGH")[: len(first)]


@pytest.mark.parametrize("copied", [(), (2,), (2, 5)], ids=["kernels", "a copy", "copies"])
@pytest.mark.parametrize("as_kernels", [True, False])
@pytest.mark.parametrize("windows", [(0,), (1, 2)])
@pytest.mark.parametrize("around", [0, 1, 3])
def test_a_capture_that_was_seen_names_the_nodes(tmp_path, copied, as_kernels, windows, around):
    """No eager step at all: launches in a capture have ranges and start no kernel.

    A node that copies, call 41, runs as a kernel or as a copy. Replays of several windows may have
    the same correlation id and come together. `around` the capture are copies of no graph, which
    windows do not record."""
    sink, writer = MemorySink(), RingWriter(tmp_path)
    source = RingSource(sink, RingOptions([tmp_path]))
    at = 1_796_143_900_000_000_000
    times = iter(range(at, at + 100_000, 100))
    names = [f"layer_{number // 3}" for number in range(6)]
    outside = [None] * around
    for number, name in enumerate([*outside, *names, *outside]):
        start = next(times)
        launch = {"call": 41 if name is None or number - around in copied else 211, "domain": 1}
        call = {"thread_id": 9, "correlation_id": 10 + number, **launch}
        writer.write(RecordType.API, start_ns=start + 20, end_ns=start + 30, **call)
        writer.write(
            RecordType.RANGE,
            start_ns=start, end_ns=start + 50, id=number + 1, thread_id=9,
            name=writer.text(name or "elsewhere"),
        )  # fmt: skip
    ran = [node for node in (5, 3, 1, 0, 2, 4) if as_kernels or node not in copied]
    for window in windows:
        launch = {"thread_id": 9, "correlation_id": 99, "window": window}
        writer.write(
            RecordType.API, start_ns=next(times), end_ns=next(times), call=311, domain=1, **launch
        )
        for node in ran:  # as streams may run them
            start = next(times)
            where = {"correlation_id": 99, "graph_id": 1, "graph_node_id": 1 << 32 | node}
            writer.write(
                RecordType.KERNEL,
                start_ns=start, end_ns=start + 5, window=window, **where,
                name=writer.text("copy" if node in copied else "k"),
            )  # fmt: skip
    writer.die()
    source.step()
    rows = [row for batch, _ in sink.written for row in batch.to_pylist()]
    kernels = sorted(
        (row for row in rows if row["kind"] == SpanKind.KERNEL),
        key=lambda row: row["graph_node_id"],
    )
    said = [json.loads(row["attributes"]) for row in kernels]
    stages = [names[node] for node in sorted(ran) for _ in windows]
    assert said == [{"stage": stage, "stage.inferred": True} for stage in stages]
