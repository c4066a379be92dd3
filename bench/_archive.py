"""Archives for benches, made the way the job makes them, then compacted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from spanlite.archive.compact import Policy, compact
from spanlite.archive.layout import INCOMING, Archive
from spanlite.archive.writer import SpanFileBuilder
from spanlite.bucket import bucket_of
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.v1 import spanlite_pb2 as pb

#: As a job would with checkpoints some ten seconds apart.
ROWS_A_FILE = 150_000
#: Spans of one resource gathered before they are split by bucket.
ROWS_GATHERED = 500_000


class ArchiveMaker:
    """Takes spans as a sink does and leaves them in `incoming/`."""

    def __init__(self, root: Path, bucket_count: int) -> None:
        self.archive = Archive.create(root, bucket_count)
        self.spans = 0
        self._files = 0
        self._waiting: dict[str, tuple[list[pa.RecordBatch], Mapping[str, Any]]] = {}
        self._builders = [SpanFileBuilder() for _ in range(bucket_count)]

    def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        """Add spans of one resource, any traces mixed."""
        batches, known = self._waiting.setdefault(repr(sorted(resource.items())), ([], resource))
        batches.append(spans)
        self.spans += spans.num_rows
        if sum(batch.num_rows for batch in batches) >= ROWS_GATHERED:
            self._split(batches, known)
            batches.clear()

    def _split(self, batches: list[pa.RecordBatch], resource: Mapping[str, Any]) -> None:
        table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
        [spans] = table.to_batches()
        low, high = spans["trace_id_low"].to_numpy(), spans["trace_id_high"].to_numpy()
        buckets = bucket_of(low, high, len(self._builders))
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(len(self._builders) + 1))
        for bucket, builder in enumerate(self._builders):
            rows = order[ends[bucket] : ends[bucket + 1]]
            if len(rows):
                self._add(bucket, builder, spans.take(pa.array(rows)), resource)

    def _add(
        self, bucket: int, builder: SpanFileBuilder, spans: pa.RecordBatch, resource: Any
    ) -> None:
        header = pb.BatchHeader(
            bucket=bucket, bucket_count=len(self._builders), producer="bench", created_ns=1
        )
        builder.add(BatchView(encode_batch(Batch(header, spans, dict(resource)))))
        if builder.rows >= ROWS_A_FILE:
            self._flush(bucket, builder)

    def _flush(self, bucket: int, builder: SpanFileBuilder) -> None:
        for hour, data, _ in builder.finish():
            folder = self.archive.root / INCOMING / hour / f"bucket={bucket}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"part-{self._files}.parquet").write_bytes(data)
            self._files += 1

    def finish(self) -> Archive:
        """Write what is left and compact everything."""
        for batches, resource in self._waiting.values():
            if batches:
                self._split(batches, resource)
        for bucket, builder in enumerate(self._builders):
            self._flush(bucket, builder)
        compact(self.archive, Policy(grace_ns=-(1 << 62), keep_ns=0))
        return self.archive


def fill(maker: ArchiveMaker, source: Iterable[tuple[pa.RecordBatch, Mapping[str, Any]]]) -> None:
    """Write all batches of a source."""
    for spans, resource in source:
        maker.write(spans, resource)
