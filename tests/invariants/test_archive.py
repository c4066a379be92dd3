"""A1: whatever is done to an archive, in whatever order, its reader sees each span once."""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite.archive.compact import Policy, compact
from spanlite.archive.layout import INCOMING, LEDGER, NS_PER_HOUR, SPANS, Archive
from spanlite.archive.reader import ArchiveReader
from spanlite.archive.retain import retain
from spanlite.archive.verify import verify
from spanlite.archive.writer import SpanFileBuilder
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.schema import SPAN_SCHEMA
from spanlite.v1 import spanlite_pb2 as pb

HOURS = 3
START = 490_000 * NS_PER_HOUR  # in 2025
HOUR = st.integers(0, HOURS - 1)
STEP = st.one_of(
    st.tuples(st.just("commit"), HOUR, st.integers(1, 4)),
    st.tuples(st.just("commit"), HOUR, st.integers(1, 4)),
    # Up to which hour, and whether what was taken in stays.
    st.tuples(st.just("compact"), HOUR, st.booleans()),
    st.tuples(st.just("retain"), HOUR, st.none()),
)


def view(hour: int, first: int, count: int) -> BatchView:
    columns = []
    for item in SPAN_SCHEMA:
        if item.name == "span_id":
            values: Any = np.arange(first, first + count)
        elif item.name == "start_ns":
            values = START + hour * NS_PER_HOUR + np.arange(count)
        elif item.name == "trace_id_low":
            values = np.arange(count) // 2 + first
        elif pa.types.is_list(item.type):
            columns.append(pa.nulls(count, item.type))
            continue
        elif pa.types.is_dictionary(item.type):
            columns.append(pa.array(["x"] * count).dictionary_encode())
            continue
        else:
            values = np.zeros(count)
        columns.append(pa.array(np.asarray(values), item.type))
    spans = pa.RecordBatch.from_arrays(columns, schema=SPAN_SCHEMA)
    return BatchView(encode_batch(Batch(pb.BatchHeader(bucket_count=1), spans)))


def commit(archive: Archive, hour: int, first: int, count: int) -> None:
    builder = SpanFileBuilder()
    builder.add(view(hour, first, count))
    for folder, data, _ in builder.finish():
        target = archive.root / INCOMING / folder / "bucket=0"
        target.mkdir(parents=True, exist_ok=True)
        (target / f"part-{first}.parquet").write_bytes(data)


def seen(archive: Archive) -> Counter[int]:
    batches = ArchiveReader(archive).scan(columns=["span_id"])
    return Counter(span for batch in batches for span in batch.column("span_id").to_pylist())


def dropped(archive: Archive) -> int:
    return sum(row["spans"] for row in ArchiveReader(archive).read_table(LEDGER).to_pylist())


@settings(deadline=None, max_examples=25)
@given(st.lists(STEP, max_size=8))
def test_each_span_once(steps: list[tuple[str, int, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Archive.create(folder, 1)
        model: dict[int, int] = {}
        number, gone = 1, 0
        for what, hour, more in steps:
            end_ns = START + (hour + 1) * NS_PER_HOUR
            if what == "commit":
                commit(archive, hour, number, more)
                model |= dict.fromkeys(range(number, number + more), hour)
                number += more
            elif what == "compact":
                policy = Policy(grace_ns=0, keep_ns=NS_PER_HOUR if more else 0)
                compact(archive, policy, now_ns=end_ns)
            else:
                retain(archive, SPANS, end_ns)
                left = {span: at for span, at in model.items() if at > hour}
                gone += len(model) - len(left)
                model = left
            assert seen(archive) == Counter(dict.fromkeys(model, 1)), what
            assert dropped(archive) == gone
        assert verify(archive).problems == []
