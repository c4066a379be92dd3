"""Generated traces are whole, plausible and the same for a seed."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from spanlite.errors import UsageError
from spanlite.kinds import DEVICE_KINDS, SpanKind, SpanStatus
from spanlite.schema import SPAN_SCHEMA
from spanlite_collectors.generator import DecodeConfig, generate

SMALL = DecodeConfig(
    spans=60_000,
    seed=5,
    hosts=2,
    devices=2,
    layers=4,
    streams=3,
    graph_share=0.7,
    slow_share=0.1,
    error_share=0.3,
    output_tokens=8.0,
)
HOST_KINDS = (SpanKind.STEP, SpanKind.NVTX_RANGE, SpanKind.RUNTIME_CALL, SpanKind.HOST)


def spans_of(config: DecodeConfig) -> pd.DataFrame:
    parts = []
    for batch, resource in generate(config):
        batch.validate(full=True)
        assert batch.schema.equals(SPAN_SCHEMA)
        part = batch.to_pandas()
        parts.append(part.assign(host=resource["host.name"], pid=resource["process.pid"]))
    return pd.concat(parts, ignore_index=True)


@cache
def small() -> pd.DataFrame:
    return spans_of(SMALL)


@cache
def with_parents() -> pd.DataFrame:
    spans = small()
    parents = spans[["span_id", "trace_id_low", "start_ns", "duration_ns", "kind"]]
    children = spans[spans.parent_span_id != 0]
    return children.merge(
        parents, left_on="parent_span_id", right_on="span_id", suffixes=("", "_of_parent")
    )


def digest(config: DecodeConfig) -> str:
    total = hashlib.sha256()
    for batch, resource in generate(config):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        total.update(sink.getvalue())
        total.update(repr(resource).encode())
    return total.hexdigest()


def test_the_same_seed_gives_the_same_spans() -> None:
    config = DecodeConfig(spans=5_000, seed=1)
    assert digest(config) == digest(config)
    assert digest(config) != digest(DecodeConfig(spans=5_000, seed=2))


@pytest.mark.parametrize("wanted", [0, 1, 20_000])
def test_it_stops_soon_after_the_wanted_number(wanted: int) -> None:
    made = sum(batch.num_rows for batch, _ in generate(DecodeConfig(spans=wanted)))
    assert wanted <= made < wanted + 2_000


def test_every_parent_is_in_the_trace() -> None:
    children = with_parents()
    assert len(children) == (small().parent_span_id != 0).sum()
    assert (children.trace_id_low == children.trace_id_low_of_parent).all()
    assert small().span_id.is_unique


def test_host_spans_lie_within_their_parents() -> None:
    children = with_parents()
    inner = children[children.kind.isin(HOST_KINDS)]
    end = inner.start_ns + inner.duration_ns
    assert (inner.start_ns >= inner.start_ns_of_parent).all()
    assert (end <= inner.start_ns_of_parent + inner.duration_ns_of_parent).all()
    assert (small().duration_ns >= 0).all()


def test_device_spans_hang_on_their_launch_and_start_after_it() -> None:
    children = with_parents()
    device = children[children.kind.isin(DEVICE_KINDS)]
    assert (device.kind_of_parent == SpanKind.RUNTIME_CALL).all()
    assert (device.start_ns > device.start_ns_of_parent).all()
    launch = small()[["span_id", "correlation_id"]]
    both = device.merge(launch, left_on="parent_span_id", right_on="span_id")
    assert (both.correlation_id_x == both.correlation_id_y).all()
    assert (device.correlation_id > 0).all()


def test_a_stream_runs_one_thing_at_a_time() -> None:
    device = small()[small().kind.isin(DEVICE_KINDS)]
    for _, track in device.groupby(["host", "pid", "device", "stream"]):
        track = track.sort_values("start_ns")
        end = (track.start_ns + track.duration_ns).to_numpy()
        assert (track.start_ns.to_numpy()[1:] >= end[:-1]).all()


def test_device_times_are_in_ticks() -> None:
    device = small()[small().kind.isin(DEVICE_KINDS)]
    assert (device.start_ns % 32 == 0).all()
    assert (device.duration_ns % 32 == 0).all()


def test_steps_do_not_overlap_and_link_to_requests_that_run() -> None:
    spans = small()
    requests = spans[spans.kind == SpanKind.REQUEST].set_index("span_id")
    steps = spans[spans.kind == SpanKind.STEP]
    for _, own in steps.groupby(["host", "pid"]):
        own = own.sort_values("start_ns")
        end = (own.start_ns + own.duration_ns).to_numpy()
        assert (own.start_ns.to_numpy()[1:] >= end[:-1]).all()
    for step in steps.sample(40, random_state=1).itertuples():
        assert 1 <= len(step.links) <= SMALL.max_batch
        for link in step.links:
            request = requests.loc[link["span_id"]]
            assert request.trace_id_low == link["trace_id_low"]
            assert request.start_ns <= step.start_ns


def test_graphs_and_eager_steps_both_occur() -> None:
    kernels = small()[small().kind == SpanKind.KERNEL]
    in_graph = kernels.graph_node_id > 0
    assert 0.2 < in_graph.mean() < 0.9
    assert ((kernels.graph_id > 0) == in_graph).all()
    assert (kernels.grid_x > 0).all()
    assert (kernels.block_x > 0).all()
    only_eager = spans_of(DecodeConfig(spans=4_000, graph_share=0.0))
    assert (only_eager.graph_id == 0).all()


def test_requests_fail_and_say_why() -> None:
    requests = small()[small().kind == SpanKind.REQUEST]
    failed = requests[requests.status == SpanStatus.ERROR]
    assert 0.05 < len(failed) / len(requests) < 0.6
    assert failed.attributes.str.contains("error.type").all()


def test_some_steps_are_slow() -> None:
    spans = spans_of(DecodeConfig(spans=100_000, slow_share=0.05, requests_per_s=5.0))
    steps = spans[spans.kind == SpanKind.STEP].duration_ns
    assert steps.max() > 2 * steps.median()
    none = spans_of(DecodeConfig(spans=100_000, slow_share=0.0, requests_per_s=5.0))
    attention = none[none.name.astype(str).str.contains("splitkv_kernel")].duration_ns
    slow = spans[spans.name.astype(str).str.contains("splitkv_kernel")].duration_ns
    assert slow.max() > 3 * attention.max()


def test_rows_are_in_track_order() -> None:
    batch, _ = next(generate(DecodeConfig(spans=20_000)))
    kind = batch["kind"].to_numpy()
    group = np.select([kind == SpanKind.RUNTIME_CALL, np.isin(kind, DEVICE_KINDS)], [1, 2], 0)
    assert (np.diff(group) >= 0).all()
    stream = batch["stream"].to_numpy()
    start = batch["start_ns"].to_numpy()
    same = (np.diff(stream) == 0) & (np.diff(group) == 0)
    same &= ~np.isin(kind[1:], (SpanKind.STEP, SpanKind.NVTX_RANGE))
    assert (np.diff(start)[same] >= 0).all()


@pytest.mark.parametrize(
    "bad",
    [
        {"hosts": 0},
        {"layers": -1},
        {"error_share": 1.5},
        {"requests_per_s": 0.0},
        {"spans": -1},
        {"output_tokens": 0.5},
    ],
)
def test_senseless_values_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        DecodeConfig(**bad)  # type: ignore[arg-type]
