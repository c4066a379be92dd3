"""`spanlite replay`: run a window of an archive again, at another time, speed or rate."""

from __future__ import annotations

import argparse
import sys
import time

from spanlite.cli import INTERRUPTED
from spanlite.errors import UsageError
from spanlite.settings import add_archive_words
from spanlite.timewindow import format_time, parse_duration

from spanlite_replay.commands._faithful import (
    add_fidelity,
    fidelity_of,
    print_fidelity,
    wants_fidelity,
)
from spanlite_replay.commands._flags import add_transforms
from spanlite_replay.commands._open import open_plan
from spanlite_replay.commands._progress import Progress
from spanlite_replay.commands._targets import (
    RUNS_DEVICE_WORK,
    add_targets,
    check_machine,
    check_target,
    check_work,
    columns_of,
    deps_of,
    make_target,
)
from spanlite_replay.pacing import MIN_SPIN_NS, Late, Pacing, check_core, quiet_core
from spanlite_replay.plan import Plan
from spanlite_replay.report import Report
from spanlite_replay.runner import run_plan

#: How fast batches are encoded, at worst, so that a replay "from now" starts when ready.
ENCODE_SPANS_PER_S = 150_000
#: A loop in Python is about this late at its best.
MIN_CATCHUP_NS = 1_000
_OWN_CLOCK = "has a clock of its own: leave the flags of pacing out"
_EPILOG = """\
transforms, always in this order: window, sample whole traces, loop, gap cap, speed, shift,
smooth, QPS

examples:
  spanlite replay data/archive --speed 2 --no-wait          # print the schedule
  spanlite replay data/archive --last 1h --qps 500 --over thin --target kafka
  spanlite replay data/archive --target sim --host closed --out observed.parquet
  spanlite replay data/archive --target sim --aa --html fidelity.html
  spanlite replay data/archive --target gpu --aa --out observed.parquet
  spanlite replay requests.csv --target http --url http://127.0.0.1:8000/v1 --speed 2
"""


class ReplayCommand:
    """The `replay` subcommand."""

    summary = "Run a window of an archive again, at another time, speed or rate"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        add_archive_words(
            parser,
            "ARCHIVE|PLAN|LOG",
            ", a plan that `spanlite plan` saved, or a log of LLM requests (Azure's .csv, "
            "Mooncake's .jsonl)",
        )
        add_transforms(parser)
        _add_pacing(parser)
        add_targets(parser)
        add_fidelity(parser)
        parser.add_argument("--json", action="store_true", help="report as one JSON object")

    def run(self, args: argparse.Namespace) -> int:
        """Read, plan, run, report."""
        check_target(args)
        compares = wants_fidelity(args)
        pacing = pacing_of(args)
        check_machine(args)
        progress = Progress(sys.stderr)
        plan, provenance = open_plan(args, columns_of(args), deps_of(args), progress)
        check_work(args, plan)
        target = make_target(args, provenance.bucket_count, progress)
        if args.target == "kafka" and args.start_at is None:
            plan = plan.moved_to(_soon(plan))
        starts_ns = None if _is_as_recorded(args) else int(plan.due_ns[0])
        report = run_plan(
            plan,
            target,
            pacing,
            start_at_ns=starts_ns,
            on_start=lambda: progress.say(_announce(plan, pacing)),
        )
        if not compares or report.observed is None:
            return _finish(report, args)
        again = None
        if args.aa:
            silent = argparse.Namespace(**vars(args) | {"out": None})
            again = run_plan(plan, make_target(silent, provenance.bucket_count, progress), pacing)
        print_fidelity(fidelity_of(plan, report, again), plan, report, args)
        return _exit_code(report)


