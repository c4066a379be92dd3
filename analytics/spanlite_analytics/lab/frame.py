"""Finds the lab's tools, and prints their answers in one way."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pkgutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from rich.table import Table
from spanlite.cli import Command

from spanlite_analytics.lab import commands
from spanlite_analytics.output import console_for


def tools() -> Iterator[tuple[str, Command]]:
    """Each tool by its name, in order: the modules of `lab.commands`."""
    for module in sorted(pkgutil.iter_modules(commands.__path__), key=lambda m: m.name):
        if not module.name.startswith("_"):
            loaded = importlib.import_module(f"{commands.__name__}.{module.name}")
            tool: Command = loaded.command
            yield module.name.replace("_", "-"), tool


def add_tools(parser: argparse.ArgumentParser) -> None:
    """Declare each tool as a subcommand of `parser`."""
    sub = parser.add_subparsers(dest="lab_tool", metavar="TOOL", required=True)
    for name, tool in tools():
        child = sub.add_parser(name, help=tool.summary, description=tool.summary)
        child.formatter_class = argparse.RawDescriptionHelpFormatter
        tool.add_arguments(child)
        child.set_defaults(lab_run=tool.run)


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--json`, which every tool has."""
    parser.add_argument("--json", action="store_true", help="as JSON, not as a table")


def print_json(value: Any) -> None:
    """Print a value of plain types, numpy's or dataclasses as indented JSON."""
    # JSON knows no infinity and no NaN: they become null.
    text = json.dumps(value, default=_plain)
    plain = json.loads(text, parse_constant=lambda _: None)
    json.dump(plain, sys.stdout, indent=2, ensure_ascii=False)
    print()


#: Plain lines of progress come no more often, and none before this.
_EVERY_S = 5.0


class Progress:
    """How far long work is: a bar on a terminal, else a line now and then; on stderr.

    Work that ends within a moment shows nothing.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._bar: Any = None
        self._task: Any = None
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=None)
        return self

    def told(self, done: int, total: int, what: str = "") -> None:
        """So much of it is done; `what`: what comes next."""
        words = f"{self._what}: {what}" if what else self._what
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=words)
        elif time.monotonic() - self._last > _EVERY_S:
            self._last = time.monotonic()
            print(f"{words}: {done} of {total}", file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
    """Print rows for people: numbers to the right, None as an empty cell."""
    console = console_for(sys.stdout)
    if title:
        console.print(title)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, name in enumerate(columns):
        cells = [row[place] for row in rows if row[place] is not None]
        right = bool(cells) and all(isinstance(c, int | float | np.number) for c in cells)
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float | np.floating):
        return f"{value:,.4g}"
    return str(value)


def _plain(value: Any) -> Any:
    """What the JSON module cannot write by itself."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value)
