"""Replay's invariants, held through the command on archives of random traffic.

R1  planned = launched + dropped + thinned + unsupported + failed, in events and in spans,
    and what was left out before the plan makes up the rest of the window.
R2  The same archive, flags and seed give the same schedule, byte for byte.
R3  Replay only reads: the archive is bit for bit what it was.
R4  No span is planned twice, and a trace is planned whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from spanlite.archive.layout import INCOMING, Archive
from spanlite.archive.writer import SpanFileBuilder
from spanlite.bucket import bucket_of
from spanlite.cli import main
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.schema import SPAN_SCHEMA
from spanlite.v1 import spanlite_pb2 as pb

HOUR = 1_796_108_400_000_000_000
BUCKETS, TRACES = 4, 300


def traffic(seed: int) -> dict[str, np.ndarray]:
    """Traces of one to eight spans in bursts, some across the hour."""
    rng = np.random.default_rng(seed)
    size = rng.integers(1, 9, TRACES)
    trace = np.repeat(np.arange(TRACES), size)
    first = HOUR + 3_590 * 10**9 + np.cumsum(rng.choice([10**5, 3 * 10**8], TRACES))
    inside = rng.integers(0, 10**8, len(trace))
    return {
        "trace_id_low": rng.integers(1, 2**63, TRACES)[trace],
        "span_id": 1 + np.arange(len(trace)),
        "start_ns": first[trace] + inside,
        "duration_ns": rng.integers(0, 10**7, len(trace)),
        "kind": rng.choice([1, 9, 10], len(trace)),
    }


@pytest.fixture(params=[1, 2])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    columns = traffic(request.param)
    low = columns["trace_id_low"]
    bucket = bucket_of(low, np.zeros(len(low)), BUCKETS)
    found = Archive.create(tmp_path / "archive", BUCKETS)
    for number in range(BUCKETS):
        rows = bucket == number
        header = pb.BatchHeader(bucket=number, bucket_count=BUCKETS, producer="p")
        spans = _spans({name: values[rows] for name, values in columns.items()})
        builder = SpanFileBuilder()
        builder.add(BatchView(encode_batch(Batch(header, spans, {"service.name": "s"}))))
        for hour, data, _ in builder.finish():
            folder = found.root / INCOMING / hour / f"bucket={number}"
            folder.mkdir(parents=True)
            (folder / "part-0.parquet").write_bytes(data)
    return found.root


def _spans(columns: dict[str, np.ndarray]) -> pa.RecordBatch:
    count = len(columns["span_id"])
    arrays = []
    for item in SPAN_SCHEMA:
        if item.name in columns:
            arrays.append(pa.array(columns[item.name].astype(item.type.to_pandas_dtype())))
        elif item.nullable:
            arrays.append(pa.nulls(count, item.type))
        elif item.name == "name":
            arrays.append(pa.array(["k"] * count).dictionary_encode())
        else:
            none = -1 if item.name in ("device", "context", "stream") else 0
            arrays.append(pa.array(np.full(count, none), item.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SPAN_SCHEMA)


def state(root: Path) -> dict[str, str]:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("unit", ["span", "trace", "request"])
@pytest.mark.parametrize("over", ["delay", "drop", "thin"])
def test_replay(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], unit: str, over: str
) -> None:
    before = state(archive)
    flags = ["--unit", unit, "--sample", "0.7", "--speed", "3/2", "--qps", "20", "--over", over]
    outs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for out in outs:
        words = ["replay", str(archive), *flags, "--no-wait", "--json", "--out", str(out)]
        assert main(words) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])

    spans = sum(count["spans"] for count in report["fates"].values())
    assert report["closes"] and spans == report["planned"]["spans"]
    in_archive = len(traffic(1)["span_id"]), len(traffic(2)["span_id"])
    assert spans + sum(report["left_out"].values()) in in_archive  # R1
    assert outs[0].read_bytes() == outs[1].read_bytes()  # R2
    assert state(archive) == before  # R3

    rows = [json.loads(line) for line in outs[0].read_text().splitlines()]
    assert len({(row["trace_id"], row["span_id"]) for row in rows}) == len(rows)
    fates: dict[str, set[str]] = {}
    for row in rows:
        fates.setdefault(row["trace_id"], set()).add(row["fate"])
    assert all(len(found) == 1 for found in fates.values())
    whole = Counter(
        f"{low:032x}" for seed in (1, 2) for low in traffic(seed)["trace_id_low"].tolist()
    )
    planned: Counter[str] = Counter()
    for row in rows:
        planned[row["trace_id"]] += row["spans"]
    assert all(whole[trace] == count for trace, count in planned.items())  # R4
