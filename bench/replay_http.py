"""How late `--target http` sends, and what it adds to latencies; the server is our test server.

Requests arrive as a Poisson process, 64 tokens in and 8 out. `send_error_ms` is from when a request
is due to when its headers are written. The server's own latency is known: a token every 5 ms and no
queue, so `added_ms` is what the client measured beyond 8 steps of the batch, which every
request waits for, and one more, which it may have to wait for to join.

`--url` measures somebody else's server in its place: latencies, failures, and how many of the
planned tokens it counted; `--server` is the name and version to keep beside the figures.
bench/_tiny_llama.py writes a model of random weights that llama.cpp can serve without a download.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
from spanlite.archive import schema
from spanlite_replay.pacing import MIN_SPIN_NS, Pacing
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording
from spanlite_replay.runner import run_plan
from spanlite_replay.targets.http import HttpTarget, Server, default_clients

from bench._report import emit

DECODE_PER_S, TOKENS = 200.0, 8
RATES, QUICK_RATES, OTHERS_RATES = (100, 1_000), (50, 150), (5, 20)


def plan_of(per_s: int, seconds: float) -> Plan:
    """Requests that arrive at random, always the same."""
    count = int(per_s * seconds)
    gaps = np.random.default_rng(per_s).exponential(1e9 / per_s, count).astype(np.int64)
    usage = f'{{"gen_ai.usage.input_tokens":64,"gen_ai.usage.output_tokens":{TOKENS}}}'
    known = {
        "trace_id": [f"{i + 1:032x}" for i in range(count)],
        "span_id": np.arange(1, count + 1),
        "start_ns": np.cumsum(gaps),
        "duration_ns": np.zeros(count, np.int64),
        "kind": ["request"] * count,
        "name": ["request"] * count,
        "service": ["bench"] * count,
        "attributes": [usage] * count,
        "parent_span_id": pa.nulls(count, pa.int64()),
    }
    fields = [schema.SPANS.field(name) for name in known]
    table = pa.table(known).cast(pa.schema(fields))
    return build_plan(Recording.from_table(table), PlanSettings(unit="request"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    parser.add_argument("--url", help="of another server's API, such as http://127.0.0.1:8080/v1")
    parser.add_argument("--server", default="not named", help="its name and version")
    args = parser.parse_args()
    quick = args.quick
    if args.url is not None:
        for per_s in OTHERS_RATES:
            measure_other(per_s, 5.0, args.url, args.server)
        return
    flags = [
        "--port",
        "18555",
        "--decode",
        str(DECODE_PER_S),
        "--slots",
        "4096",
        "--prefill",
        "1e9",
    ]
    command = [sys.executable, "-m", "spanlite_replay.testserver", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            url = child.stdout.readline().split()[-1]
            for per_s in QUICK_RATES if quick else RATES:
                measure(per_s, 3.0, url)
        finally:
            child.terminate()


def measure(per_s: int, seconds: float, url: str) -> None:
    target = HttpTarget(Server(url, clients=default_clients()), f"bench-{time.time_ns()}")
    report = run_plan(plan_of(per_s, seconds), target, Pacing(spin_ns=MIN_SPIN_NS))
    told = report.requests
    assert told is not None and told.send_error_ms is not None and told.latency_ms is not None
    if told.succeeded < told.requests or not report.closes:
        print(report.to_text(), file=sys.stderr)
    steps_ms = TOKENS * 1e3 / DECODE_PER_S
    for word in ("p50", "p99"):
        emit(f"replay.http.send_error_ms.{word}.{per_s}", getattr(told.send_error_ms, word), "ms")
        added = getattr(told.latency_ms, word) - steps_ms
        emit(f"replay.http.added_ms.{word}.{per_s}", added, "ms")
    emit(
        f"replay.http.failed.{per_s}",
        report.planned.events - told.succeeded,
        "requests",
        sent_per_s=round(told.sent_per_s, 1),
        clients=default_clients(),
    )


def measure_other(per_s: int, seconds: float, url: str, name: str) -> None:
    target = HttpTarget(Server(url, clients=default_clients()), f"bench-{time.time_ns()}")
    report = run_plan(plan_of(per_s, seconds), target, Pacing(spin_ns=MIN_SPIN_NS))
    told = report.requests
    assert told is not None
    more = {"server": name, "asked_per_s": per_s}
    for word, figures in (
        ("send_error", told.send_error_ms),
        ("ttft", told.ttft_ms),
        ("inter_token", told.inter_token_ms),
        ("latency", told.latency_ms),
    ):
        for point in ("p50", "p99"):
            if figures is not None:
                metric = f"replay.http.other.{word}_ms.{point}.{per_s}"
                emit(metric, getattr(figures, point), "ms", **more)
    for word in ("input", "output"):
        counted = told.tokens[f"{word}_counted"] / told.tokens[f"{word}_planned"]
        emit(f"replay.http.other.{word}_tokens_counted.{per_s}", counted, "of planned", **more)
    failed = report.planned.events - told.succeeded
    emit(f"replay.http.other.failed.{per_s}", failed, "requests", why=told.failed_why, **more)


if __name__ == "__main__":
    main()
