"""What each bench of the lab that replays an H200's table does at its start."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MADE_BY = ("name", "driver_version", "date", "command")


def parser_of(doc: str | None, quick: str = "the same; it is quick") -> argparse.ArgumentParser:
    """With `--quick`, which each bench has."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def arguments(parser: argparse.ArgumentParser, table: Path) -> argparse.Namespace:
    """The flags; ends the bench with exit code 1 where its table is not there."""
    args = parser.parse_args()
    if not table.exists():
        parser.exit(1, f"{table.name} is absent: no GPU has measured it yet\n")
    return args


def made_by(about: Mapping[str, Any]) -> dict[str, Any]:
    """GPU, driver, date and command, for the first figure's line."""
    return {key: about[key] for key in _MADE_BY}
