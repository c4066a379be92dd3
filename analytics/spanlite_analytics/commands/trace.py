"""`spanlite trace`: one trace as a tree with times."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from spanlite.archive.layout import Archive
from spanlite.errors import UsageError
from spanlite.ids import format_span_id
from spanlite.settings import add_archive_argument, archive_of
from spanlite.timewindow import add_window_arguments, window_of

from spanlite_analytics.find import find
from spanlite_analytics.picture import TraceView, heading, picture, view_of

NOT_FOUND = 1
DEFAULT_LINES = 100
_ID_KEYS = ("span_id", "parent_span_id")

_HELP = """Times are offsets from the trace's start. `self` is a span's own time: its duration
less that of its children. Of a huge trace the longest parts are shown and the rest is
counted; --all shows every span.

Exit code 1: there is no such trace, or its spans were sampled out (it says which).

example:
  spanlite trace 4bf92f35 --long
"""


class TraceCommand:
    """Finds a trace and draws it."""

    summary = "Show one trace as a tree with times"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _HELP
        parser.add_argument("id", metavar="ID", help="trace id in hex, or the start of one")
        parser.add_argument("--all", action="store_true", help="every span, however many")
        parser.add_argument(
            "--lines", type=int, metavar="N", help=f"about so many spans (default: {DEFAULT_LINES})"
        )
        parser.add_argument("--long", action="store_true", help="launch configuration, ids, bytes")
        parser.add_argument("--json", action="store_true", help="every span as JSON")
        add_archive_argument(parser)
        add_window_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0, or 1 where the trace is not in the archive."""
        lines = _lines_of(args)
        found = find(Archive.open(archive_of(args)), args.id, window_of(args))
        if found.spans.num_rows == 0:
            print(f"spanlite: {found.why_not}", file=sys.stderr)
            return NOT_FOUND
        view = view_of(found.spans)
        if args.json:
            _print_json(view)
        else:
            _print_tree(view, lines, args.long)
        return 0


def _lines_of(args: argparse.Namespace) -> int | None:
    if args.all and args.lines is not None:
        raise UsageError("--all and --lines both say how many spans to show: give one")
    if args.lines is not None and args.lines < 1:
        raise UsageError("--lines must be 1 or more")
    return None if args.all else args.lines or DEFAULT_LINES


def _print_tree(view: TraceView, lines: int | None, details: bool) -> None:
    # In a terminal a line stays a line; a file keeps everything.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() and not details else None
    for line in heading(view):
        print(line)
    print()
    for line in picture(view, lines, details):
        print(line if width is None else line[:width])


def _items(view: TraceView) -> Iterator[dict[str, Any]]:
    row = 0
    for batch in view.spans.to_batches(max_chunksize=10_000):
        for span in batch.to_pylist():
            for key in _ID_KEYS:
                span[key] = None if span[key] is None else format_span_id(span[key])
            for link in span["links"] or ():
                link["span_id"] = format_span_id(link["span_id"])
            span["depth"] = int(view.tree.depth[row])
            span["self_ns"] = int(view.tree.self_ns[row])
            span["device_below_ns"] = int(view.tree.device_ns[row])
            yield span
            row += 1


def _print_json(view: TraceView) -> None:
    head = {
        "trace_id": view.spans.column("trace_id")[0].as_py(),
        "start_ns": view.first_ns,
        "end_ns": view.last_ns,
        "span_count": view.spans.num_rows,
    }
    sys.stdout.write(json.dumps(head)[:-1] + ', "spans": [')
    for number, item in enumerate(_items(view)):
        sys.stdout.write("\n" if number == 0 else ",\n")
        json.dump(item, sys.stdout, ensure_ascii=False)
    sys.stdout.write("\n]}\n")


command = TraceCommand()
