"""Every link of the README and of docs/ leads to a file that is there, and to a heading of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """What GitHub makes of each heading."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> Iterator[Any]:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if not target.startswith(("http:", "https:")):
                yield pytest.param(page, target, id=f"{page.name}-{target}")


@pytest.mark.parametrize(("page", "target"), list(links()))
def test_it_leads_somewhere(page: Path, target: str) -> None:
    name, _, anchor = target.partition("#")
    there = (page.parent / name) if name else page
    assert there.exists(), f"{page.name}: {target} is not there"
    if anchor:
        assert anchor in anchors(there), f"{page.name}: {there.name} has no heading {anchor}"
