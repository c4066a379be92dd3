"""One record a graph's launch, of an agent with graph trace, becomes a span."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ring_writer import RingWriter
from spanlite.flags import SpanFlag
from spanlite.kinds import SpanKind
from spanlite_collectors.agent.layout import Level, RecordType
from spanlite_collectors.agent.source import RingOptions, RingSource
from spanlite_collectors.sinks import MemorySink

T0 = 1_796_143_900_000_000_000
GRAPH_LAUNCH = 311


def _graph(writer: RingWriter, at: int, call: int, window: int = 1, **fields: int) -> None:
    where = {"device": 2, "context": 3, "stream": 7, "correlation_id": call, "graph_id": 5}
    times = {"start_ns": at, "end_ns": at + 900}
    writer.write(RecordType.GRAPH, **(where | times | {"window": window} | fields))


def _spans(folder: Path, writer: RingWriter) -> list[tuple[dict, dict]]:
    """Rows with the resource of their batch."""
    sink = MemorySink()
    source = RingSource(sink, RingOptions([folder]))
    source.step()
    writer.die()
    source.step()
    return [(row, resource) for batch, resource in sink.written for row in batch.to_pylist()]


@pytest.fixture
def writer(tmp_path: Path) -> RingWriter:
    """A step whose one call launches a graph."""
    writer = RingWriter(tmp_path)
    name = writer.text("step:7")
    writer.write(
        RecordType.API, start_ns=T0 + 300, end_ns=T0 + 400, thread_id=9, correlation_id=11,
        call=GRAPH_LAUNCH, domain=1, window=1,
    )  # fmt: skip
    writer.write(RecordType.RANGE, start_ns=T0 + 200, end_ns=T0 + 500, id=2, parent_id=1,
                 thread_id=9, name=writer.text("replay"), depth=1)  # fmt: skip
    times = {"start_ns": T0, "end_ns": T0 + 2000}
    writer.write(RecordType.RANGE, **times, id=1, thread_id=9, name=name)
    writer.write(RecordType.STEP, **times, number=0, thread_id=9, name=name, window=1, covered=1)
    return writer


def _close(writer: RingWriter) -> None:
    writer.write(
        RecordType.WINDOW, open_ns=T0 - 1, close_ns=T0 + 3000, window=1, steps=1,
        steps_since_last=40, level=Level.WINDOWS,
    )  # fmt: skip


def test_a_graph_hangs_under_its_launch(tmp_path: Path, writer: RingWriter) -> None:
    _graph(writer, T0 + 600, call=11)
    _close(writer)
    spans = _spans(tmp_path, writer)
    rows = {row["kind"]: row for row, _ in spans}
    graph, call = rows[SpanKind.GRAPH_LAUNCH], rows[SpanKind.RUNTIME_CALL]
    assert len(spans) == 4 and (graph["name"], call["name"]) == ("CUDA graph", "cudaGraphLaunch")
    assert (graph["start_ns"], graph["duration_ns"], graph["flags"]) == (T0 + 600, 900, 0)
    assert (graph["device"], graph["context"], graph["stream"]) == (2, 3, 7)
    assert (graph["correlation_id"], graph["graph_id"], graph["graph_node_id"]) == (11, 5, 0)
    chain = [graph, call, rows[SpanKind.NVTX_RANGE], rows[SpanKind.STEP]]
    assert [row["parent_span_id"] for row in chain] == [row["span_id"] for row in chain[1:]] + [0]
    assert len({(row["trace_id_low"], row["trace_id_high"]) for row in chain}) == 1
    assert json.loads(rows[SpanKind.STEP]["attributes"])["capture.covered"] is True
    resource = next(told for row, told in spans if row["kind"] == SpanKind.GRAPH_LAUNCH)
    assert resource["spanlite.capture.weight"] == 40


def test_graphs_between_windows_have_no_call_and_no_weight(
    tmp_path: Path, writer: RingWriter
) -> None:
    """Graph trace is never off, records of calls are."""
    _graph(writer, T0 + 600, call=11)
    _close(writer)
    _graph(writer, T0 + 5000, call=12, window=0)
    _graph(writer, 0, call=13, window=0, end_ns=0)
    graphs = [(r, told) for r, told in _spans(tmp_path, writer) if r["correlation_id"] in (12, 13)]
    (alone, told), (timeless, _) = sorted(graphs, key=lambda span: span[0]["correlation_id"])
    assert (alone["flags"], alone["parent_span_id"]) == (SpanFlag.ORPHAN, 0)
    assert timeless["flags"] & SpanFlag.ZERO_TIMESTAMP
    assert "spanlite.capture.weight" not in told
