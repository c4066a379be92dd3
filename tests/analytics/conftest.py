"""Small archives made by hand, so that every expected number can be checked by eye."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spanlite.archive import schema
from spanlite.archive.files import ABSORBED_KEY, COMPACTED
from spanlite.archive.layout import Archive, hour_folder
from spanlite.archive.writer import SpanFileBuilder
from spanlite.bucket import bucket_of
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.v1.spanlite_pb2 import BatchHeader
from spanlite_analytics import query

#: 2026-12-01T07:00:00Z
HOUR = 1_796_108_400_000_000_000
MS = 1_000_000

_SPAN = {
    "kind": "kernel",
    "name": "k",
    "status": "ok",
    "service": "llm",
    "host": "h1",
    "process_id": 7,
    "flags": 0,
    "resource": "{}",
    "sampling_weight": 1.0,
    "clock_offset_ns": 0,
    "clock_uncertainty_ns": 0,
}
_TRACE = {
    "spans": 1,
    "errors": 0,
    "device_spans": 0,
    "device_ns": 0,
    "bytes": 0,
    "root_name": "step",
    "root_kind": "step",
    "service": "llm",
    "host": "h1",
    "kept": True,
    "policy": "all",
    "sampling_weight": 1.0,
    "late": False,
    "bucket": 0,
}
_MINUTE = {
    "service": "llm",
    "host": "h1",
    "device": 0,
    "kind": "kernel",
    "name": "k",
    "spans": 1,
    "errors": 0,
    "min_ns": 0,
    "max_ns": 0,
    "bytes": 0,
}
_LEDGER = {"source": "job", "reason": "", "bucket": 0, "messages": 0}


def trace_id(number: int) -> str:
    return f"{number:032x}"


def _write(
    rows: list[dict[str, Any]], table: pa.Schema, folder: Path, absorbed: list[str] | None = None
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    columns = [pa.array([row.get(f.name) for row in rows], f.type) for f in table]
    metadata = {schema.SCHEMA_VERSION_KEY: schema.SCHEMA_VERSION.encode()}
    prefix = "part-"
    if absorbed is not None:
        metadata[ABSORBED_KEY] = json.dumps(absorbed).encode()
        prefix = COMPACTED
    name = f"{prefix}{len(list(folder.glob('*.parquet')))}.parquet"
    pq.write_table(pa.table(columns, schema=table.with_metadata(metadata)), folder / name)


class Builder:
    """Adds rows to an archive; what a row does not say is filled in."""

    def __init__(self, root: Path, buckets: int = 4) -> None:
        self.archive = Archive.create(root, buckets)
        self.root = root

    def _by(
        self, rows: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], str]
    ) -> dict[str, list[dict[str, Any]]]:
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault(key(row), []).append(row)
        return groups

    def spans(self, *rows: dict[str, Any], compacted: bool = False) -> Builder:
        def folder(row: dict[str, Any]) -> str:
            number = int(row["trace_id"], 16)
            low, high = number & (2**64 - 1), number >> 64
            bucket = int(bucket_of(low, high, self.archive.bucket_count)[0])
            return f"{hour_folder(row['start_ns'])}/bucket={bucket}"

        full = [_SPAN | row for row in rows]
        for name, group in self._by(full, folder).items():
            group.sort(key=lambda r: (r["trace_id"], r["start_ns"], r["span_id"]))
            if compacted:  # `incoming/` stays, as it does for a while after a compaction
                old = [p.name for p in (self.root / "incoming" / name).glob("*.parquet")]
                _write(group, schema.SPANS, self.root / "spans" / name, old)
            else:
                _write(group, schema.SPANS, self.root / "incoming" / name)
        return self

    def traces(self, *rows: dict[str, Any]) -> Builder:
        for name, group in self._by(rows, lambda r: hour_folder(r["start_ns"])).items():
            full = [_TRACE | row for row in group]
            _write(full, schema.TRACES, self.root / "traces" / name)
        return self

    def minutes(self, *rows: dict[str, Any]) -> Builder:
        for name, group in self._by(rows, lambda r: hour_folder(r["minute_ns"])).items():
            full = [_MINUTE | row for row in group]
            _write(full, schema.KERNEL_MINUTES, self.root / "kernel_minutes" / name)
        return self

    def ledger(self, *rows: dict[str, Any]) -> Builder:
        key = lambda r: hour_folder(r["time_ns"]).split("/")[0]  # noqa: E731
        for name, group in self._by(rows, key).items():
            full = [_LEDGER | {"time_ns": HOUR} | row for row in group]
            _write(full, schema.LEDGER, self.root / "ledger" / name)
        return self


@pytest.fixture
def build(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "archive")


@pytest.fixture
def spanlite(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `spanlite ARGS`: (exit code, stdout, stderr)."""
    from spanlite.cli import main

    def run(*args: object) -> tuple[int, str, str]:
        try:
            code = main([str(a) for a in args])
        except SystemExit as stop:  # argparse
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def store(archive: Archive, spans: pa.RecordBatch, resource: dict[str, Any]) -> None:
    """Put spans in SPAN_SCHEMA into an archive, by way of the wire and the archive's writer."""
    buckets = bucket_of(
        spans.column("trace_id_low").to_numpy(),
        spans.column("trace_id_high").to_numpy(),
        archive.bucket_count,
    )
    for bucket in np.unique(buckets).tolist():
        rows = spans.take(pa.array(np.flatnonzero(buckets == bucket)))
        header = BatchHeader(
            schema_version=1,
            bucket=bucket,
            bucket_count=archive.bucket_count,
            producer="test",
            span_count=rows.num_rows,
        )
        builder = SpanFileBuilder()
        builder.add(BatchView(encode_batch(Batch(header, rows, resource))))
        for hour, data, _ in builder.finish():
            folder = archive.root / "incoming" / hour / f"bucket={bucket}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"part-{len(list(folder.iterdir()))}.parquet").write_bytes(data)


