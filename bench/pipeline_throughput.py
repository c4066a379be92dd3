"""Spans a second through the job, against Flink's own SQL path, over the same spans.

    python -m bench.pipeline_throughput [--quick] [--spans N] [--keep DIR]

Generated spans are written into a real broker as our batches, by the real sink, and the
first 4,000,000 of them once more as protobuf rows for SQL, 4,096 a message, spread evenly (its
rate is the same with more, and 40 million rows take longer to write than all the rest).
Then three jobs run one after the other, each in a MiniCluster of two slots on a full topic:
the job with tail sampling (errors, slow traces, rare kernels, 10 % of the rest), the job
keeping everything, and the
SQL job: protobuf format, UNNEST, Parquet with zstd, object reuse on. SQL is spared what the
job does besides: bucket folders, sorting, deduplication, roll-ups, weights, links, hex ids.

Measured: all spans, by the time from the moment at which the last task has opened its operators
(Python's workers are up, the first record is read) to the rename that commits the last file. So
the start of the JVM and of Python counts for none of them; deciding and writing all that is
open counts, and so does the job's own waiting until it believes that the topic is at its end.
All three commit every ten seconds, the job's default.

Verified: the rows in the Parquet files. Keep-all and SQL must have each span; of tail sampling the
rows must be what the ledger says was kept, and kept and sampled out must add up to all.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
from spanlite_collectors.generator import DecodeConfig, generate
from spanlite_stack.stack import Stack

from bench._flinklog import began_s, committed_s, environment
from bench._load import BatchLoad, RowLoad, Topic, fill
from bench._report import emit
from bench.flink_sql.job import JARS

RULES = Path(__file__).parent / "rules.yaml"
GOAL_SPANS_PER_S = 1_000_000
GOAL_RATIO = 2.0
PARTITIONS = 8
TIMEOUT_S = 900
CHECKPOINT_MS = 10_000
PEER_SPANS = 4_000_000


@dataclass
class Run:
    """What came of one job."""

    took_s: float
    rows: int
    file_bytes: int


@dataclass
class Bench:
    """A broker, a folder, and how often jobs commit."""

    bootstrap: str
    folder: Path
    checkpoint_ms: int

    def run(self, name: str, command: Sequence[str], out: Path) -> Run:
        """Run a job to its end; its output lies in `out`."""
        log, flink_logs = self.folder / f"{name}.log", self.folder / f"{name}-flink"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(flink_logs),
            )
            try:
                code = process.wait(TIMEOUT_S)
            finally:
                _end(process)
        if code != 0:
            tail = log.read_text(errors="replace").splitlines()[-15:]
            raise SystemExit("\n".join([*tail, f"bench: {name} failed with {code}; log: {log}"]))
        files = [path for path in out.rglob("*") if path.is_file() and _is_data(path, out)]
        rows = sum(pq.read_metadata(path).num_rows for path in files)
        took_s = committed_s(files) - began_s(flink_logs)
        return Run(took_s, rows, sum(path.stat().st_size for path in files))

    def ours(self, name: str, topic: Topic, *flags: str) -> tuple[Run, Path]:
        """The job; returns its archive too."""
        archive = self.folder / name
        command = [sys.executable, "-m", "spanlite.cli", "pipeline", "run", *flags]
        command += ["--archive", str(archive), "--bootstrap", self.bootstrap]
        command += ["--group", name, "--topic", topic.name, "--restarts", "0"]
        command += ["--checkpoint-interval", f"{self.checkpoint_ms}ms", "--until-idle", "500ms"]
        return self.run(name, command, archive / "incoming"), archive

    def sql(self, topic: Topic) -> Run:
        """The peer."""
        out = self.folder / "sql"
        command = [sys.executable, "-m", "bench.flink_sql.job", self.bootstrap, topic.name]
        command += [str(out), str(self.checkpoint_ms)]
        return self.run("sql", command, out)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_data(path: Path, root: Path) -> bool:
    return not any(part.startswith((".", "_")) for part in path.relative_to(root).parts)


def _ledger(archive: Path) -> dict[tuple[str, str], int]:
    """Spans on the hop `pipeline` by (direction, reason)."""
    rows = ds.dataset(archive / "ledger", format="parquet").to_table().to_pylist()
    out: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["hop"] == "pipeline":
            key = (row["direction"], row["reason"] or "")
            out[key] = out.get(key, 0) + row["spans"]
    return out


def _must(name: str, found: int, expected: int) -> None:
    if found != expected:
        raise SystemExit(f"bench: {name}: {found:,} spans, expected {expected:,}")


def _check_sampled(archive: Path, run: Run, total: int) -> None:
    counts = _ledger(archive)
    kept, out = counts.get(("out", ""), 0), counts.get(("dropped", "sampled_out"), 0)
    _must("tail sampling, rows in files", run.rows, kept)
    _must("tail sampling, kept and sampled out", kept + out, total)


def measure(bench: Bench, batches: Topic, rows: Topic) -> None:
    total = batches.total
    _must("rows for SQL", rows.total, min(total, PEER_SPANS))
    tail, archive = bench.ours("tail", batches, "--rules", str(RULES), "--decision-wait", "2s")
    _check_sampled(archive, tail, total)
    rate = total / tail.took_s
    share = tail.rows / total
    emit(
        "pipeline.spans_per_s.tail_sampling",
        rate,
        "spans/s",
        GOAL_SPANS_PER_S,
        kept=round(share, 3),
    )
    every, _ = bench.ours("all", batches, "--decision-wait", "2s")
    _must("keep all, rows in files", every.rows, total)
    all_rate = total / every.took_s
    emit("pipeline.spans_per_s.keep_all", all_rate, "spans/s")
    peer = bench.sql(rows)
    _must("Flink SQL, rows in files", peer.rows, rows.total)
    sql_rate = rows.total / peer.took_s
    emit("pipeline.spans_per_s.flink_sql", sql_rate, "spans/s")
    name = "Flink SQL"
    ratio = rate / sql_rate
    emit("pipeline.ratio_to_flink_sql", ratio, "x", GOAL_RATIO, name, ratio)
    emit("pipeline.ratio_to_flink_sql.keep_all", all_rate / sql_rate, "x", None, name)
    ours, theirs = every.file_bytes / total, peer.file_bytes / rows.total
    emit("pipeline.parquet_bytes_per_span", ours, "B/span", 10, name, theirs / ours)
    emit("pipeline.parquet_bytes_per_span.flink_sql", theirs, "B/span")
    emit("pipeline.kafka_bytes_per_span", batches.payload_bytes / total, "B/span")
    emit("pipeline.kafka_bytes_per_span.flink_sql", rows.payload_bytes / rows.total, "B/span")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer spans, under 50 s")
    parser.add_argument("--spans", type=int, help="(default: 40,000,000; quick: 2,000,000)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave logs and output here")
    args = parser.parse_args()
    if not (JARS / ".done").exists():
        raise SystemExit(
            "bench: the peer's jars are missing; run `make bench/flink_sql/jars/.done`"
        )
    spans = args.spans or (2_000_000 if args.quick else 40_000_000)
    folder = args.keep or Path(tempfile.mkdtemp(prefix="spanlite-bench-"))
    stack = Stack(folder / "stack")
    try:
        bench = Bench(stack.up().bootstrap, folder, CHECKPOINT_MS)
        stack.create_topic("spans.rows", PARTITIONS)
        began = time.monotonic()
        topics = fill(
            generate(DecodeConfig(spans=spans)),
            BatchLoad(bench.bootstrap, "spans.raw"),
            RowLoad(bench.bootstrap, "spans.rows", PARTITIONS, PEER_SPANS),
        )
        print(f"bench: {spans:,} spans in {time.monotonic() - began:.0f} s", file=sys.stderr)
        measure(bench, *topics)
    finally:
        stack.down()
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
