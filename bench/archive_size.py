"""Bytes a span in compacted Parquet, launch configuration and all, for every real trace;
and how fast the writer makes them.

python -m bench.archive_size [--quick] [--columns]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from spanlite.archive.layout import SPANS, Archive
from spanlite.archive.writer import SpanFileBuilder
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.v1 import spanlite_pb2 as pb
from spanlite_collectors.generator import DecodeConfig, generate
from spanlite_collectors.importers import import_file
from spanlite_collectors.sinks import MemorySink

from bench._archive import ArchiveMaker, fill
from bench._report import emit

DATA = Path(__file__).parents[1] / "../shared/data"
GOAL_BYTES = 10.0
WRITE_GOAL = 3e6
#: Below this many spans a file's own footer is most of it.
SMALL_SPANS = 1000
#: A recording of one process is one archive of its own here; a fleet's has 64.
RECORDING_BUCKETS = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer generated spans")
    parser.add_argument("--columns", action="store_true", help="what each column takes, on stderr")
    args = parser.parse_args()
    write_speed(200_000)
    spans = 300_000 if args.quick else 4_000_000
    for name, config in {
        "generated_graph": DecodeConfig(spans=spans),
        "generated_eager": DecodeConfig(spans=spans, graph_share=0.0),
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            maker = ArchiveMaker(Path(folder), 1 if args.quick else 64)
            fill(maker, generate(config))
            report(name, maker, args.columns)
    for path in sorted((DATA / "kineto").glob("*.json.gz")):
        sink = MemorySink()
        import_file(path, sink)
        with tempfile.TemporaryDirectory() as folder:
            maker = ArchiveMaker(Path(folder), RECORDING_BUCKETS)
            fill(maker, sink.written)
            report(path.name.removesuffix(".json.gz"), maker, args.columns)


def write_speed(spans: int) -> None:
    """Spans a CPU second from decoded batches to finished bytes, against pyarrow's writer.

    The peer is given a table that is gathered and sorted already.
    """
    messages = batches_of_one_bucket(spans)
    best, data, rows = float("inf"), b"", 0
    for _ in range(5):
        views = [BatchView(message) for message in messages]
        builder = SpanFileBuilder()
        for view in views:
            builder.add(view)
        begin = time.process_time()
        [(_, data, rows)] = builder.finish()
        best = min(best, time.process_time() - begin)
    table = pq.read_table(pa.BufferReader(data))
    peer = float("inf")
    for _ in range(5):
        begin = time.process_time()
        pq.write_table(table, pa.BufferOutputStream(), compression="zstd")
        peer = min(peer, time.process_time() - begin)
    more = {"spans": rows, "batches": len(messages)}
    emit(
        "archive.write_spans_per_cpu_s", rows / best, "spans/s", WRITE_GOAL,
        peer="pyarrow write_table", ratio=peer / best, **more,
    )  # fmt: skip


def batches_of_one_bucket(spans: int) -> list[bytes]:
    """Messages of some 10,000 spans, as collectors send them."""
    messages, waiting = [], []
    for batch, resource in generate(DecodeConfig(spans=spans, processes=1)):
        waiting.append(batch)
        if sum(item.num_rows for item in waiting) >= 10_000:
            table = pa.Table.from_batches(waiting).unify_dictionaries().combine_chunks()
            header = pb.BatchHeader(bucket_count=1, producer="bench")
            messages.append(encode_batch(Batch(header, table.to_batches()[0], resource)))
            waiting = []
    return messages


def report(name: str, maker: ArchiveMaker, columns: bool) -> None:
    """Compact, measure and print."""
    archive = maker.finish()
    files = list((archive.root / SPANS).rglob("*.parquet"))
    size = sum(path.stat().st_size for path in files) / maker.spans
    more = {"spans": maker.spans, "files": len(files)}
    if maker.spans < SMALL_SPANS:
        emit(f"archive.small.bytes_per_span.{name}", size, "B", **more)
    else:
        emit(f"archive.bytes_per_span.{name}", size, "B", goal=GOAL_BYTES, **more)
    if columns:
        print_columns(archive, maker.spans)


def print_columns(archive: Archive, spans: int) -> None:
    """The largest columns, in bytes a span."""
    sizes: Counter[str] = Counter()
    for path in (archive.root / SPANS).rglob("*.parquet"):
        metadata = pq.read_metadata(path)
        sizes["(footer)"] += metadata.serialized_size
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                encoding = column.encodings[-1]
                key = f"{column.path_in_schema} {encoding}"
                sizes[key] += column.total_compressed_size
    for key, size in sizes.most_common(16):
        print(f"    {size / spans:7.3f}  {key}", file=sys.stderr)


if __name__ == "__main__":
    main()
