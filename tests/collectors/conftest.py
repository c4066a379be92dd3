"""Files of ours to try things on."""

from __future__ import annotations

from pathlib import Path

import pytest
from spanlite.cli import main


@pytest.fixture(scope="session")
def small() -> list[str]:
    """The words that generate some batches."""
    return ["generate", "--spans", "3000", "--layers", "2", "--seed", "4", "--start", "2026-12-01"]


@pytest.fixture
def file(small: list[str], tmp_path: Path) -> Path:
    """Those batches in a file."""
    path = tmp_path / "spans.bin"
    assert main([*small, "--output", str(path)]) == 0
    return path
