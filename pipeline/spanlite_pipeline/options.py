"""The flags that `run`, `submit` and the cluster's own entry share."""

from __future__ import annotations

import argparse
import hashlib
import re
from pathlib import Path

from spanlite.bucket import DEFAULT_BUCKETS
from spanlite.errors import UsageError
from spanlite.settings import (
    add_archive_argument,
    add_bootstrap_argument,
    archive_of,
    bootstrap_of,
)
from spanlite.topics import DEAD_TOPIC, RAW_TOPIC

from spanlite_pipeline.config import JOB_FOLDER, JobConfig
from spanlite_pipeline.preflight import bucket_count_of
from spanlite_pipeline.sampling import RuleSet
from spanlite_pipeline.settings import KEEP_ALL, BucketSettings

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def duration_ms(text: str) -> int:
    """Milliseconds of `500ms`, `10s`, `5m` or `1h`. Raises UsageError."""
    found = _DURATION.fullmatch(text.strip())
    value = float(found[1]) * _UNITS_MS[found[2]] if found else 0
    if value < 1:
        raise UsageError(f"'{text}' is not a duration: give for instance 500ms, 10s, 5m or 1h")
    return int(value)


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; read them with `job_config`."""
    add_archive_argument(parser)
    add_bootstrap_argument(parser)
    add = parser.add_argument
    add("--rules", metavar="FILE", help="tail-sampling rules in YAML (default: keep everything)")
    add("--topic", default=RAW_TOPIC, help="topic to read (default: %(default)s)")
    add(
        "--dead-topic",
        default=DEAD_TOPIC,
        help="topic of unreadable messages (default: %(default)s)",
    )
    add("--group", help="Kafka consumer group, which shows the lag (default: one an archive)")
    add("--parallelism", type=int, default=2, metavar="N", help="slots (default: %(default)s)")
    add("--buckets", type=int, metavar="N", help="of a new archive (default: 64)")
    add("--checkpoint-dir", metavar="DIR", help=f"the job's state (default: ARCHIVE/{JOB_FOLDER})")
    add(
        "--checkpoint-interval",
        default="10s",
        metavar="TIME",
        help="files become visible this often (default: %(default)s)",
    )
    add(
        "--decision-wait",
        metavar="TIME",
        help="decide a trace once it has been quiet for so long (default: the rules', else 30s)",
    )
    add(
        "--flush-interval",
        default="20s",
        metavar="TIME",
        help="write files this often; rarer makes fewer and larger ones (default: %(default)s)",
    )
    add(
        "--table-interval",
        default="60s",
        metavar="TIME",
        help="the same for the small tables (default: %(default)s)",
    )
    add(
        "--restarts",
        type=int,
        default=3,
        metavar="N",
        help="failures the job survives (default: %(default)s)",
    )
    add(
        "-D",
        dest="flink",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting in Flink's own words; may be repeated",
    )


def job_config(args: argparse.Namespace) -> JobConfig:
    """The run these flags ask for. Raises SpanLiteError."""
    if args.parallelism < 1:
        raise UsageError(f"--parallelism {args.parallelism}: give 1 or more")
    if args.restarts < 0:
        raise UsageError(f"--restarts {args.restarts}: give 0 or more")
    if args.archive == "":
        raise UsageError("--archive: give a folder")
    archive = args.archive if args.archive and "://" in args.archive else str(archive_of(args))
    text = _rules_text(args.rules)
    rules = RuleSet.from_yaml(text)
    buckets = bucket_count_of(archive, args.buckets, DEFAULT_BUCKETS)
    wait_ms = (
        duration_ms(args.decision_wait)
        if args.decision_wait
        else int((rules.decision_wait_s or 30.0) * 1000)
    )
    bucket = BucketSettings(
        rules=text,
        bucket_count=buckets,
        topic=args.topic,
        decision_wait_ms=wait_ms,
        flush_interval_ms=duration_ms(args.flush_interval),
    )
    return JobConfig(
        archive=archive,
        bootstrap=bootstrap_of(args),
        checkpoint_dir=args.checkpoint_dir or f"{archive.rstrip('/')}/{JOB_FOLDER}",
        bucket=bucket,
        group=args.group or _group(archive),
        dead_topic=args.dead_topic,
        parallelism=args.parallelism,
        max_parallelism=max(128, buckets),
        checkpoint_interval_ms=duration_ms(args.checkpoint_interval),
        table_interval_ms=duration_ms(args.table_interval),
        restart_attempts=args.restarts,
        flink=tuple(_setting(text) for text in args.flink),
    )


def job_flags(args: argparse.Namespace) -> list[str]:
    """The flags of `add_job_arguments` that give these arguments, for another command line."""
    parser = argparse.ArgumentParser(add_help=False)
    add_job_arguments(parser)
    out: list[str] = []
    for action in parser._actions:
        value = getattr(args, action.dest)
        values = value if isinstance(value, list) else [] if value is None else [value]
        for item in values:
            out += [action.option_strings[0], str(item)]
    return out


def _group(archive: str) -> str:
    place = archive if "://" in archive else str(Path(archive).absolute())
    return f"spanlite-pipeline-{hashlib.blake2b(place.encode(), digest_size=4).hexdigest()}"


def _rules_text(path: str | None) -> str:
    if path is None:
        return KEEP_ALL
    RuleSet.from_yaml(Path(path))  # says the file's name where it is wrong
    return Path(path).read_text(encoding="utf-8")


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"-D {text}: give KEY=VALUE")
    return key, value
