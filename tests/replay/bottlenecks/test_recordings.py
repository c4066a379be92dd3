"""The analysis and its command on recordings of an H200, and on other people's traces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECORDINGS = Path(__file__).parents[2] / "recordings"
SHARED = Path(__file__).parents[4] / "shared/data"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def archive_of(tmp_path: Path, write_archive: Callable[..., Path]) -> Callable[[Path], Path]:
    from spanlite_collectors.importers.api import import_file
    from spanlite_collectors.sinks import MemorySink

    def make(file: Path) -> Path:
        sink = MemorySink()
        import_file(file, sink)
        for spans, resource in sink.written:
            write_archive(tmp_path / "archive", spans, resource)
        return tmp_path / "archive"

    return make


def report_of(archive: Path, spanlite: Run) -> dict[str, Any]:
    code, out, err = spanlite("bottlenecks", archive, "--json")
    assert code == 0, err
    report: dict[str, Any] = json.loads(out)
    assert sum(share["share"] for share in report["shares"]) == pytest.approx(1)
    assert sum(row["ns"] for row in report["rows"]) == report["total_ns"]
    return report


def test_eager_decode_waits_for_the_host(archive_of: Any, spanlite: Run) -> None:
    report = report_of(archive_of(RECORDINGS / "eager_s1.json.gz"), spanlite)
    shares = {share["bound"]: share["share"] for share in report["shares"]}
    assert (report["unit"], report["windows"], report["gpu"]) == ("step", 6, "H200")
    assert shares["host"] + shares["launch"] > 0.8
    assert shares.get("unexplained", 0) < 0.01
    assert shares["profiler"] > 0.1  # its first buffer took 2.3 ms of 19.7
    assert report["causes"] == []


def test_graph_decode(archive_of: Any, spanlite: Run) -> None:
    archive = archive_of(RECORDINGS / "graph_s4.json.gz")
    report = report_of(archive, spanlite)
    shares = {share["bound"]: share["share"] for share in report["shares"]}
    assert shares["launch"] > 0.25 and shares["compute"] + shares["memory"] > 0.2
    assert report["causes"] == []
    code, out, _ = spanlite("bottlenecks", archive, "--top", "3")
    assert code == 0 and out.startswith("launch-bound: ")
    assert "causes: none" in out and "none of 5 steps stands out" in out


def test_an_empty_window_and_a_wrong_flag_are_refused(archive_of: Any, spanlite: Run) -> None:
    archive = archive_of(RECORDINGS / "graph_s1.json.gz")
    code, _, err = spanlite("bottlenecks", archive, "--to", "2020-01-01")
    assert code == 2 and "choose --from and --to within" in err
    assert spanlite("bottlenecks", archive, "--top", "0")[0] == 2
    assert spanlite("bottlenecks", archive.parent)[0] == 2


@pytest.mark.parametrize(
    "name", ["h100_qwen1.5_0.5b.json.gz", "vllm_decode_graph_execution.json.gz"]
)
def test_other_peoples_traces(name: str, archive_of: Any, spanlite: Run) -> None:
    file = SHARED / "kineto" / name
    if not file.exists():
        pytest.skip("the real traces of ../shared/data are not here")
    report = report_of(archive_of(file), spanlite)
    shares = {share["bound"]: share["share"] for share in report["shares"]}
    assert shares.get("unexplained", 0) < 0.05
    assert shares["memory"] + shares["compute"] > 0.4
