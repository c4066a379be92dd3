"""`spanlite replay`: run a window of an archive again, at another time, speed or rate."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import time
from pathlib import Path

from spanlite.cli import INTERRUPTED
from spanlite.errors import UsageError
from spanlite.settings import add_bootstrap_argument, bootstrap_of
from spanlite.timewindow import format_time, parse_duration
from spanlite.topics import RAW_TOPIC

from spanlite_replay.commands._flags import add_transforms
from spanlite_replay.commands._open import open_plan
from spanlite_replay.commands._progress import Progress
from spanlite_replay.pacing import Pacing
from spanlite_replay.plan import Plan
from spanlite_replay.recording import PLAN_COLUMNS
from spanlite_replay.report import Report
from spanlite_replay.runner import run_plan
from spanlite_replay.targets.base import Target
from spanlite_replay.targets.dry import DryTarget

#: How fast batches are encoded, at worst, so that a replay "from now" starts when ready.
ENCODE_SPANS_PER_S = 150_000
_REPLAY_ID = re.compile(r"[A-Za-z0-9._:/-]{1,100}")
_EPILOG = """\
transforms, always in this order: window, sample whole traces, gap cap, speed, shift, QPS

examples:
  spanlite replay data/archive --speed 2 --no-wait          print the schedule
  spanlite replay data/archive --last 1h --qps 500 --over thin --target kafka
"""


class ReplayCommand:
    """The `replay` subcommand."""

    summary = "Run a window of an archive again, at another time, speed or rate"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        parser.add_argument(
            "archive",
            nargs="?",
            metavar="ARCHIVE|PLAN",
            help="archive folder (default: as elsewhere), or a plan that `spanlite plan` saved",
        )
        add_transforms(parser)
        _add_pacing(parser)
        _add_targets(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Read, plan, run, report."""
        pacing = pacing_of(args)
        progress = Progress(sys.stderr)
        columns = None if args.target == "kafka" else PLAN_COLUMNS
        plan, provenance = open_plan(args, columns, None, progress)
        target = _target(args, provenance.bucket_count, progress)
        if args.target == "kafka" and args.start_at is None:
            plan = plan.moved_to(_soon(plan))
        starts_ns = None if _is_dry_as_recorded(args) else int(plan.due_ns[0])
        report = run_plan(
            plan,
            target,
            pacing,
            start_at_ns=starts_ns,
            on_start=lambda: progress.say(_announce(plan, pacing)),
        )
        return _finish(report, args)


def _soon(plan: Plan) -> int:
    return time.time_ns() + 1_000_000_000 * (1 + plan.size.spans // ENCODE_SPANS_PER_S)


def _is_dry_as_recorded(args: argparse.Namespace) -> bool:
    return args.target == "dry" and args.start_at is None


def _announce(plan: Plan, pacing: Pacing | None) -> str:
    span_s = (int(plan.due_ns[-1]) - int(plan.due_ns[0])) / 1e9
    times = f"{format_time(int(plan.due_ns[0]))} to {format_time(int(plan.due_ns[-1]))}"
    wait = f", {span_s:,.1f} s to go" if pacing is not None else ", without waiting"
    return f"replaying {len(plan):,} events as {times}{wait}"


def _finish(report: Report, args: argparse.Namespace) -> int:
    # The schedule has the standard output where it is not given a file.
    stream = sys.stderr if args.target == "dry" and args.out is None else sys.stdout
    print(report.to_json() if args.json else report.to_text(), file=stream)
    if report.interrupted:
        return INTERRUPTED
    failed = report.fates["failed"].events
    return 0 if report.closes and not failed else 1


def _add_pacing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("pacing")
    group.add_argument("--no-wait", action="store_true", help="do not wait for deadlines")
    group.add_argument(
        "--late",
        choices=["burst", "reanchor", "drop"],
        help="events that are late: send all at once (default), move the rest of the plan, "
        "or drop them",
    )
    group.add_argument(
        "--max-catchup",
        metavar="DURATION",
        help="reanchor or drop only what is later than this (default 100ms)",
    )
    group.add_argument(
        "--priority", action="store_true", help="ask the scheduler to prefer the replay"
    )


def _add_targets(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("target")
    group.add_argument(
        "--target",
        choices=["dry", "kafka"],
        default="dry",
        help="dry: write the schedule (default); kafka: send the spans again with new ids",
    )
    group.add_argument(
        "--out", metavar="FILE", help="dry: schedule as .jsonl or .parquet (default: print it)"
    )
    add_bootstrap_argument(group)
    group.add_argument("--topic", help=f"kafka: topic (default {RAW_TOPIC})")
    group.add_argument(
        "--replay-id", metavar="ID", help="kafka: marks the spans, and decides their new ids"
    )
    group.add_argument("--json", action="store_true", help="report as one JSON object")


def pacing_of(args: argparse.Namespace) -> Pacing | None:
    """How to keep the deadlines; None: not at all. Raises UsageError for flags that conflict."""
    _check_conflicts(args)
    if args.no_wait:
        return None
    catchup = (
        Pacing.max_catchup_ns if args.max_catchup is None else parse_duration(args.max_catchup)
    )
    return Pacing(args.late or "burst", catchup, priority=args.priority)


def _check_conflicts(args: argparse.Namespace) -> None:
    dry, kafka = args.target == "dry", args.target == "kafka"
    for is_wrong, message in (
        (kafka and args.out, "--out is the schedule of --target dry"),
        (dry and args.bootstrap, "--bootstrap needs --target kafka"),
        (dry and args.topic, "--topic needs --target kafka"),
        (dry and args.replay_id, "--replay-id needs --target kafka"),
        (args.no_wait and args.late, "--no-wait keeps no deadlines, so nothing is --late"),
        (
            args.no_wait and args.max_catchup,
            "--no-wait keeps no deadlines: leave --max-catchup out",
        ),
        (args.no_wait and args.priority, "--no-wait keeps no deadlines: leave --priority out"),
        (
            args.max_catchup and args.late in (None, "burst"),
            "--max-catchup needs --late reanchor or --late drop: burst catches up on everything",
        ),
        (
            kafka and args.late == "drop",
            "--late drop needs --target dry: kafka sends batches that are made beforehand",
        ),
        (
            args.replay_id and not _REPLAY_ID.fullmatch(args.replay_id),
            f"--replay-id '{args.replay_id}' may hold letters, digits and . _ : / - only",
        ),
    ):
        if is_wrong:
            raise UsageError(message)


def _target(args: argparse.Namespace, bucket_count: int, progress: Progress) -> Target:
    if args.target == "dry":
        return DryTarget(None if args.out is None else Path(args.out), sys.stdout)
    # Only here, so that a dry run does not load the Kafka client.
    from spanlite_replay.targets.kafka import KafkaTarget

    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    replay_id = args.replay_id or f"{now}-{secrets.token_hex(4)}"
    return KafkaTarget(
        bootstrap_of(args), replay_id, bucket_count, args.topic or RAW_TOPIC, progress.count
    )


command = ReplayCommand()