def _soon(plan: Plan) -> int:
    return time.time_ns() + 1_000_000_000 * (1 + plan.size.spans // ENCODE_SPANS_PER_S)


def _is_as_recorded(args: argparse.Namespace) -> bool:
    return args.target != "kafka" and args.start_at is None


def _announce(plan: Plan, pacing: Pacing | None) -> str:
    span_s = (int(plan.due_ns[-1]) - int(plan.due_ns[0])) / 1e9
    times = f"{format_time(int(plan.due_ns[0]))} to {format_time(int(plan.due_ns[-1]))}"
    wait = f", {span_s:,.1f} s to go" if pacing is not None else ", without waiting"
    return f"replaying {len(plan):,} events as {times}{wait}"


def _finish(report: Report, args: argparse.Namespace) -> int:
    # The schedule has the standard output where it is not given a file.
    stream = sys.stderr if args.target == "dry" and args.out is None else sys.stdout
    print(report.to_json() if args.json else report.to_text(), file=stream)
    return _exit_code(report)


def _exit_code(report: Report) -> int:
    if report.interrupted:
        return INTERRUPTED
    failed = report.fates["failed"].events
    missed = report.timing is not None and report.timing.missed
    return 0 if report.closes and not failed and not missed else 1


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
        "--tolerance",
        metavar="DURATION",
        help="count what goes out later than this, and end with exit code 1 if anything does",
    )
    group.add_argument(
        "--priority", action="store_true", help="ask the scheduler to prefer the replay"
    )
    group.add_argument(
        "--cpu",
        type=_core,
        metavar="N",
        help="keep the loop on this core, best one that is idle; auto: the quietest",
    )


def _core(text: str) -> int:
    if text == "auto":
        return quiet_core()
    if not text.isdecimal():
        raise UsageError(f"--cpu '{text}' is not a core: write its number, or auto")
    return check_core(int(text))


def pacing_of(args: argparse.Namespace) -> Pacing | None:
    """How to keep the deadlines; None: not at all. Raises UsageError for flags that conflict."""
    _check_conflicts(args)
    if args.no_wait or args.target in RUNS_DEVICE_WORK:
        return None
    catchup = (
        Pacing.max_catchup_ns if args.max_catchup is None else parse_duration(args.max_catchup)
    )
    if catchup < MIN_CATCHUP_NS:
        raise UsageError(
            f"--max-catchup {args.max_catchup}: every event is a little late; give 1us or more"
        )
    tolerance = None if args.tolerance is None else parse_duration(args.tolerance)
    late: Late = args.late or "burst"
    # Clients are processes of their own, and on a small machine they need the cores that a long
    # spin would take.
    spin = MIN_SPIN_NS if args.target == "http" else None
    return Pacing(late, catchup, spin, args.priority, tolerance, args.cpu)


def _check_conflicts(args: argparse.Namespace) -> None:
    kafka = args.target == "kafka"
    for is_wrong, message in (
        *(
            (
                args.target in RUNS_DEVICE_WORK and getattr(args, name),
                f"--target {args.target} {_OWN_CLOCK}",
            )
            for name in ("no_wait", "late", "max_catchup", "tolerance", "priority")
        ),
        (
            args.target in RUNS_DEVICE_WORK and args.cpu is not None,
            f"--target {args.target} {_OWN_CLOCK}",
        ),
        (args.no_wait and args.late, "--no-wait keeps no deadlines, so nothing is --late"),
        (
            args.no_wait and args.max_catchup,
            "--no-wait keeps no deadlines: leave --max-catchup out",
        ),
        (args.no_wait and args.tolerance, "--no-wait keeps no deadlines: leave --tolerance out"),
        (args.no_wait and args.priority, "--no-wait keeps no deadlines: leave --priority out"),
        (args.no_wait and args.cpu is not None, "--no-wait keeps no deadlines: leave --cpu out"),
        (
            args.max_catchup and args.late in (None, "burst"),
            "--max-catchup needs --late reanchor or --late drop: burst catches up on everything",
        ),
        (
            kafka and args.late == "drop",
            "--late drop needs --target dry: kafka sends batches that are made beforehand",
        ),
    ):
        if is_wrong:
            raise UsageError(message)


command = ReplayCommand()
