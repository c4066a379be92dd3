"""Settings that several commands share: a flag, else an environment variable, else a default.

| flag | environment | default |
|---|---|---|
| `--archive` | `SPANLITE_ARCHIVE` | `data/archive` |
| `--bootstrap` | `SPANLITE_BOOTSTRAP` | the stack in `data/stack`, else `localhost:9092` |
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from spanlite.errors import UsageError

ARCHIVE_VARIABLE = "SPANLITE_ARCHIVE"
DEFAULT_ARCHIVE = "data/archive"
BOOTSTRAP_VARIABLE = "SPANLITE_BOOTSTRAP"
FALLBACK_BOOTSTRAP = "localhost:9092"
#: Relative to the working directory, like `./data` of every other command.
DEFAULT_STACK_DIR = Path("data/stack")
STACK_FILE = "stack.json"


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


def add_archive_words(
    parser: argparse.ArgumentParser, metavar: str = "ARCHIVE", more: str = ""
) -> None:
    """Declare the archive as an argument, and as `--archive` too; read it with `archive_of`."""
    default = f"(default: ${ARCHIVE_VARIABLE}, else {DEFAULT_ARCHIVE})"
    parser.add_argument(
        "archive", nargs="?", metavar=metavar, help=f"archive folder {default}{more}"
    )
    parser.add_argument(
        "--archive", dest="archive_flag", metavar="PATH", help="the same, as other commands have it"
    )


def archive_of(args: argparse.Namespace) -> Path:
    """The archive folder that the flags ask for; it need not exist. Raises UsageError."""
    flag = getattr(args, "archive_flag", None)
    if args.archive and flag:
        raise UsageError(f"'{args.archive}' and --archive {flag} both name an archive: give one")
    return Path(args.archive or flag or default_archive())


def stack_bootstrap(stack_dir: Path = DEFAULT_STACK_DIR) -> str | None:
    """`host:port` of the local stack in that folder; None where there is none.

    Raises UsageError where its file is damaged.
    """
    path = stack_dir / STACK_FILE
    try:
        found = json.loads(path.read_text())
        return str(found["bootstrap"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} cannot be read ({error}); run `spanlite stack up` to write it anew"
        ) from None


def default_bootstrap(stack_dir: Path = DEFAULT_STACK_DIR) -> str:
    """`host:port[,host:port]` of the broker to use when no flag names one."""
    return os.environ.get(BOOTSTRAP_VARIABLE) or stack_bootstrap(stack_dir) or FALLBACK_BOOTSTRAP


def add_bootstrap_argument(parser: argparse._ActionsContainer) -> None:
    """Add `--bootstrap`; read it with `bootstrap_of(args)`."""
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"Kafka broker (default: ${BOOTSTRAP_VARIABLE}, else the local stack in "
        f"./{DEFAULT_STACK_DIR}, else {FALLBACK_BOOTSTRAP})",
    )


def bootstrap_of(args: argparse.Namespace) -> str:
    """The broker these arguments mean, `--bootstrap` first."""
    return args.bootstrap or default_bootstrap()
