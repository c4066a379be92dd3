"""`spanlite bottlenecks`: where the time of each step went, and what made slow steps slow."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from spanlite.archive.reader import ArchiveReader
from spanlite.errors import UsageError
from spanlite.settings import add_archive_words, archive_of
from spanlite.timewindow import TimeWindow, add_window_arguments, parse_time, window_of

from spanlite_replay.bottlenecks.diagnose import Diagnosis, diagnose
from spanlite_replay.bottlenecks.report import BOTTLENECK_COLUMNS
from spanlite_replay.bottlenecks.terminal import print_report
from spanlite_replay.commands._console import stdout_console
from spanlite_replay.commands._progress import Progress
from spanlite_replay.recording import Recording, read_recording

_EPILOG = """\
Each step's critical path is cut into stretches that are launch-, compute-, memory-, copy-,
sync-, queue-, contention- or host-bound; what cannot be explained is said so. Slow steps are
compared with the usual ones of the window, or all steps with those of a baseline.

examples:
  spanlite bottlenecks data/archive --last 15m
  spanlite bottlenecks data/archive --from 2026-12-01T07:10 --to 2026-12-01T07:15 \\
      --baseline-from 2026-12-01T06:00 --baseline-to 2026-12-01T06:05
  spanlite bottlenecks incident/archive --baseline healthy/archive --json
"""


class BottlenecksCommand:
    """Analyses a window of an archive."""

    summary = "Say where each step's time went and what made slow steps slow"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        add_archive_words(parser)
        add_window_arguments(parser)
        group = parser.add_argument_group("what it is compared with")
        group.add_argument("--baseline", metavar="ARCHIVE", help="an archive of healthy steps")
        group.add_argument(
            "--baseline-from",
            metavar="TIME",
            help="healthy steps from here, of --baseline or ARCHIVE",
        )
        group.add_argument("--baseline-to", metavar="TIME", help="to here, exclusive")
        parser.add_argument(
            "--top", type=int, default=8, metavar="N", help="rows of a table (default: 8)"
        )
        parser.add_argument("--json", action="store_true", help="everything, as one JSON object")

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0."""
        if args.top < 1:
            raise UsageError("--top must be 1 or more")
        archive = archive_of(args)
        progress = Progress(sys.stderr)
        window, base = window_of(args), _baseline(args, archive)
        recording = _read(archive, window, progress)
        baseline = None if base is None else _read(*base, progress)
        with progress.doing(f"analysing {len(recording.start_ns):,} spans"):
            diagnosis = diagnose(recording, baseline)
        if args.json:
            print(_as_json(diagnosis))
        else:
            print_report(diagnosis, stdout_console(), args.top)
        return 0


def _read(archive: Path, window: TimeWindow, progress: Progress) -> Recording:
    with progress.doing(f"reading {window}"):
        return read_recording(ArchiveReader(archive), window, BOTTLENECK_COLUMNS)


def _baseline(args: argparse.Namespace, archive: Path) -> tuple[Path, TimeWindow] | None:
    """Checked before anything is read. Raises UsageError."""
    if args.baseline is None and args.baseline_from is None and args.baseline_to is None:
        return None
    if args.baseline == "":
        raise UsageError("--baseline '' names no archive: give its folder (is a variable unset?)")
    window = TimeWindow(
        None if args.baseline_from is None else parse_time(args.baseline_from),
        None if args.baseline_to is None else parse_time(args.baseline_to),
    )
    return archive if args.baseline is None else Path(args.baseline), window


def _as_json(diagnosis: Diagnosis) -> str:
    body = json.loads(diagnosis.report.to_json())
    body["causes"] = [dataclasses.asdict(cause) for cause in diagnosis.causes]
    body["compared"] = diagnosis.compared
    body["unexplained_share"] = diagnosis.unexplained
    return json.dumps(body, ensure_ascii=False)


command = BottlenecksCommand()