class ArchiveSink:
    """A SpanSink that stores what importers write."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive

    def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        store(self.archive, spans, dict(resource))

    def drop(self, reason: str, spans: int) -> None:
        raise AssertionError(f"{spans} spans dropped: {reason}")

    def flush(self) -> None:
        pass


@pytest.fixture(scope="session")
def decode_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some seconds of generated decoding, eager and graph steps mixed, two hosts."""
    from spanlite_collectors.generator import DecodeConfig, generate

    archive = Archive.create(tmp_path_factory.mktemp("decode") / "archive", 4)
    config = DecodeConfig(
        spans=60_000, hosts=2, processes=1, layers=4, slow_share=0.05, graph_share=0.5
    )
    for spans, resource in generate(config):
        store(archive, spans, resource)
    return archive.root


@pytest.fixture(scope="session")
def full_archive(decode_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The decode archive with traces and roll-ups, as the pipeline would have made them."""
    root = tmp_path_factory.mktemp("full") / "archive"
    shutil.copytree(decode_archive, root)
    add_roll_ups(root)
    return root


@pytest.fixture(scope="session")
def with_roll_ups() -> Callable[[Path], None]:
    return add_roll_ups


def add_roll_ups(root: Path) -> None:
    """The traces and roll-ups that the pipeline makes of an archive's spans."""
    traces = query(
        root,
        """SELECT trace_id, min(start_ns) AS start_ns, max(end_ns) AS end_ns, count(*) AS spans,
            coalesce(sum(duration_ns) FILTER (kind IN ('kernel', 'memcpy', 'memset')), 0)::BIGINT
                AS device_ns,
            arg_min(name, start_ns) AS root_name, arg_min(kind, start_ns) AS root_kind,
            any_value(service) AS service, any_value(host) AS host
        FROM spans GROUP BY trace_id""",
    )
    minutes = query(
        root,
        """SELECT start_ns // 60000000000 * 60000000000 AS minute_ns, service, host, device, kind,
            name, count(*) AS spans, sum(duration_ns)::BIGINT AS duration_ns,
            min(duration_ns) AS min_ns, max(duration_ns) AS max_ns
        FROM spans GROUP BY ALL""",
    ).astype({"device": object})
    minutes["device"] = minutes["device"].where(minutes["device"].notna(), None)
    builder = Builder(root)
    builder.traces(*traces.to_dict("records"))
    builder.minutes(*minutes.to_dict("records"))


@pytest.fixture(scope="session")
def make_sink() -> Callable[[Path], ArchiveSink]:
    return lambda root: ArchiveSink(Archive.create(root, 4))
