"""The report on a terminal, as JSON, as a page and as a trace; and the command."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from spanlite_replay.fidelity.chrome import write_chrome
from spanlite_replay.fidelity.page import page
from spanlite_replay.fidelity.report import compare
from spanlite_replay.fidelity.terminal import print_report

Observe = Callable[..., pa.Table]


@pytest.fixture
def seen(recorded: pa.Table, observe: Observe, kernel_rows: np.ndarray) -> pa.Table:
    """A replay without the last kernel, 3 us late."""
    return observe(recorded, start=3_000).slice(0, len(recorded) - 1)


def test_terminal(recorded: pa.Table, seen: pa.Table) -> None:
    console = Console(width=150, record=True, file=io.StringIO())
    print_report(compare(recorded, seen), console)
    text = console.export_text()
    assert text.startswith("grade B (coverage 0.99, A asks for 1)")
    assert "100 planned = 99 observed + 1 lost" in text
    assert "noise" not in text
    print_report(compare(recorded, seen, again=seen), console)
    assert "noise (A/A)" in console.export_text()


def test_page_is_self_contained(recorded: pa.Table, seen: pa.Table) -> None:
    text = page(compare(recorded, seen), recorded, seen)
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text)
    assert text.count('class="plan"') + text.count('class="lost"') >= 100
    assert "grade B" in text


def test_page_escapes_names(table: Callable[..., pa.Table], observe: Observe) -> None:
    rows = [{"trace_id": f"{1:032x}", "span_id": 1, "start_ns": 0, "duration_ns": 5, "stream": 1}]
    recorded = table([row | {"name": "<script>alert(1)</script>"} for row in rows])
    text = page(compare(recorded, observe(recorded)), recorded, observe(recorded))
    assert "<script>" not in text and "&lt;script&gt;" in text


def test_chrome_has_both_tracks(recorded: pa.Table, seen: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert write_chrome(recorded, seen, path) == 200 + 199
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    planned = {e["args"]["span_id"]: e for e in spans if e["pid"] == 1}
    replayed = {e["args"]["span_id"]: e for e in spans if e["pid"] == 2}
    assert len(planned) == 200 and len(replayed) == 199
    one = next(iter(replayed))
    assert replayed[one]["ts"] - planned[one]["ts"] == pytest.approx(3.0)
    assert replayed[one]["args"]["start_error_ns"] == 3_000
    assert sum("lost" in event["args"] for event in spans) == 1


@pytest.fixture
def files(recorded: pa.Table, seen: pa.Table, tmp_path: Path) -> tuple[Path, Path]:
    pq.write_table(recorded, tmp_path / "recorded.parquet")
    pq.write_table(seen, tmp_path / "observed.parquet")
    return tmp_path / "recorded.parquet", tmp_path / "observed.parquet"


def test_command(
    files: tuple[Path, Path], tmp_path: Path, spanlite: Callable[..., tuple[int, str, str]]
) -> None:
    html, trace = tmp_path / "r.html", tmp_path / "r.json"
    code, out, _ = spanlite(
        "fidelity", *files, "--aa", files[1], "--json", "--html", html, "--chrome", trace
    )
    report = json.loads(out)
    assert code == 0 and report["grade"]["letter"] == "B"
    assert report["noise"]["starts.p99_us"] == 0
    assert html.stat().st_size and trace.stat().st_size
    assert spanlite("fidelity", *files, "--fail-below", "A")[0] == 1
    assert spanlite("fidelity", *files, "--fail-below", "B")[0] == 0


def test_a_replay_given_as_spans(
    files: tuple[Path, Path],
    recorded: pa.Table,
    tmp_path: Path,
    spanlite: Callable[..., tuple[int, str, str]],
) -> None:
    late = recorded.set_column(
        recorded.column_names.index("start_ns"),
        recorded.schema.field("start_ns"),
        pa.array(recorded.column("start_ns").to_numpy() + 10**12),
    )
    pq.write_table(late, tmp_path / "again.parquet")
    code, out, _ = spanlite("fidelity", files[0], tmp_path / "again.parquet", "--json")
    assert code == 0 and json.loads(out)["grade"]["letter"] == "A"


@pytest.mark.parametrize("wrong", ["missing.parquet", "."])
def test_wrong_files_are_named(
    files: tuple[Path, Path],
    tmp_path: Path,
    wrong: str,
    spanlite: Callable[..., tuple[int, str, str]],
) -> None:
    code, _, err = spanlite("fidelity", files[0], tmp_path / wrong)
    assert code == 2 and str(tmp_path) in err


def test_replay_says_how_faithful_it_was(
    tmp_path: Path,
    write_archive: Callable[..., Path],
    spanlite: Callable[..., tuple[int, str, str]],
) -> None:
    from spanlite_collectors.importers.api import import_file
    from spanlite_collectors.sinks import MemorySink

    sink = MemorySink()
    import_file(Path(__file__).parents[2] / "recordings" / "graph_s1.json.gz", sink)
    for spans, resource in sink.written:
        write_archive(tmp_path / "archive", spans, resource)
    page_file = tmp_path / "f.html"
    code, out, err = spanlite(
        "replay", tmp_path / "archive", "--target", "sim", "--aa", "--json", "--html", page_file
    )
    assert code == 0, err
    report = json.loads(out)
    fidelity = report["fidelity"]
    assert fidelity["spans"] == 258 and fidelity["lost"] == fidelity["violations"] == 0
    assert fidelity["noise"]["starts.p99_us"] == 0  # the simulator is deterministic
    assert fidelity["conservation"] == report["conservation"]
    assert fidelity["environment"]["plan_digest"] == report["digest"]
    assert page_file.read_text().startswith("<!doctype html>")
    code, _, err = spanlite("replay", tmp_path / "archive", "--fidelity")
    assert code == 2 and "no fidelity" in err
