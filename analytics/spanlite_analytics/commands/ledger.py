"""`spanlite ledger`: is every span accounted for?"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.table import Table
from spanlite.archive.layout import Archive
from spanlite.settings import add_archive_argument, archive_of
from spanlite.timewindow import add_window_arguments, format_time, window_of

from spanlite_analytics.extent import counted_extent
from spanlite_analytics.ledger import Balance, Hop, balance
from spanlite_analytics.output import console_for
from spanlite_analytics.words import plural

DOES_NOT_CLOSE = 1

_HELP = """in = out + dropped + open, at each hop:
  collector  spans given to it = sent + dropped before sending
  wire       sent = arrived + lost (from gaps in the batches' sequence)
  pipeline   read, repeats too = kept + dropped (duplicate, sampled_out, ...) + undecided
  archive    kept = rows in the files + expired; only without a window

Exit code 0: it closes. 1: it does not.

example:
  spanlite ledger --last 1h
"""


class LedgerCommand:
    """Prints the balance of each hop."""

    summary = "Check that every span is accounted for"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _HELP
        parser.add_argument("--json", action="store_true", help="as one JSON object")
        add_archive_argument(parser)
        add_window_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0 where the ledger closes, else 1."""
        archive = Archive.open(archive_of(args))
        result = balance(archive, window_of(args))
        if args.json:
            print(json.dumps(as_json(result), indent=2))
        else:
            _print(archive, result)
        return 0 if result.closes else DOES_NOT_CLOSE


def _hop_json(hop: Hop) -> dict[str, Any]:
    return {
        "hop": hop.name,
        "in": hop.came_in,
        "out": hop.went_out,
        "dropped": hop.dropped,
        "dropped_messages": hop.dropped_messages,
        "open": hop.still_open,
        "difference": hop.difference,
        "closes": hop.closes,
    }


def as_json(result: Balance) -> dict[str, Any]:
    """The balance in plain types."""
    return {
        "closes": result.closes,
        "from_ns": result.window.from_ns,
        "to_ns": result.window.to_ns,
        "lost": result.lost,
        "hops": [_hop_json(hop) for hop in result.hops],
        "links": [
            {"what": k.what, "left": k.left, "right": k.right, "closes": k.closes}
            for k in result.links
        ],
    }


def _nothing(archive: Archive) -> str:
    first_ns, last_ns = counted_extent(archive)
    if first_ns is None or last_ns is None:
        return "Nothing was counted."
    return (
        "Nothing was counted in this window. Spans go by the time at which they were counted here, "
        f"not by their own: from {format_time(first_ns)} to {format_time(last_ns)}."
    )


def _drops(hop: Hop) -> str:
    parts = [f"{reason} {spans:,}" for reason, spans in hop.dropped.items() if spans]
    # A message that cannot be read has no spans that anybody could count.
    parts += [
        f"{reason} {plural(n, 'message')}"
        for reason, n in hop.dropped_messages.items()
        if n and not hop.dropped.get(reason)
    ]
    return ", ".join(parts)


def _verdict(hop: Hop) -> str:
    if hop.closes:
        return "[green]closes[/]"
    word = "missing" if hop.difference > 0 else "too many"
    return f"[red]{abs(hop.difference):,} {word}[/]"


def _print(archive: Archive, result: Balance) -> None:
    console = console_for(sys.stdout)
    console.print(f"Ledger, {result.window}, in spans")
    if not result.hops:
        console.print(_nothing(archive), soft_wrap=True)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("hop")
    for name in ("in", "out", "dropped", "open"):
        table.add_column(name, justify="right")
    table.add_column("balance")
    table.add_column("dropped by reason", overflow="fold")
    for hop in result.hops:
        numbers = (hop.came_in, hop.went_out, sum(hop.dropped.values()), hop.still_open)
        table.add_row(hop.name, *(f"{n:,}" for n in numbers), _verdict(hop), _drops(hop))
    console.print(table)
    for link in result.links:
        if not link.closes:
            console.print(f"[red]{link.what}: {link.left:,} is not {link.right:,}[/]")
    if result.lost:
        console.print(f"[yellow]Known to be lost on the wire: {plural(result.lost, 'span')}.[/]")
    console.print("[green]It closes.[/]" if result.closes else "[red]It does not close.[/]")


command = LedgerCommand()
