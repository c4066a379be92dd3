"""Bytes a span in compacted Parquet, launch configuration and all, for every real trace.

python -m bench.archive_size [--quick] [--columns]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from spanlite.archive.layout import SPANS, Archive
from spanlite_collectors.generator import DecodeConfig, generate
from spanlite_collectors.importers import import_file
from spanlite_collectors.sinks import MemorySink

from bench._archive import ArchiveMaker, fill
from bench._report import emit

DATA = Path(__file__).parents[1] / "../shared/data"
GOAL_BYTES = 10.0
#: Below this many spans a file's own footer is most of it.
SMALL_SPANS = 1000
#: A recording of one process is one archive of its own here; a fleet's has 64.
RECORDING_BUCKETS = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer generated spans")
    parser.add_argument("--columns", action="store_true", help="what each column takes, on stderr")
    args = parser.parse_args()
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
