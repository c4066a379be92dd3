"""The flags of `replay` that choose a target, and the target they choose."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from spanlite.errors import InputError, UsageError
from spanlite.occupancy import KNOWN_GPUS
from spanlite.settings import add_bootstrap_argument, archive_of, bootstrap_of
from spanlite.timewindow import parse_duration
from spanlite.topics import RAW_TOPIC

from spanlite_replay._places import check_place
from spanlite_replay.commands._flags import DEPS_HELP
from spanlite_replay.commands._http import HTTP_COLUMNS, add_http, http_conflicts, make_http
from spanlite_replay.commands._progress import Progress
from spanlite_replay.plan import Plan
from spanlite_replay.recording import PLAN_COLUMNS
from spanlite_replay.targets.base import Target
from spanlite_replay.targets.dry import DryTarget
from spanlite_replay.work import WORK_COLUMNS, Deps

TARGETS = ("dry", "kafka", "sim", "gpu", "http")
#: These run kernels and copies, real or simulated, by a clock of their own.
RUNS_DEVICE_WORK = ("sim", "gpu")
#: Beyond it lengths would mean nothing.
MOST_STEER_NS = 100_000
_REPLAY_ID = re.compile(r"[A-Za-z0-9._:/-]{1,100}")


def add_targets(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("target")
    group.add_argument(
        "--target",
        choices=TARGETS,
        default="dry",
        help="dry: write the schedule (default); kafka: send the spans again with new ids; "
        "sim: run the GPU work on a model of a GPU; gpu: run it on this machine's GPU; "
        "http: send its requests to an OpenAI-compatible server",
    )
    group.add_argument(
        "--out",
        metavar="FILE",
        help="dry: schedule as .jsonl or .parquet (default: print it); sim, gpu: what was "
        "observed, as .parquet; http: requests as spans, as .parquet or in an archive's folder",
    )
    add_bootstrap_argument(group)
    group.add_argument("--topic", help=f"kafka: topic (default {RAW_TOPIC})")
    group.add_argument(
        "--replay-id",
        metavar="ID",
        help="marks the spans that kafka sends (and decides their ids), and what sim or gpu "
        "observed",
    )
    group.add_argument("--deps", choices=["stream", "observed"], help=f"sim, gpu: {DEPS_HELP}")
    group.add_argument(
        "--host",
        choices=["open", "closed"],
        help="sim: calls keep the plan's deadlines (open, default), or each follows the one "
        "before it after the recorded time, so that a faster device is fed sooner (closed)",
    )
    group.add_argument(
        "--gpu", metavar="NAME", help=f"sim: the GPU, of {', '.join(KNOWN_GPUS)} (default H200)"
    )
    group.add_argument(
        "--mode",
        choices=["timing", "ops"],
        help="gpu: a stand-in of the same length and size for each kernel (timing, default), or "
        "the recorded operator itself where shapes and types were recorded (ops)",
    )
    group.add_argument(
        "--spin",
        choices=["wall", "work"],
        help="gpu: stand-ins pass time by the wall clock (default), or by the SM's cycles, so that "
        "they slow down with it",
    )
    group.add_argument(
        "--steer",
        metavar="DURATION",
        help="gpu: a stand-in may end up to this earlier or later (such as 0.9us) to be at its "
        "recorded time, so that delays do not add up along a stream (default: lengths are kept)",
    )
    add_http(parser)


def columns_of(args: argparse.Namespace) -> Sequence[str] | None:
    """The archive's columns that the target needs; None: all."""
    mine = {"kafka": None, "sim": WORK_COLUMNS, "gpu": WORK_COLUMNS, "http": HTTP_COLUMNS}
    return mine.get(args.target, PLAN_COLUMNS)


def deps_of(args: argparse.Namespace) -> Deps | None:
    """What spans wait for, where the target needs to know."""
    return (args.deps or "stream") if args.target in RUNS_DEVICE_WORK else None


