"""`spanlite report`: kernels, stages, GPUs, latencies, and what made slow traces slow."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from spanlite.archive.layout import Archive
from spanlite.errors import UsageError
from spanlite.settings import add_archive_argument, archive_of
from spanlite.timewindow import add_window_arguments, window_of

from spanlite_analytics.output import console_for
from spanlite_analytics.report.build import TITLES, Report, build_report
from spanlite_analytics.report.render import as_json, print_report, write_csv
from spanlite_analytics.report.source import Filters

DEFAULT_TOP = 10

_HELP = f"""sections: {", ".join(TITLES)}

examples:
  spanlite report --last 15m
  spanlite report --from 2026-12-01T07:00 --to 2026-12-01T08:00 --host gpu-7 --only slow
  spanlite report --csv report/
"""


class ReportCommand:
    """Computes a report and prints or writes it."""

    summary = "Sum up kernels, stages, GPUs and slow traces"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _HELP
        add_archive_argument(parser)
        for name in ("service", "host"):
            parser.add_argument(
                f"--{name}",
                action="append",
                default=[],
                metavar="NAME",
                help=f"only this {name}; may be repeated (default: all)",
            )
        parser.add_argument(
            "--only",
            action="append",
            default=[],
            metavar="SECTION",
            help="only this section; may be repeated (default: all)",
        )
        parser.add_argument(
            "--top",
            type=int,
            default=DEFAULT_TOP,
            metavar="N",
            help="rows of each table (default: %(default)s)",
        )
        parser.add_argument(
            "--json", action="store_true", help="all rows and whole names, as one JSON object"
        )
        parser.add_argument("--csv", metavar="DIR", help="the same, one CSV file a section")
        add_window_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0."""
        if args.top < 1:
            raise UsageError("--top must be 1 or more")
        report = _build(args)
        if args.csv:
            for path in write_csv(report, Path(args.csv)):
                print(path)
        elif args.json:
            print(as_json(report))
        else:
            print_report(report, console_for(sys.stdout), args.top)
        return 0


def _build(args: argparse.Namespace) -> Report:
    archive = Archive.open(archive_of(args))
    filters = Filters(tuple(args.service), tuple(args.host))
    console = Console(stderr=True)
    with console.status("reading") as status:  # shows nothing where it is no terminal
        return build_report(
            archive,
            window_of(args),
            filters,
            args.only,
            lambda key: status.update(f"computing {key}"),
        )


command = ReportCommand()
