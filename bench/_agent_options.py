"""What the benches that compare levels of the agent are asked in the same words."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

Settings = dict[str, str] | None


def add_shared(parser: argparse.ArgumentParser) -> None:
    """The options that all of them have."""
    parser.add_argument("--until", type=float, default=3600, metavar="SECONDS",
                        help="no round of the comparison begins later")  # fmt: skip
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=LEVEL,KEY:VALUE...",
                        help="one more process, a level with other settings")  # fmt: skip
    parser.add_argument("--after", type=Path, metavar="FILE",
                        help="measure once that exists: other work is done")  # fmt: skip
    parser.add_argument("--stand-in", action="store_true", help="try the bench without a GPU")


def taken_apart(variant: str) -> tuple[str, str, list[str]]:
    """The name, the base and the words of `NAME=BASE,WORD,...`."""
    name, _, rest = variant.partition("=")
    base, *words = rest.split(",")
    return name, base, words


def variants(args: argparse.Namespace, levels: Mapping[str, Settings]) -> dict[str, Settings]:
    """The settings of each `--variant` by its name."""
    found: dict[str, Settings] = {}
    for variant in args.variant:
        name, base, words = taken_apart(variant)
        found[name] = (levels[base] or {}) | dict(word.split(":", 1) for word in words)
    return found


def wait(args: argparse.Namespace) -> None:
    """Until the file of `--after` is there."""
    while args.after is not None and not args.after.exists():
        time.sleep(0.1)
