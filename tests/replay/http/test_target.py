"""Requests to a real server: when they went, what came back, what failed and why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spanlite.archive.reader import ArchiveReader
from spanlite.errors import InputError, ServiceError, UsageError
from spanlite.timewindow import ALL_TIME
from spanlite_replay.pacing import MIN_SPIN_NS, Pacing
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording
from spanlite_replay.report import Report
from spanlite_replay.respan import IdMap
from spanlite_replay.runner import run_plan
from spanlite_replay.targets._http_client import _count, _said
from spanlite_replay.targets.http import HttpTarget, Server, _model_names
from spanlite_replay.testserver.engine import Speed
from spanlite_replay.testserver.server import Faults, Running, running

Run = Callable[..., tuple[int, str, str]]
Plans = Callable[..., Plan]
PACING = Pacing(spin_ns=MIN_SPIN_NS)
HOUR, MS = 1_796_108_400_000_000_000, 1_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(Speed(1e6, 2_000, slots=64), "m") as one:
        yield one


def replay(plan: Plan, server: Server, out: Path | None = None) -> tuple[Report, HttpTarget]:
    target = HttpTarget(server, "r1", out)
    return run_plan(plan, target, PACING), target


def test_times_sizes_and_spans(make_requests: Plans, server: Running, tmp_path: Path) -> None:
    plan = make_requests([(i * 15, 10 + i, 1 + i % 5) for i in range(20)])
    before = len(server.api.engine.served)
    out = tmp_path / "seen.parquet"
    report, target = replay(plan, Server(server.url, clients=2), out)
    assert report.closes and report.fates["launched"].events == 20
    told = report.requests
    assert told is not None and told.succeeded == told.requests == 20 and told.model == "m"
    assert told.tokens["input_planned"] == told.tokens["input_counted"] == sum(range(10, 30))
    assert told.tokens["output_planned"] == told.tokens["output_counted"] == 60
    assert told.ttft_ms is not None and told.ttft_ms.count == 20
    assert told.inter_token_ms is not None and told.inter_token_ms.count == 60 - 20
    # Every moment on one clock: due, sent, arrived, first token made, last token seen.
    rows = pq.read_table(out).to_pylist()
    served = {one.prompt_tokens: one for one in server.api.engine.served[before:]}
    to_unix = target._to_unix_ns
    for row in rows:
        attributes = json.loads(row["attributes"])
        number = attributes["spanlite.replay.input_tokens"] - 10
        own, due = served[number + 10], row["start_ns"]
        assert due - to_unix == target._origin_ns + number * 15 * MS
        sent = due + attributes["spanlite.replay.send_error_ns"]
        first = due + attributes["spanlite.replay.ttft_ns"]
        last = due + attributes["spanlite.replay.last_token_ns"]
        assert due <= sent <= own.arrived_ns + to_unix <= own.first_token_ns + to_unix <= first
        assert own.last_token_ns + to_unix <= last <= due + row["duration_ns"]
        assert row["status"] == "ok" and row["replay_id"] == "r1" and row["kind"] == "request"
    low, high = IdMap.of("r1").traces(plan.recording.trace_low, plan.recording.trace_high)
    new = {f"{int(h):016x}{int(w):016x}" for w, h in zip(low, high, strict=True)}
    assert {row["trace_id"] for row in rows} == new
    links = {row["links"][0]["trace_id"] for row in rows}
    assert links == {f"{number:032x}" for number in range(1, 21)}


def test_latency_counts_from_when_a_request_was_due(make_requests: Plans) -> None:
    # One slot, 50 ms a request, one due each 5 ms: a closed loop would see 50 ms for each.
    plan = make_requests([(i * 5, 1, 5) for i in range(10)])
    with running(Speed(1e6, 100, slots=1), "m") as server:
        report, _ = replay(plan, Server(server.url))
    told = report.requests
    assert told is not None and told.latency_ms is not None and told.ttft_ms is not None
    assert told.latency_ms.max >= 10 * 49 - 9 * 5
    assert told.latency_ms.p50 >= 5 * 49 - 5 * 5
    assert told.ttft_ms.max >= 9 * 49 - 9 * 5


def test_failures_by_reason(make_requests: Plans) -> None:
    plan = make_requests([(i, 3, 4) for i in range(12)])
    with running(Speed(1e6, 2_000, slots=64), "m", Faults(refuse=4, cut=5)) as server:
        report, _ = replay(plan, Server(server.url))
    assert report.closes and report.requests is not None
    assert report.fates["failed"].events == 5 and report.fates["launched"].events == 7
    [refused] = [why for why in report.requests.failed_why if why.startswith("HTTP 503: ")]
    assert report.requests.failed_why.pop(refused) == 3
    assert sum(report.requests.failed_why.values()) == 2  # cut: however the client sees it
    assert f"{refused}: 3" in report.why_failed


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            b'{"error":{"code":400,"message":"request (1125 tokens)\\nis long"}}',
            "request (# tokens) is long",
        ),
        (b'{"error":"model not loaded"}', "model not loaded"),
        (b'{"object":"error","message":"no such model"}', "no such model"),
        (b'{"error":{"message":7}}', ""),
        (b'{"error":null}', ""),
        (b"[1]", ""),
        (b"<html>", ""),
        (b"\xff", ""),
    ],
)
def test_what_a_server_says_of_its_refusal(answer: bytes, words: str) -> None:
    assert _said(answer) == (f": {words}" if words else "")


def test_a_timeout_and_a_limit_of_connections(make_requests: Plans) -> None:
    plan = make_requests([(0, 1, 200), (1, 1, 1), (2, 1, 1)])
    with running(Speed(1e6, 20, slots=8), "m") as server:
        report, _ = replay(plan, Server(server.url, timeout_s=0.5, connections=1))
        served = server.api.engine.served
        told = report.requests
        assert told is not None and report.closes
        assert told.failed_why.get("no end after 0.5 s", 0) >= 1
        assert served[0].tokens < 200


def test_nothing_to_send_is_an_error(make_requests: Plans, server: Running) -> None:
    with pytest.raises(InputError, match="nothing to send"):
        replay(make_requests([(0, 0, 5), (5, 0, 3)]), Server(server.url))


def test_an_archive_takes_replays(make_requests: Plans, server: Running, tmp_path: Path) -> None:
    plan = make_requests([(i, 3, 2) for i in range(6)])
    out = tmp_path / "replays"
    for _ in range(2):
        replay(plan, Server(server.url, api="chat", ids=False), out)
    rows = [row for batch in ArchiveReader(out).scan(ALL_TIME) for row in batch.to_pylist()]
    assert len(rows) == 12 and {row["replay_id"] for row in rows} == {"r1"}


def test_a_client_that_dies_is_told(make_requests: Plans, server: Running) -> None:
    plan = make_requests([(0, 3, 2), (300, 3, 2)])
    target = HttpTarget(Server(server.url), "r1")

    class Killing(HttpTarget):
        def launch(self, events: np.ndarray) -> None:
            super().launch(events)
            if events[-1] == 1:
                self._clients[0].process.kill()

    target.__class__ = Killing
    report = run_plan(plan, target, PACING)
    assert report.closes and report.fates["failed"].events == 2
    assert "1 of 1 client processes ended early" in report.why_failed


def test_later_requests_of_a_trace(make_rows: Callable[..., pa.Table], server: Running) -> None:
    usage = '{"gen_ai.usage.input_tokens":3,"gen_ai.usage.output_tokens":2}'
    rows = [
        {"trace": trace, "start_ns": HOUR + at * MS, "duration_ns": MS, "kind": "request"}
        | {"attributes": usage}
        for trace, at in ((1, 0), (1, 120), (2, 60), (2, 9_000_000))
    ]
    plan = build_plan(Recording.from_table(make_rows(rows)), PlanSettings(unit="request"))
    target = HttpTarget(Server(server.url), "r1")
    before = len(server.api.engine.served)

    def waiting(launched: int) -> None:
        while len(server.api.engine.served) < before + 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    target.on_wait = waiting
    report = run_plan(plan, target, PACING)
    told = report.requests
    assert told is not None and told.requests == told.succeeded == 3
    assert report.fates["failed"].events == 1
    assert report.why_failed == "not due yet at the interrupt: 1"


def test_where_results_may_go(tmp_path: Path) -> None:
    server = Server("http://x/v1")
    (tmp_path / "kept" / "ledger").mkdir(parents=True)
    for name, words in (
        ("kept", "a folder of their own"),
        ("none/seen.parquet", "no folder"),
        ("seen.csv", ".parquet"),
    ):
        with pytest.raises(UsageError, match=words):
            HttpTarget(server, "r1", tmp_path / name)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"url": "http://127.0.0.1:1/v1"}, "no server answers at http://127.0.0.1:1/v1"),
        ({"model": "other"}, "serves m: it has no 'other'"),
        ({"url": "http://me:secret@127.0.0.1:1/v1"}, "no server answers at http://127.0.0.1:1/v1"),
        ({"url": "ftp://x"}, "no address"),
        ({"url": "http://[::1/v1"}, "no address"),
        ({"url": "http://host:99999/v1"}, "no address"),
        ({"url": "http://host:abc/v1"}, "no address"),
        ({"api": "chat"}, "a text"),
    ],
)
def test_what_cannot_be_asked(
    make_requests: Plans, server: Running, asked: dict[str, Any], words: str
) -> None:
    with pytest.raises((ServiceError, UsageError), match=words):
        replay(make_requests([(0, 1, 1)]), Server(**{"url": server.url, **asked}))


def test_from_the_command_line(
    spanlite: Run, azure_log: Callable[..., Path], server: Running, tmp_path: Path
) -> None:
    code, out, err = spanlite(
        "replay", azure_log(8, 20), "--target", "http", "--url", server.url, "--speed", "2",
        "--qps", "40", "--over", "drop", "--burst", "1",
    )  # fmt: skip
    assert code == 0 and "8 planned = 3 launched + 5 dropped" in out
    assert "TTFT      p50" in out and "sent      p50" in out and "waiting for" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--target", "http"], "needs --url"),
        (["--url", "http://x/v1"], "--url needs --target http"),
        (["--target", "http", "--url", "http://x/v1", "--no-wait"], "--no-wait"),
        (["--target", "http", "--url", "http://x/v1", "--late", "reanchor"], "reanchor"),
        (["--target", "http", "--url", "http://x/v1", "--unit", "span"], "--unit request"),
        (["--target", "http", "--url", "http://x/v1", "--body", "[]"], "JSON object"),
        (["--target", "http", "--url", "http://x/v1", "--clients", "0"], "1 or more"),
        (["--target", "http", "--url", "http://x/v1", "--api-key-env", "NONE_SUCH"], "not set"),
        (["--target", "http", "--url", "http://x/v1", "--aa"], "no fidelity"),
        (["--target", "http", "--url", "http://127.0.0.1:1/v1"], "no server answers"),
    ],
)
def test_flags_that_cannot_be(
    spanlite: Run, azure_log: Callable[..., Path], flags: list[str], words: str
) -> None:
    code, _, err = spanlite("replay", azure_log(2, 1), *flags)
    assert code == 2 and words in err and "Traceback" not in err


def test_ctrl_c_waits_for_what_is_on_its_way(
    azure_log: Callable[..., Path], make_requests: Plans
) -> None:
    with running(Speed(1e6, 8, slots=64), "m") as server:  # half a second an answer
        words = ["replay", azure_log(200, 50), "--target", "http", "--url", server.url, "--json"]
        child = subprocess.Popen(
            [sys.executable, "-m", "spanlite.cli", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while not server.api.engine.served:
            assert child.poll() is None, child.communicate()
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        served = len(server.api.engine.served)
    report = json.loads(out)
    assert child.returncode == 130 and "Traceback" not in err
    assert report["closes"] and report["interrupted"]
    assert report["requests"]["succeeded"] == served == report["fates"]["launched"]["events"]
    assert report["dropped_why"]["not reached before the interrupt"] == 200 - served


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b'{"data": [{"id": "m"}, {"id": "\\ud800"}]}', ["m"]),
        (b"[" * 200_000, []),
        (b'{"data": 5}', []),
    ],
)
def test_a_list_of_models_that_is_none(text: bytes, names: list[str]) -> None:
    assert _model_names(text) == names


@pytest.mark.parametrize("count", ["1e400", "9" * 30, "-2", '"x"', "null", "[1]"])
def test_a_count_that_is_none_fails_its_request_alone(count: str) -> None:
    with pytest.raises((ValueError, OverflowError, TypeError)):
        _count(json.loads(count))


@pytest.mark.parametrize(
    "flags",
    [
        ("--port", "99999"), ("--port", "-1"), ("--decode", "nan"), ("--prefill", "inf"),
        ("--slots", "0"), ("--queue", "-1"), ("--stop-after", "0"), ("--model", ""),
    ],
)  # fmt: skip
def test_flags_that_no_server_has(spanlite: Any, flags: tuple[str, str]) -> None:
    code, _, err = spanlite("testserver", *flags)
    assert code == 2 and flags[0] in err
