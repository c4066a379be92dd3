"""The README's commands, on the archive that `make demo` leaves (made here without Kafka)."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from spanlite.archive.layout import Archive
from spanlite.cli import build_parser, find_commands
from spanlite_analytics import query

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
#: These need a broker, or run until they are stopped; the demo and tests/deploy run them.
NOT_HERE = ("import", "stack", "collect")


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```console\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
    return [line[1:] for line in words if line[0] == "spanlite"]


@pytest.fixture(scope="module")
def demo_archive(
    tmp_path_factory: pytest.TempPathFactory, make_sink: Any, with_roll_ups: Any
) -> Path:
    from spanlite_collectors.importers import import_file

    sink = make_sink(tmp_path_factory.mktemp("demo") / "archive")
    for path in sorted((ROOT / "tests" / "recordings").glob("decode_*.spans.zst")):
        import_file(path, sink)
    archive: Archive = sink.archive
    with_roll_ups(archive.root)
    return archive.root


@pytest.fixture
def here(demo_archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SPANLITE_ARCHIVE", str(demo_archive))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return demo_archive


def test_lines_that_only_read(here: Path, spanlite: Any) -> None:
    ran = 0
    for words in commands():
        if words[0] in NOT_HERE or "kafka" in words:
            continue
        code, out, err = spanlite(*(word.replace("$SPANLITE_ARCHIVE", str(here)) for word in words))
        # The ledger is the pipeline's, which did not run here.
        assert code == (1 if words == ["ledger"] else 0), f"{words}: {err}"
        assert "Nothing" not in out or words == ["ledger"]
        ran += 1
    assert ran >= 6


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_line_is_a_command(words: list[str]) -> None:
    build_parser(words[0], find_commands()).parse_args(words)


def test_the_trace_it_shows_is_the_busiest_step(here: Path, spanlite: Any) -> None:
    (shown,) = (words[1] for words in commands() if words[0] == "trace")
    (listing,) = (w[1] for w in commands() if w[0] == "query" and "root_kind = 'step'" in w[1])
    assert query(here, listing)["trace_id"][0].startswith(shown)
    _, out, _ = spanlite("trace", shown)
    assert "(step)" in out and "(kernel)" in out


def test_the_demo_finds_that_trace_the_same_way(here: Path) -> None:
    (sql,) = re.findall(
        r'spanlite query .*"(SELECT trace_id.*?)"', (ROOT / "scripts/demo").read_text()
    )
    (shown,) = (words[1] for words in commands() if words[0] == "trace")
    assert query(here, sql)["trace_id"][0].startswith(shown)
