"""What the importers make of every real trace in ../shared/data, as the table in docs.

python -m bench.real_traces            print one JSON object a file
python -m bench.real_traces --write    also renew the tables in docs/real-traces.md
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
from spanlite.bucket import bucket_of
from spanlite.codec import Batch, encode_batch
from spanlite.errors import InputError
from spanlite.topics import ZSTD_LEVEL
from spanlite.v1 import spanlite_pb2 as pb
from spanlite_collectors.importers import ImportReport, import_file
from spanlite_collectors.sinks import MemorySink

from bench._report import emit

ROOT = Path(__file__).parents[1]
DATA = ROOT / "../shared/data"
PAGE = ROOT / "docs/real-traces.md"
_ZSTD = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
_MARK = "<!-- {} of python -m bench.real_traces --write -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smaller files only")
    parser.add_argument("--write", action="store_true", help="renew docs/real-traces.md")
    args = parser.parse_args()
    limit = 500_000 if args.quick else 1 << 40
    rows, refused = [], []
    for path in sorted(p for p in DATA.resolve().rglob("*") if p.is_file()):
        if path.name == "README.md" or path.stat().st_size > limit:
            continue
        name = str(path.relative_to(DATA.resolve()))
        sink, begin = MemorySink(), time.process_time()
        try:
            report = import_file(path, sink)
        except InputError as error:
            refused.append((name, str(error).removeprefix(f"{path}: ")))
            continue
        took = time.process_time() - begin
        size = wire_bytes(sink)
        rows.append(table_row(name, report, size))
        emit(f"import.spans.{name}", report.spans, "spans")
        emit(f"import.bytes_per_span.{name}", round(size / report.spans, 3), "B")
        records = sum(count.read for count in report.kinds.values())
        emit(f"import.records_per_cpu_s.{name}", round(records / took), "records/s")
    if args.write:
        write_page(rows, refused)


def wire_bytes(sink: MemorySink) -> int:
    """Bytes of all spans as zstd SpanBatches, one for each trace bucket and resource."""
    total = 0
    for resource in {repr(sorted(r.items())): r for _, r in sink.written}.values():
        spans = pa.Table.from_batches([s for s, r in sink.written if r == resource])
        whole = spans.combine_chunks().to_batches()[0]
        buckets = bucket_of(whole["trace_id_low"].to_numpy(), whole["trace_id_high"].to_numpy())
        for bucket in set(buckets.tolist()):
            header = pb.BatchHeader(bucket=bucket, bucket_count=64, producer="bench")
            picked = whole.filter(pa.array(buckets == bucket))
            data = encode_batch(Batch(header, picked, resource))
            total += len(_ZSTD.compress(data, asbytes=True))
    return total


def table_row(name: str, report: ImportReport, size: int) -> str:
    kinds = Counter(report.span_kinds)
    device = sum(kinds[kind] for kind in ("memcpy", "memset", "sync", "graph_launch"))
    total = Counter[str]()
    for count in report.kinds.values():
        total.update(vars(count))
    placed = Counter(report.placed)
    cells = (
        name, total["read"], total["kept"], total["used"], total["refused"], kinds["kernel"],
        device, placed["correlation"], placed["external_id"], placed["correlation_order"],
        placed["none"], report.steps, report.requests, report.traces,
        f"{size / report.spans:.2f}",
    )  # fmt: skip
    return "| " + " | ".join(f"{c:,}" if isinstance(c, int) else c for c in cells) + " |"


HEAD = (
    "| file | read | kept | used | refused | kernels | other device spans | by correlation "
    "| by External id | by order of ids | orphans | steps | requests | traces | B/span |"
)


def write_page(rows: list[str], refused: list[tuple[str, str]]) -> None:
    columns = HEAD.count("|") - 1
    table = [HEAD, "|---" + "|---:" * (columns - 1) + "|", *rows]
    table += ["", "Refused, since they hold no spans:", ""]
    table += [f"- `{name}`: {why}" for name, why in refused]
    start, end = _MARK.format("start"), _MARK.format("end")
    page = PAGE.read_text()
    pattern = re.compile(re.escape(start) + ".*" + re.escape(end), re.S)
    text = "\n".join([start, "", *table, "", end])
    PAGE.write_text(pattern.sub(lambda _: text, page))


if __name__ == "__main__":
    main()
