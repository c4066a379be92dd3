"""`spanlite fidelity`: how faithful a replay was."""

from __future__ import annotations

import argparse
from pathlib import Path

from spanlite.errors import InputError
from spanlite.timewindow import add_window_arguments, window_of

from spanlite_replay.commands._console import stdout_console
from spanlite_replay.fidelity.chrome import write_chrome
from spanlite_replay.fidelity.files import read_observed, read_recorded
from spanlite_replay.fidelity.grade import RULE, WORST
from spanlite_replay.fidelity.page import write_page
from spanlite_replay.fidelity.report import Extras, compare
from spanlite_replay.fidelity.terminal import print_report

_EPILOG = """\
examples:
  spanlite fidelity data/archive observed.parquet
  spanlite fidelity data/archive first.parquet --aa second.parquet --html report.html
  spanlite fidelity data/archive observed.parquet --json --fail-below B
"""


class FidelityCommand:
    """Compares what a replay did with what was recorded."""

    summary = "Say how faithful a replay was"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        parser.add_argument("recorded", metavar="RECORDED", help="archive that was replayed")
        parser.add_argument(
            "observed",
            metavar="OBSERVED",
            help="what the replay observed (Parquet), or an archive of spans with the same ids",
        )
        parser.add_argument(
            "--aa",
            metavar="OBSERVED",
            help="a second run of the same plan: its difference from the first is the noise floor",
        )
        parser.add_argument("--json", action="store_true", help="the report as one JSON object")
        parser.add_argument("--html", metavar="FILE", help="also write it as one HTML file")
        parser.add_argument(
            "--chrome", metavar="FILE", help="also write both tracks for Perfetto (Chrome JSON)"
        )
        parser.add_argument(
            "--fail-below",
            choices=list(RULE),
            metavar="GRADE",
            help="exit code 1 where the grade is worse (A, B, C, D)",
        )
        add_window_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0, or 1 where the grade is below what was asked for."""
        recorded = read_recorded(Path(args.recorded), window_of(args))
        if not len(recorded):
            raise InputError(f"'{args.recorded}' has no spans in that window: widen it")
        observed = read_observed(Path(args.observed), recorded)
        again = None if args.aa is None else read_observed(Path(args.aa), recorded)
        extras = Extras(environment={"recorded": args.recorded, "observed": args.observed})
        report = compare(recorded, observed, extras, again)
        if args.html:
            write_page(report, recorded, observed, Path(args.html))
        if args.chrome:
            write_chrome(recorded, observed, Path(args.chrome))
        if args.json:
            print(report.to_json())
        else:
            print_report(report, stdout_console())
        letters = [*RULE, WORST]
        too_bad = args.fail_below and letters.index(report.grade.letter) > letters.index(
            args.fail_below
        )
        return 1 if too_bad else 0


command = FidelityCommand()
