"""`spanlite archive ls|verify|compact|retain`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

from spanlite.archive import compact as compaction
from spanlite.archive.inventory import Holding, holdings
from spanlite.archive.layout import SPANS, Archive
from spanlite.archive.retain import TABLES, Expired, expired, retain
from spanlite.archive.verify import verify
from spanlite.settings import add_archive_argument, archive_of
from spanlite.timewindow import add_window_arguments, format_time, parse_duration, window_of

UNSOUND = 1
#: Wider than any table here.
_WIDE = 10_000

_HELP = """examples:
  spanlite archive ls --last 24h
  spanlite archive verify
  spanlite archive compact                      # once an hour, from cron or a timer
  spanlite archive retain --older-than 30d      # says what would go; --apply does it
"""


class ArchiveCommand:
    """Looks after the archive's files."""

    summary = "List, check, compact and expire the archive's files"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the sub-subcommands."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _HELP
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        _add_ls(actions.add_parser("ls", help="hours, files, spans, bytes"))
        _add_verify(actions.add_parser("verify", help="read every file and check it"))
        _add_compact(actions.add_parser("compact", help="many small files of closed hours to few"))
        _add_retain(actions.add_parser("retain", help="drop hours by age"))

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0, or 1 where `verify` finds something wrong."""
        code: int = args.do(args, Archive.open(archive_of(args)))
        return code


def _common(parser: argparse.ArgumentParser, do: Any) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(do=do)
    add_archive_argument(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


class _Progress:
    """A status line on a terminal, plain lines elsewhere; on stderr, so never in the way."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._console = Console(stderr=True)
        self._status = Status("", console=self._console) if self._console.is_terminal else None
        self._quiet = args.json

    def __enter__(self) -> _Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, text: str) -> None:
        if self._status:
            self._status.update(text)
        elif not self._quiet:
            print(text, file=sys.stderr)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _many(count: int, word: str) -> str:
    """`1 file`, `1,204 files`."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


# ls


def _add_ls(parser: argparse.ArgumentParser) -> None:
    _common(parser, _ls)
    add_window_arguments(parser)


def _ls(args: argparse.Namespace, archive: Archive) -> int:
    found = list(holdings(archive, window_of(args)))
    if args.json:
        _print_json(
            {
                "archive": str(archive.root),
                "bucket_count": archive.bucket_count,
                "holdings": [dataclasses.asdict(item) for item in found],
            }
        )
        return 0
    # As wide as it needs to be: a terminal wraps a long line, and no folder's name is ever cut.
    console = Console(width=_WIDE, highlight=False)
    console.print(_ls_table(found))
    spans = [item for item in found if item.table == SPANS]
    rows, size = sum(i.rows for i in spans), sum(i.bytes for i in spans)
    each = f", {size / rows:.1f} bytes a span" if rows else ""
    files = _many(sum(i.files for i in spans), "file")
    print(f"{_many(rows, 'span')} in {files}, {_size(size)}{each}")
    return 0


def _ls_table(found: list[Holding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("table", "folder", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("buckets", "files", "rows", "size"):
        table.add_column(name, justify="right")
    for item in found:
        buckets = str(item.buckets) if item.table == SPANS else ""
        numbers = f"{item.files:,}", f"{item.rows:,}", _size(item.bytes)
        table.add_row(item.table, item.folder, item.state, buckets, *numbers)
    return table


# verify


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _common(parser, _verify)
    parser.epilog = "Exit code 0: all is well. 1: something is wrong, one line each."


def _verify(args: argparse.Namespace, archive: Archive) -> int:
    with _Progress(args) as progress:
        found = verify(archive, progress)
    if args.json:
        _print_json(dataclasses.asdict(found) | {"sound": found.is_sound})
    else:
        for problem in found.problems:
            print(problem)
        print(f"{_many(found.files, 'file')}, {_many(found.spans, 'span')}; {found.ledger}")
        print("all is well" if found.is_sound else _many(len(found.problems), "problem"))
    return 0 if found.is_sound else UNSOUND


# compact


def _add_compact(parser: argparse.ArgumentParser) -> None:
    _common(parser, _compact)
    default = compaction.Policy()
    add = parser.add_argument
    add(
        "--grace",
        type=parse_duration,
        default=default.grace_ns,
        metavar="DURATION",
        help="an hour is closed this long after its end (default: 15m)",
    )
    add(
        "--keep",
        type=parse_duration,
        default=default.keep_ns,
        metavar="DURATION",
        help="how long files that were taken in stay, for queries that listed them (default: 10m)",
    )
    add(
        "--leftover-age",
        type=parse_duration,
        default=default.leftover_ns,
        metavar="DURATION",
        help="age at which uncommitted files of a killed job are removed (default: 1d)",
    )
    parser.epilog = (
        "Safe at any time and to interrupt: readers see each span once, before, during and after."
    )


def _compact(args: argparse.Namespace, archive: Archive) -> int:
    policy = compaction.Policy(args.grace, args.keep, args.leftover_age)
    with _Progress(args) as progress:
        report = compaction.compact(archive, policy, progress=progress)
    if args.json:
        _print_json(dataclasses.asdict(report))
        return 0
    for name in report.leftovers:
        print(f"removed leftover {name}")
    print(
        f"{_many(report.files_in, 'file')} to {report.files_out:,} in "
        f"{_many(len(report.hours), 'hour')}, {_many(report.spans, 'span')}, "
        f"{_size(report.bytes_in)} to {_size(report.bytes_out)}; "
        f"{_many(report.removed, 'file')} removed that had been taken in"
    )
    return 0


# retain


def _add_retain(parser: argparse.ArgumentParser) -> None:
    _common(parser, _retain)
    parser.add_argument(
        "--older-than", type=parse_duration, required=True, metavar="DURATION", help="such as 30d"
    )
    parser.add_argument(
        "--table",
        action="append",
        choices=TABLES,
        help="what to drop, may be repeated (default: spans)",
    )
    parser.add_argument("--apply", action="store_true", help="do it; without, only say what")
    parser.epilog = "The ledger records what went (hop archive, dropped, expired) and is kept."


def _retain(args: argparse.Namespace, archive: Archive) -> int:
    before_ns = time.time_ns() - args.older_than
    act = retain if args.apply else expired
    gone: list[Expired] = []
    for table in args.table or [SPANS]:
        gone += act(archive, table, before_ns)
    if args.json:
        _print_json({"applied": args.apply, "expired": [dataclasses.asdict(g) for g in gone]})
        return 0
    for item in gone:
        size = f"{_many(item.files, 'file')}, {_many(item.rows, 'row')}, {_size(item.bytes)}"
        print(f"{item.table} {item.hour}: {size}")
    verb = "dropped" if args.apply else "would drop (give --apply to do it)"
    total = f"{_many(len(gone), 'hour')}, {_many(sum(g.rows for g in gone), 'row')}"
    print(f"{verb}: {total}, {_size(sum(g.bytes for g in gone))}, from before", end=" ")
    print(format_time(before_ns // 10**9 * 10**9))
    return 0


command = ArchiveCommand()
