"""Recordings as rows of an archive, as often as a bench wants them."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from spanlite.archive import schema
from spanlite.archive.writer import SpanFileBuilder
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.v1 import spanlite_pb2 as pb
from spanlite_collectors.importers import import_file
from spanlite_collectors.sinks import MemorySink

RECORDINGS = Path(__file__).parents[1] / "tests" / "recordings"
#: Further apart than the ids of one recording are.
_ID_STEP = 1 << 24
_GAP_NS = 10_000_000


def rows_of(path: Path) -> pa.Table:
    """A recording in the archive's `spans` table."""
    sink = MemorySink()
    import_file(path, sink)
    builder = SpanFileBuilder()
    header = pb.BatchHeader(bucket=0, bucket_count=1, producer="bench")
    for batch, resource in sink.written:
        builder.add(BatchView(encode_batch(Batch(header, batch, resource))))
    words = [item.name for item in schema.SPANS if pa.types.is_dictionary(item.type)]
    parts = [
        pq.read_table(io.BytesIO(data), read_dictionary=words) for _, data, _ in builder.finish()
    ]
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def repeated(table: pa.Table, spans: int) -> pa.Table:
    """Copies one after the other, `spans` rows or a few more, each with ids of its own."""
    start = table.column("start_ns")
    whole = pc.max(pc.add(start, table.column("duration_ns"))).as_py() - pc.min(start).as_py()
    copies = -(-spans // len(table))
    parts = [_copy(table, number, whole + _GAP_NS) for number in range(copies)]
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def _copy(table: pa.Table, number: int, step_ns: int) -> pa.Table:
    ids = table.column("trace_id").combine_chunks()
    ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
    words = [f"{(int(word, 16) + number) % (1 << 128):032x}" for word in ids.dictionary.to_pylist()]
    new = {
        "trace_id": pa.DictionaryArray.from_arrays(ids.indices, pa.array(words)),
        "span_id": pc.add(table.column("span_id"), number * _ID_STEP),
        "parent_span_id": pc.add(table.column("parent_span_id"), number * _ID_STEP),
        "start_ns": pc.add(table.column("start_ns"), number * step_ns),
        "links": pa.nulls(len(table), table.schema.field("links").type),
    }
    for name, values in new.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table
