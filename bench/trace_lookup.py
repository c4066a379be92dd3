"""How long a trace takes to be found by its id, in a compacted archive of 10 million spans.

python -m bench.trace_lookup [--quick] [--archive PATH]   (a PATH is kept and used again)
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from spanlite.archive.layout import FORMAT_FILE, Archive
from spanlite.archive.reader import ArchiveReader
from spanlite.ids import parse_trace_id
from spanlite_collectors.generator import DecodeConfig, generate

from bench._archive import ArchiveMaker, fill
from bench._report import emit

GOAL_MS = 100.0
LOOKUPS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 million spans instead of 10")
    parser.add_argument("--archive", metavar="PATH", help="make it there, and keep it")
    args = parser.parse_args()
    spans = 2_000_000 if args.quick else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        archive = make(Path(args.archive or folder), spans)
        measure(ArchiveReader(archive), 50 if args.quick else LOOKUPS)


def make(root: Path, spans: int) -> Archive:
    """An archive of that many generated spans, in two hours of 64 buckets."""
    if (root / FORMAT_FILE).exists():
        return Archive.open(root)
    maker = ArchiveMaker(root, 64)
    # The fleet pauses at half: the second half lies in another hour.
    for part in range(2):
        start_ns = DecodeConfig.start_ns + part * 3_600_000_000_000
        fill(maker, generate(DecodeConfig(spans=spans // 2, seed=part, start_ns=start_ns, hosts=2)))
    return maker.finish()


def measure(reader: ArchiveReader, lookups: int) -> None:
    """Look up traces at random; twice each, and the second time counts as warm."""
    ids, total = trace_ids(reader)
    picks = np.random.default_rng(0).choice(len(ids), lookups, replace=False)
    times, opened, rows = [], [], 0
    for warm in (False, True):
        cpu_begin = time.process_time()
        for pick in picks:
            before = reader.files_opened
            begin = time.perf_counter()
            found = reader.find_trace(*ids[pick])
            if warm:
                times.append((time.perf_counter() - begin) * 1e3)
                opened.append(reader.files_opened - before)
                rows += found.num_rows
    cpu_ms = (time.process_time() - cpu_begin) * 1e3 / lookups
    files = len(reader.files())
    more = {"spans": total, "traces": len(ids), "files": files, "spans_found": rows / lookups}
    emit("archive.trace_lookup_ms.p50", float(np.percentile(times, 50)), "ms", GOAL_MS, **more)
    emit("archive.trace_lookup_ms.p99", float(np.percentile(times, 99)), "ms", GOAL_MS)
    emit("archive.trace_lookup_cpu_ms.mean", cpu_ms, "ms")
    emit("archive.trace_lookup.files_opened.max", max(opened), "files", cores=os.cpu_count())


def trace_ids(reader: ArchiveReader) -> tuple[list[tuple[int, int]], int]:
    """Every trace in the archive, and the number of spans."""
    words: set[str] = set()
    spans = 0
    for batch in reader.scan(columns=["trace_id"]):
        spans += batch.num_rows
        column = batch.column("trace_id")
        assert isinstance(column, pa.DictionaryArray)
        words.update(column.dictionary.to_pylist())
    return [parse_trace_id(word) for word in sorted(words)], spans


if __name__ == "__main__":
    main()
