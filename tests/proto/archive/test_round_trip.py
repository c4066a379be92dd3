"""Whatever spans go in come out again, bit for bit, through files that anyone can read."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite.archive import _parquet
from spanlite.archive.convert import to_span_batches
from spanlite.archive.layout import NS_PER_HOUR, hour_folder, hour_start_ns
from spanlite.archive.reader import conform
from spanlite.archive.schema import KERNEL_MINUTES, SCHEMA_VERSION, SPANS, TRACES
from spanlite.archive.writer import SpanFileBuilder, write_table
from spanlite.codec import BatchView
from spanlite.errors import ArchiveError
from spanlite.ids import format_trace_id

MakeView = Callable[..., BatchView]
U64 = st.one_of(st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
I64 = st.one_of(
    st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]),
    st.integers(1_796_108_000 * 10**9, 1_796_109_000 * 10**9),
)
SMALL = st.integers(0, 3)
TEXT = st.sampled_from(["", "gemm", "äöü 核心", "a" * 300, "x\n\t\"'"])
U32 = st.sampled_from([0, 1, 128, 2**31 - 1, 2**32 - 1])
LINK = st.fixed_dictionaries({"trace_id_low": U64, "trace_id_high": U64, "span_id": U64})
ROW = st.fixed_dictionaries(
    {
        "trace_id_low": st.one_of(SMALL, U64),
        "trace_id_high": st.one_of(SMALL, U64),
        "span_id": U64,
        "start_ns": I64,
    },
    optional={
        "parent_span_id": U64,
        "duration_ns": I64,
        "kind": st.integers(0, 255),
        "name": TEXT,
        "status": st.integers(0, 255),
        "attributes": st.sampled_from([None, "{}", '{"a":1}']),
        "device": st.sampled_from([-1, 0, 7, 2**31 - 1]),
        "context": st.sampled_from([-1, 0, 1, 2**63 - 1]),
        "stream": st.sampled_from([-1, 0, 7, 2**63 - 1]),
        "thread_id": U64,
        "correlation_id": U64,
        "graph_id": U32,
        "graph_node_id": U64,
        "grid_x": U32,
        "block_z": U32,
        "dynamic_shared_bytes": U32,
        "bytes": U64,
        "copy_kind": st.integers(0, 255),
        "flags": U32,
        "links": st.one_of(st.none(), st.lists(LINK, min_size=1, max_size=3)),
    },
)


def read(data: bytes) -> pa.Table:
    return conform(pq.read_table(pa.BufferReader(data)), SPANS)


def as_set(batch: pa.RecordBatch, weights: np.ndarray) -> list[str]:
    rows = batch.to_pylist()
    return sorted(repr((row, weight)) for row, weight in zip(rows, weights.tolist(), strict=True))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(ROW, min_size=1, max_size=12), min_size=1, max_size=4), st.randoms())
def test_every_value_comes_back(make_view: MakeView, batches: list[Any], random: Any) -> None:
    builder, expected = SpanFileBuilder(), []
    for number, rows in enumerate(batches):
        view = make_view(rows, {"service.name": "é", "n": number // 2, "process.pid": number})
        mask = np.array([random.random() < 0.7 for _ in rows])
        weights = np.array([random.choice([1.0, 2.5, 1e300]) for _ in range(mask.sum())])
        builder.add(view, mask, weights)
        expected += as_set(view.to_arrow(mask), weights)
    found = []
    for hour, data, count in builder.finish():
        table = read(data)
        assert table.num_rows == count
        starts = table.column("start_ns").to_numpy()
        assert (starts // NS_PER_HOUR == hour_start_ns(hour) // NS_PER_HOUR).all()
        keys = ["trace_id", "start_ns", "span_id"]
        order = list(zip(*(table.column(key).to_pylist() for key in keys), strict=True))
        assert order == sorted(order)
        for group in to_span_batches(table):
            assert group.resource["service.name"] == "é"
            found += as_set(group.spans, group.weights)
    assert sorted(found) == sorted(expected)
    assert builder.rows == 0
    assert builder.finish() == []


def test_row_groups_and_wide_dictionaries(make_view: MakeView, monkeypatch: Any) -> None:
    monkeypatch.setattr(_parquet, "ROW_GROUP_ROWS", 1000)
    rows = [
        {"trace_id_low": i // 7, "span_id": i, "start_ns": i, "name": f"k{i}", "bytes": i * i}
        for i in range(3500)
    ]
    builder = SpanFileBuilder()
    builder.add(make_view(rows))
    [(hour, data, count)] = builder.finish()
    file = pq.ParquetFile(io.BytesIO(data))
    assert (hour, count) == (hour_folder(0), 3500)
    assert file.num_row_groups == 4
    assert sorted(file.read().column("name").to_pylist()) == sorted(f"k{i}" for i in range(3500))
    for group in range(4):
        ids = file.read_row_group(group, columns=["trace_id"]).column(0).to_pylist()
        statistics = file.metadata.row_group(group).column(0).statistics
        assert (statistics.min, statistics.max) == (ids[0], ids[-1])
        assert file.metadata.row_group(group).column(6).statistics is None


def test_the_words_of_the_archive(make_view: MakeView) -> None:
    rows = [
        {
            "trace_id_low": 0xAB,
            "span_id": 2**64 - 1,
            "start_ns": 5,
            "kind": 2,
            "copy_kind": 1,
            "name": "copy",
            "bytes": 64,
            "status": 2,
            "device": 0,
            "links": [{"trace_id_low": 1, "trace_id_high": 2, "span_id": 3}],
        },
        {"trace_id_low": 0xAB, "span_id": 2, "start_ns": 6, "kind": 77, "grid_x": 8},
    ]
    builder = SpanFileBuilder()
    header = {"clock_offset_ns": -5, "clock_uncertainty_ns": 9}
    builder.add(make_view(rows, {"host.name": "h", "spanlite.replay_id": "r"}, **header), None, 4.0)
    [(_, data, _)] = builder.finish()
    assert pq.read_metadata(io.BytesIO(data)).metadata == {
        b"spanlite.schema_version": SCHEMA_VERSION.encode()
    }
    first, second = read(data).to_pylist()
    for name, value in {
        "trace_id": format_trace_id(0xAB, 0),
        "span_id": -1,
        "parent_span_id": None,
        "kind": "memcpy",
        "copy_kind": "htod",
        "status": "error",
        "device": 0,
        "stream": None,
        "grid_x": None,
        "bytes": 64,
        "links": [{"trace_id": format_trace_id(1, 2), "span_id": 3}],
        "host": "h",
        "service": "",
        "process_id": None,
        "replay_id": "r",
        "resource": '{"host.name":"h","spanlite.replay_id":"r"}',
        "sampling_weight": 4.0,
        "clock_offset_ns": -5,
        "clock_uncertainty_ns": 9,
    }.items():
        assert first[name] == value, name
    assert (second["kind"], second["grid_x"], second["grid_y"]) == ("kind_77", 8, 0)
    assert second["links"] is None


def test_names_hold_only_what_is_used(make_view: MakeView) -> None:
    view = make_view([{"span_id": i, "start_ns": i, "name": f"n{i}"} for i in range(5)])
    builder = SpanFileBuilder()
    builder.add(view, np.array([1, 3]))
    [(_, data, _)] = builder.finish()
    names = pq.read_table(io.BytesIO(data), read_dictionary=["name"]).column("name").chunk(0)
    assert names.dictionary.to_pylist() == ["n1", "n3"]


def test_weights_must_fit(make_view: MakeView) -> None:
    view = make_view([{"span_id": 1, "start_ns": 0}])
    with pytest.raises(ValueError, match="2 weights for 1 spans"):
        SpanFileBuilder().add(view, None, np.array([1.0, 2.0]))


def test_small_tables() -> None:
    row = {item.name: None if item.nullable else 1 for item in KERNEL_MINUTES}
    row |= {"service": "s", "host": "h", "kind": "kernel", "name": "gemm"}
    data = write_table(pa.Table.from_pylist([row, row]), KERNEL_MINUTES)
    frame = pd.read_parquet(io.BytesIO(data))
    assert frame["name"].tolist() == ["gemm", "gemm"]
    assert pq.read_metadata(io.BytesIO(data)).metadata[b"spanlite.schema_version"] == b"1"
    with pytest.raises(ArchiveError, match="'trace_id' is missing"):
        write_table(pa.Table.from_pylist([row]), TRACES)
    with pytest.raises(ArchiveError, match="'spans' holds nulls"):
        write_table(pa.Table.from_pylist([row | {"spans": None}]), KERNEL_MINUTES)
    with pytest.raises(ArchiveError, match="column 'spans'"):
        write_table(pa.Table.from_pylist([row | {"spans": "many"}]), KERNEL_MINUTES)
