"""`spanlite replay` as a user types it, with the dry target."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Run = Callable[..., tuple[int, str, str]]
HOUR = 1_796_108_400_000_000_000
MS = 1_000_000


@pytest.fixture
def make_archive(
    make_spans: Callable[..., pa.RecordBatch], write_archive: Callable[..., Path]
) -> Callable[..., Path]:
    def make(root: Path, parts: int = 1, traces: int = 40) -> Path:
        count = 3 * traces
        batch = make_spans(
            trace_id_low=[1 + i // 3 for i in range(count)],
            span_id=[100 + i for i in range(count)],
            parent_span_id=[0 if i % 3 == 0 else 100 + i - i % 3 for i in range(count)],
            start_ns=[HOUR + i * 20 * MS for i in range(count)],
            duration_ns=[(60 if i % 3 == 0 else 5) * MS for i in range(count)],
            kind=[9 if i % 3 == 0 else 1 for i in range(count)],
            name=pa.array(
                ["Schritt é" if i % 3 == 0 else "gemm" for i in range(count)]
            ).dictionary_encode(),
        )
        return write_archive(root, batch, {"service.name": "llm"}, parts)

    return make


@pytest.fixture
def archive(tmp_path: Path, make_archive: Callable[..., Path]) -> Path:
    return make_archive(tmp_path / "archive")


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


FLAGS = ("--sample", "1/2", "--speed", "2", "--qps", "10", "--over", "thin", "--seed", "3")


def test_the_schedule_is_printed(spanlite: Run, archive: Path) -> None:
    code, out, err = spanlite("replay", archive, "--no-wait")
    rows = lines(out)
    assert code == 0 and len(rows) == 120
    assert rows[0] == {
        "event": 0,
        "due_ns": HOUR,
        "recorded_ns": HOUR,
        "duration_ns": 60 * MS,
        "spans": 1,
        "fate": "planned",
        "trace_id": f"{1:032x}",
        "span_id": 100,
        "kind": "step",
        "name": "Schritt é",
        "service": "llm",
    }
    assert "120 planned = 120 launched + 0 dropped + 0 thinned" in err


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_same_bytes_for_the_same_seed(
    spanlite: Run, tmp_path: Path, make_archive: Callable[..., Path], suffix: str
) -> None:
    # Even where the archive holds the same spans in other files, and whether it waits or not.
    one, two = make_archive(tmp_path / "one"), make_archive(tmp_path / "two", parts=3)
    outs = [tmp_path / f"{name}{suffix}" for name in ("a", "b", "c")]
    assert spanlite("replay", one, *FLAGS, "--no-wait", "--out", outs[0])[0] == 0
    assert spanlite("replay", two, *FLAGS, "--out", outs[1])[0] == 0
    other_seed = (*FLAGS[:-1], "4")
    assert spanlite("replay", one, *other_seed, "--no-wait", "--out", outs[2])[0] == 0
    assert outs[0].read_bytes() == outs[1].read_bytes() != outs[2].read_bytes()


def test_parquet_and_json_lines_agree(spanlite: Run, archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.parquet"
    _, printed, _ = spanlite("replay", archive, *FLAGS, "--no-wait")
    code, report, _ = spanlite("replay", archive, *FLAGS, "--no-wait", "--out", out, "--json")
    table = pq.read_table(out)
    assert code == 0 and table.to_pylist() == lines(printed)
    digest = json.loads(report)["digest"]
    assert table.schema.metadata[b"spanlite.plan_digest"].decode() == digest


def test_waiting_keeps_the_asked_time(spanlite: Run, archive: Path, tmp_path: Path) -> None:
    begin = time.monotonic()
    code, out, _ = spanlite(
        "replay", archive, "--speed", "4", "--out", tmp_path / "p.jsonl", "--json"
    )
    report = json.loads(out)
    assert code == 0 and time.monotonic() - begin >= 119 * 0.020 / 4
    assert report["timing"]["asked_per_s"] == pytest.approx(200)
    assert report["timing"]["error_p50_us"] >= 0
    assert report["conservation"].startswith("120 planned = 120 launched")


def test_the_window_takes_whole_traces(spanlite: Run, archive: Path) -> None:
    # The second trace starts at 60 ms; the window ends within it.
    start, end = HOUR + 30 * MS, HOUR + 70 * MS
    code, out, _ = spanlite("replay", archive, "--from", start, "--to", end, "--no-wait")
    assert code == 0
    assert [row["span_id"] for row in lines(out)] == [103, 104, 105]


def test_an_empty_window_says_what_there_is(spanlite: Run, archive: Path) -> None:
    code, out, err = spanlite("replay", archive, "--from", "2020-01-01", "--to", "2020-01-02")
    assert (code, out) == (2, "")
    assert "no trace starts in 2020-01-01T00:00:00Z to 2020-01-02T00:00:00Z" in err
    assert "has spans from 2026-12-01T07:00:00Z to 2026-12-01T08:00:00Z" in err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--over", "drop"], "--qps"),
        (["--burst", "2"], "--qps"),
        (["--qps", "5", "--burst", "0"], "1 or more"),
        (["--qps", "0"], "above 0"),
        (["--speed", "-2"], "above 0"),
        (["--speed", "fast"], "not a number"),
        (["--sample", "1.5"], "share"),
        (["--max-gap", "5"], "not a duration"),
        (["--start-at", "soon"], "not a time"),
        (["--no-wait", "--late", "drop"], "no deadlines"),
        (["--no-wait", "--max-catchup", "1s"], "no deadlines"),
        (["--no-wait", "--priority"], "no deadlines"),
        (["--no-wait", "--cpu", "0"], "no deadlines"),
        (["--cpu", "first"], "its number, or auto"),
        (["--cpu", "4000"], "--cpu 4000: this process may use"),
        (["--late", "drop", "--max-catchup", "0ns"], "1us or more"),
        (["--max-catchup", "1s"], "--late reanchor"),
        (["--no-wait", "--tolerance", "1s"], "no deadlines"),
        (["--loop", "0"], "1 or more"),
        (["--loop", "9999999"], "at most"),
        (["--smooth", "0s"], "above 0"),
        (["--qps", "5", "--qps", "6"], "second rate"),
        (["--qps", "nobody=5"], "there are llm"),
        (["--qps", "=5"], "no service before"),
        (["--out", "nowhere/schedule.parquet"], "there is no folder"),
        (["--target", "sim", "--out", "nowhere/seen.parquet"], "there is no folder"),
        (["--target", "sim", "--html", "nowhere/page.html"], "there is no folder"),
        (["--target", "sim", "--chrome", "/"], "it is a folder"),
        (["--topic", "x"], "--target kafka"),
        (["--replay-id", "x"], "--target kafka"),
        (["--bootstrap", "x:1"], "--target kafka"),
        (["--target", "kafka", "--out", "x.jsonl"], "--target dry"),
        (["--target", "kafka", "--late", "drop"], "--target dry"),
        (["--target", "kafka", "--replay-id", "a b"], "letters"),
        (["--out", "plan.csv"], ".parquet or .jsonl"),
        (["--out", "/nowhere/plan.jsonl"], "cannot be written"),
        (["--unit", "request"], "--unit span"),
        (["--last", "1h", "--from", "now"], "give one"),
    ],
)
def test_what_cannot_be_is_refused(
    spanlite: Run, archive: Path, flags: list[str], words: str
) -> None:
    code, out, err = spanlite("replay", archive, *flags)
    assert (code, out) == (2, "")
    assert words in err and "Traceback" not in err


def test_what_is_later_than_the_tolerance_ends_in_1(spanlite: Run, archive: Path) -> None:
    flags = ("--speed", "100", "--out", archive.parent / "p.jsonl", "--json")
    code, out, _ = spanlite("replay", archive, *flags, "--tolerance", "1h")
    assert code == 0 and json.loads(out)["timing"]["missed"] == 0
    code, out, _ = spanlite("replay", archive, *flags, "--tolerance", "0ns")
    assert code == 1 and json.loads(out)["timing"]["missed"] > 0


def test_loop_and_rates_of_services(spanlite: Run, archive: Path) -> None:
    code, out, _ = spanlite(
        "replay", archive, "--no-wait", "--loop", "2", "--qps", "llm=1", "--over", "drop"
    )
    rows = lines(out)
    assert code == 0 and len(rows) == 240
    assert len({(row["trace_id"], row["span_id"]) for row in rows}) == 240
    kept = {row["trace_id"] for row in rows if row["fate"] == "planned"}
    assert 4 <= len(kept) <= 6  # 40 traces in 2.4 s, twice


def test_no_archive(spanlite: Run, tmp_path: Path) -> None:
    code, _, err = spanlite("replay", tmp_path)
    assert code == 2 and "is not a SpanLite archive" in err


def test_no_broker(spanlite: Run, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spanlite_replay.targets.kafka.CONNECT_S", 1.0)
    code, _, err = spanlite("replay", archive, "--target", "kafka", "--bootstrap", "127.0.0.1:1")
    assert code == 2 and "no Kafka broker answers at 127.0.0.1:1" in err


def test_help_shows_an_example(spanlite: Run) -> None:
    code, out, _ = spanlite("replay", "--help")
    assert code == 0 and "spanlite replay data/archive --speed 2" in out


def test_ctrl_c_prints_what_was_done(archive: Path, tmp_path: Path) -> None:
    words = [
        "replay",
        str(archive),
        "--speed",
        "1/100",
        "--out",
        str(tmp_path / "p.jsonl"),
        "--json",
    ]
    child = subprocess.Popen(
        [sys.executable, "-m", "spanlite.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    while not (line := child.stderr.readline()).startswith("replaying"):
        assert line, "it ended before it began"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    report = json.loads(out)
    assert child.returncode == 130 and err == ""
    assert report["closes"] and report["interrupted"]
    launched, dropped = (report["fates"][word]["events"] for word in ("launched", "dropped"))
    assert launched + dropped == 120 and dropped > 0
    assert report["dropped_why"]["not reached before the interrupt"] == dropped
