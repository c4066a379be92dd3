"""Settings that several commands share: a flag, else an environment variable, else a default.

| flag | environment | default |
|---|---|---|
| `--archive` | `SPANLITE_ARCHIVE` | `data/archive` |
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

ARCHIVE_VARIABLE = "SPANLITE_ARCHIVE"
DEFAULT_ARCHIVE = "data/archive"


def default_archive() -> Path:
    """Where the archive lies if no flag says so."""
    return Path(os.environ.get(ARCHIVE_VARIABLE) or DEFAULT_ARCHIVE)


def add_archive_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--archive`; read it with `archive_of`."""
    parser.add_argument(
        "--archive",
        metavar="PATH",
        help=f"archive folder (default: ${ARCHIVE_VARIABLE}, else {DEFAULT_ARCHIVE})",
    )


def archive_of(args: argparse.Namespace) -> Path:
    """The archive folder that the flags ask for; it need not exist."""
    return Path(args.archive) if args.archive else default_archive()