def check_target(args: argparse.Namespace) -> None:
    """Raises UsageError for flags of another target."""
    for is_wrong, message in _conflicts(args, args.target):
        if is_wrong:
            raise UsageError(message)
    steer_of(args)
    if args.out is not None and args.target != "http":  # that may be the folder of an archive
        check_place("--out", Path(args.out))


def steer_of(args: argparse.Namespace) -> int:
    """How far ends may be moved, in ns. Raises UsageError."""
    steer_ns = 0 if args.steer is None else parse_duration(args.steer)
    if steer_ns > MOST_STEER_NS:
        raise UsageError(f"--steer {args.steer}: a replay keeps lengths; give 100us at most")
    return steer_ns


def check_machine(args: argparse.Namespace) -> None:
    """Raises ServiceError where the target cannot run here: before an hour of spans is read."""
    if args.target == "gpu":
        from spanlite_replay.targets.gpu.open import check_gpu

        check_gpu()


def check_work(args: argparse.Namespace, plan: Plan) -> None:
    """Raises InputError where the target runs device work and the plan has none."""
    if plan.work is not None and args.target in RUNS_DEVICE_WORK and not plan.work.is_device.any():
        raise InputError(
            f"'{archive_of(args)}' has no kernels, copies or memsets in this "
            f"window, so --target {args.target} has nothing to run: choose one in which kernels "
            "were recorded"
        )


def _conflicts(args: argparse.Namespace, target: str) -> Iterator[tuple[object, str]]:
    kafka, sim, gpu = target == "kafka", target == "sim", target == "gpu"
    yield kafka and args.out, "--out is of --target dry, sim, gpu and http"
    yield not kafka and args.bootstrap, "--bootstrap needs --target kafka"
    yield not kafka and args.topic is not None, "--topic needs --target kafka"
    yield args.topic == "", "--topic '' names no topic: write its name, or leave it out"
    yield (
        target == "dry" and args.replay_id is not None,
        "--replay-id needs --target kafka, sim, gpu or http",
    )
    yield not sim and not gpu and args.deps, "--deps needs --target sim or gpu"
    for flag in ("host", "gpu"):
        yield not sim and getattr(args, flag) is not None, f"--{flag} needs --target sim"
    for flag in ("mode", "spin", "steer"):
        yield not gpu and getattr(args, flag), f"--{flag} needs --target gpu"
    yield (
        args.steer and args.spin == "work",
        "--steer is by the wall clock: leave --spin work out",
    )
    yield (
        args.replay_id is not None and not _REPLAY_ID.fullmatch(args.replay_id),
        f"--replay-id '{args.replay_id}' may hold letters, digits and . _ : / - only",
    )
    yield from http_conflicts(args)


def make_target(args: argparse.Namespace, bucket_count: int, progress: Progress) -> Target:
    """The target. Raises UsageError."""
    out = None if args.out is None else Path(args.out)
    if args.target == "dry":
        return DryTarget(out, sys.stdout)
    now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    replay_id = args.replay_id or f"{now}-{secrets.token_hex(4)}"
    if args.target == "sim":
        from spanlite_replay.sim import known_model
        from spanlite_replay.sim.model import DEFAULT_GPU
        from spanlite_replay.targets.sim import SimTarget

        return SimTarget(
            known_model(DEFAULT_GPU if args.gpu is None else args.gpu),
            replay_id,
            args.host or "open",
            out,
        )
    if args.target == "gpu":
        from spanlite_replay.targets.gpu.open import open_target
        from spanlite_replay.targets.gpu.tuning import Tuning

        tuning = Tuning(steer_ns=steer_of(args))
        return open_target(replay_id, args.mode or "timing", args.spin or "wall", out, tuning)
    if args.target == "http":
        return make_http(args, replay_id, out, progress)
    # Only here, so that a dry run does not load the Kafka client.
    from spanlite_replay.targets.kafka import KafkaTarget

    return KafkaTarget(
        bootstrap_of(args), replay_id, bucket_count, args.topic or RAW_TOPIC, progress.count
    )
