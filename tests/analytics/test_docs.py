"""Every statement and command in these pages runs."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from spanlite.archive.layout import Archive
from spanlite.archive.reader import ArchiveReader

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("query.md", "ledger.md", "find-the-slow-kernel.md")


def blocks(language: str) -> list[Any]:
    found = []
    for page in PAGES:
        text = (DOCS / page).read_text()
        parts = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        found += [pytest.param(part, id=f"{page}-{i}") for i, part in enumerate(parts)]
    assert found
    return found


@pytest.mark.parametrize("sql", blocks("sql"))
def test_sql(sql: str, full_archive: Path, spanlite: Any) -> None:
    code, out, err = spanlite("query", sql, "--format", "csv", "--archive", full_archive)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) > 1, "no rows"


@pytest.mark.parametrize("text", blocks("sh"))
def test_commands(
    text: str, full_archive: Path, spanlite: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPANLITE_ARCHIVE", str(full_archive))
    ids = ArchiveReader(Archive.open(full_archive)).read_table("traces").column("trace_id")
    for line in text.replace("TRACE_ID", ids[0].as_py()).splitlines():
        program, *args = shlex.split(line)
        assert program == "spanlite"
        code, _, err = spanlite(*args)
        # The ledger of a made-up archive is empty, so its rows are too many.
        assert (code, err) == (1 if args == ["ledger"] else 0, "")


def test_notebook(full_archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANLITE_ARCHIVE", str(full_archive))
    (code,) = re.findall(r"^```python\n(.*?)^```", (DOCS / "query.md").read_text(), re.S | re.M)
    names: dict[str, Any] = {}
    exec(code.replace('"-15m"', '"2025-01-01"'), names)
    assert len(names["spans"]) and len(names["loads"])
