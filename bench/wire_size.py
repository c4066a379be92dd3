"""Bytes a span on the wire, what is lost on the way, and the same for other formats.

python -m bench.wire_size [--quick] [--columns] [--buckets N]

Every message is compressed for itself, as a producer with nothing else to send would: zstd
at the level our producers use (6) and at zstd's default (3).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from spanlite.bucket import DEFAULT_BUCKETS
from spanlite.codec import Batch, decode_batch, encode_batch
from spanlite.topics import ZSTD_LEVEL
from spanlite.v1 import spanlite_pb2 as pb
from spanlite_collectors.batching import Batcher, hashes_of, split_by_bucket
from spanlite_collectors.delivery import Numbering
from spanlite_collectors.generator import DecodeConfig, generate
from spanlite_collectors.importers import import_file
from spanlite_collectors.sinks import MemorySink

from bench._peers import delimited, json_rows, otlp, published
from bench._report import emit

DATA = Path(__file__).parents[1] / "../shared/data"
GOAL_BYTES = 8.0
#: Below this many spans a file's text and resource are most of it.
SMALL_SPANS = 1000
SNAPPY = pa.Codec("snappy")
ZSTD = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
ZSTD_3 = pa.Codec("zstd", compression_level=3)

Written = Iterable[tuple[pa.RecordBatch, dict[str, Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer generated and peers' spans")
    parser.add_argument("--columns", action="store_true", help="what each column takes, on stderr")
    parser.add_argument("--buckets", type=int, default=DEFAULT_BUCKETS)
    args = parser.parse_args()
    spans = 200_000 if args.quick else 2_000_000
    for name, config in {
        "generated_graph": DecodeConfig(spans=spans, processes=1),
        "generated_eager": DecodeConfig(spans=spans, processes=1, graph_share=0.0),
    }.items():
        measure(name, generate(config), args)
    for path in sorted((DATA / "kineto").glob("*.json.gz")):
        sink = MemorySink()
        import_file(path, sink)
        measure(path.name.removesuffix(".json.gz"), sink.written, args)
    if not DATA.is_dir():
        print(f"the real traces are not at {DATA.resolve()}", file=sys.stderr)


def batches(written: Written, buckets: int) -> Iterator[Batch]:
    """Batches as a collector makes them of these spans."""
    batcher, numbering = Batcher(batch_age_s=1e9), Numbering("host-1/bench", buckets)

    def numbered(ready: Iterable[Any]) -> Iterator[Batch]:
        for item in ready:
            header = numbering.peek_header(item.bucket, item.spans.num_rows)
            numbering.commit(header)
            yield Batch(header, item.spans, item.resource)

    for spans, resource in written:
        bucket = (hashes_of(spans) & np.uint64(buckets - 1)).astype(np.int64)
        for number, rows in split_by_bucket(spans, bucket):
            batcher.add(number, rows, resource)
        yield from numbered(batcher.take_full())
    yield from numbered(batcher.take_all())


class Sums:
    """Totals over the batches of a trace."""

    def __init__(self) -> None:
        self.spans = self.messages = self.links = self.links_right = 0
        self.time_error_ns = self.peer_spans = self.peer_error_ns = 0
        #: Spans and bytes of the message that has the most spans.
        self.largest = (0, 0)
        self.bytes: Counter[str] = Counter()
        self.columns: Counter[str] = Counter()

    def add(self, batch: Batch, peer_limit: int, columns: bool) -> None:
        """Encode, compress, decode and compare one batch; the first spans also for peers."""
        data = encode_batch(batch)
        self.spans += batch.spans.num_rows
        self.messages += 1
        self.bytes["batch_snappy"] += packed(SNAPPY, data)
        zstd = packed(ZSTD, data)
        self.bytes["batch_zstd"] += zstd
        self.largest = max(self.largest, (batch.spans.num_rows, zstd))
        self.bytes["batch_zstd3"] += packed(ZSTD_3, data)
        self._compare(batch.spans, decode_batch(data).spans)
        if columns:
            self.columns.update(column_sizes(data))
        room = peer_limit - self.peer_spans
        if room > 0:
            self._add_peers(batch.spans.slice(0, room), dict(batch.resource))

    def _compare(self, sent: pa.RecordBatch, got: pa.RecordBatch) -> None:
        """Span ids may not differ; for the rest, count how much does."""
        if not sent["span_id"].equals(got["span_id"]):
            raise AssertionError("span ids did not come back")
        for name in ("start_ns", "duration_ns"):
            off = np.abs(sent[name].to_numpy() - got[name].to_numpy()).max(initial=0)
            self.time_error_ns = max(self.time_error_ns, int(off))
        parent, restored = (batch["parent_span_id"].to_numpy() for batch in (sent, got))
        self.links += int((parent != 0).sum())
        self.links_right += int(((parent != 0) & (parent == restored)).sum())
        for links, back in zip(*(_links(batch) for batch in (sent, got)), strict=True):
            self.links += 1
            self.links_right += links == back

    def _add_peers(self, spans: pa.RecordBatch, resource: dict[str, Any]) -> None:
        self.peer_spans += spans.num_rows
        self.bytes["json"] += len(json_rows(spans, resource))
        request = otlp(spans, resource)
        self.bytes["otlp"] += len(request)
        self.bytes["otlp_zstd"] += packed(ZSTD, request)
        messages, error = published(spans, resource)
        self.bytes["published_snappy"] += packed(SNAPPY, delimited(messages))
        self.peer_error_ns = max(self.peer_error_ns, error)

    def per_span(self, name: str) -> float:
        """Bytes a span of one format."""
        peers = ("json", "otlp", "otlp_zstd", "published_snappy")
        return self.bytes[name] / (self.peer_spans if name in peers else self.spans)


def _links(spans: pa.RecordBatch) -> list[Any]:
    links = spans["links"]
    return links.filter(pc.greater(pc.fill_null(pc.list_value_length(links), 0), 0)).to_pylist()


def packed(codec: pa.Codec, data: bytes) -> int:
    """Size once compressed."""
    return len(codec.compress(data, asbytes=True))


def column_sizes(data: bytes) -> dict[str, int]:
    """Compressed size of each part of a message by itself."""
    whole, sizes = pb.SpanBatch.FromString(data), {}
    for item, value in whole.ListFields():
        alone = pb.SpanBatch()
        if isinstance(value, bytes):
            setattr(alone, item.name, value)
        elif hasattr(value, "CopyFrom"):
            getattr(alone, item.name).CopyFrom(value)
        else:
            getattr(alone, item.name).extend(value)
        sizes[item.name] = packed(ZSTD, alone.SerializeToString())
    return sizes


def measure(name: str, written: Written, args: argparse.Namespace) -> None:
    """Print the figures of one trace."""
    sums = Sums()
    for batch in batches(written, args.buckets):
        sums.add(batch, 3_000 if args.quick else 20_000, args.columns)
    if sums.spans == 0:
        return
    small = sums.spans < SMALL_SPANS
    prefix = "wire.small" if small else "wire.bytes_per_span"
    ours = sums.per_span("batch_zstd")
    emit(
        f"{prefix}.batch_zstd.{name}",
        ours,
        "B",
        goal=None if small else GOAL_BYTES,
        peer="OTLP protobuf + zstd",
        ratio=sums.per_span("otlp_zstd") / ours,
        spans=sums.spans,
        messages=sums.messages,
        zstd_level=ZSTD_LEVEL,
        largest_message=round(sums.largest[1] / max(1, sums.largest[0]), 3),
    )
    others = ("batch_zstd3", "batch_snappy", "published_snappy", "otlp", "otlp_zstd", "json")
    for other in others:
        emit(f"{prefix}.{other}.{name}", sums.per_span(other), "B")
    emit(f"wire.time_error_ns.{name}", sums.time_error_ns, "ns", goal=0)
    emit(f"wire.time_error_ns.published.{name}", sums.peer_error_ns, "ns")
    topology = 100.0 * sums.links_right / sums.links if sums.links else 100.0
    emit(f"wire.topology_pct.{name}", topology, "%", goal=100, links=sums.links)
    for part, size in sums.columns.most_common(12):
        print(f"    {part:24} {size / sums.spans:.3f} B a span", file=sys.stderr)


if __name__ == "__main__":
    main()
