"""`spanlite pipeline run|submit|check-rules`."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spanlite_pipeline import preflight
from spanlite_pipeline.options import add_job_arguments, duration_ms, job_config, job_flags
from spanlite_pipeline.sampling import RuleSet

_EXAMPLES = """examples:
  spanlite pipeline run --rules rules.yaml
  spanlite pipeline run --until-idle 5s     # read what is there, decide all of it, end
  spanlite pipeline check-rules rules.yaml
  spanlite pipeline submit --jobmanager flink:8081 --bootstrap kafka:9092 --archive /mnt/archive
"""
_STOPPING = "Ctrl-C and SIGTERM stop with a savepoint; the next run goes on from there."


def _say(text: str) -> None:
    print(f"pipeline: {text}", file=sys.stderr, flush=True)


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second one interrupts."""
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        _say("stopping; again to give up")
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(args: argparse.Namespace) -> int:
    preflight.check_tools()
    from spanlite_pipeline.run import Progress, run_local

    def report(now: Progress) -> None:
        words = [now.phase]
        if now.spans_in is not None:
            words = [f"{now.spans_in:,} spans in", f"{now.spans_out or 0:,} kept since this start"]
        if now.lag is not None:
            words.append(f"{now.lag:,} messages not committed yet")
        _say(f"{now.elapsed_s:.0f} s: {', '.join(words)}")

    idle_s = duration_ms(args.until_idle) / 1000 if args.until_idle else None
    with _stop_on_signal() as stop:
        config = job_config(args)
        _say(f"{config.bucket.topic} at {config.bootstrap} -> {config.archive}")
        savepoint = run_local(
            config, until_idle_s=idle_s, stop=stop, say=report, from_start=args.from_start
        )
    _say(f"stopped; state in {savepoint}")
    if stop.is_set():
        _say("what is undecided waits there; the same command goes on")
    return 0


def _submit(args: argparse.Namespace) -> int:
    preflight.check_tools()
    from spanlite_pipeline.cluster import submit

    config = job_config(args)
    restore = Path(args.restore) if args.restore else None
    return submit(
        config,
        job_flags(args),
        jobmanager=args.jobmanager,
        restore=restore,
        python=args.python,
        files=args.pyfs,
    )


def _check_rules(args: argparse.Namespace) -> int:
    rules = RuleSet.from_yaml(Path(args.file))
    print("\n".join(rules.describe()))
    if rules.ignored_settings:
        _say(f"ignored: {', '.join(rules.ignored_settings)}")
    return 0


class PipelineCommand:
    """The job: deduplicate, sample whole traces, roll up, write the archive."""

    summary = "Deduplicate and sample spans from Kafka into the archive, exactly once"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the subcommands."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EXAMPLES
        sub = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        run = sub.add_parser("run", help="run it here, in a cluster of its own", epilog=_STOPPING)
        add_job_arguments(run)
        run.add_argument(
            "--until-idle",
            metavar="TIME",
            help="end, with everything decided, once nothing new has come for so long",
        )
        run.add_argument(
            "--from-start",
            action="store_true",
            help="read the topic from its start even if the archive holds spans already",
        )
        run.set_defaults(action_run=_run)
        submit = sub.add_parser("submit", help="hand it to a Flink cluster")
        add_job_arguments(submit)
        submit.add_argument("--jobmanager", metavar="HOST:PORT", help="default: flink's own config")
        submit.add_argument(
            "--restore", metavar="PATH", help="checkpoint or savepoint to go on from"
        )
        submit.add_argument("--python", metavar="PATH", help="interpreter on the task managers")
        submit.add_argument(
            "--pyfs", metavar="PATHS", help="Python files to ship, as flink's -pyfs"
        )
        submit.set_defaults(action_run=_submit)
        check = sub.add_parser("check-rules", help="read sampling rules and say what they do")
        check.add_argument("file", metavar="FILE", help="the sampling rules, YAML")
        check.set_defaults(action_run=_check_rules)

    def run(self, args: argparse.Namespace) -> int:
        """Run the chosen action."""
        code: int = args.action_run(args)
        return code


command = PipelineCommand()
