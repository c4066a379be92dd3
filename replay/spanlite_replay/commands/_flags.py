"""Flags that `plan` and `replay` share."""

from __future__ import annotations

import argparse
from fractions import Fraction

from spanlite.errors import UsageError
from spanlite.timewindow import add_window_arguments, parse_duration, parse_time

from spanlite_replay.plan import PlanSettings
from spanlite_replay.requestlog import UNITS_NS
from spanlite_replay.transforms import check_ratio

DEPS_HELP = (
    "what a kernel waits for: stream order and recorded events (stream), or also whatever had "
    "ended on another stream before it started (observed); the latter is inferred"
)


def add_transforms(parser: argparse.ArgumentParser) -> None:
    """The window and everything that changes a plan."""
    add_window_arguments(parser)
    parser.add_argument(
        "--time-unit",
        choices=list(UNITS_NS),
        help="of the numbers that a request log gives as times, where the log leaves it open",
    )
    group = parser.add_argument_group("transforms")
    group.add_argument(
        "--unit",
        choices=["span", "trace", "request"],
        help="an event is each span (default), each trace as a whole, or each trace that "
        "holds a request; the last two keep the times inside a trace as recorded",
    )
    group.add_argument("--sample", metavar="FRACTION", help="keep this share of whole traces")
    group.add_argument("--seed", type=int, default=0, help="of --sample and thin (default 0)")
    group.add_argument(
        "--max-gap", metavar="DURATION", help="shorten each time in which nothing ran to this"
    )
    group.add_argument("--speed", metavar="X", help="2 is twice as fast, 0.5 or 1/2 half")
    group.add_argument(
        "--start-at",
        metavar="TIME",
        help="when the first event is due; a time to come is waited for "
        "(default: dry as recorded, kafka now)",
    )
    group.add_argument(
        "--loop", metavar="N", type=int, help="play the window N times, one after the other"
    )
    group.add_argument(
        "--smooth",
        metavar="DURATION",
        help="space the arrivals within each window of this length evenly (default: bursts stay)",
    )
    group.add_argument(
        "--qps",
        metavar="[SERVICE=]N",
        action="append",
        help="at most N arrivals a second: traces, or requests with --unit request; of one "
        "service or of all; may be repeated",
    )
    group.add_argument(
        "--over",
        choices=["delay", "drop", "thin"],
        help="what is above --qps: delay it (default), drop what does not fit, or thin all "
        "traffic by one random share that fits",
    )
    group.add_argument(
        "--burst",
        metavar="B",
        type=int,
        help="allow B arrivals at once, then none for B/N s (default: delay 1, so evenly "
        "spaced; drop and thin one second's worth)",
    )


#: Flags that a saved plan has been through already; --start-at may follow.
_MADE_BEFORE = (
    "window_from", "window_to", "window_last", "unit", "sample", "max_gap", "speed", "qps", "over",
    "burst", "loop", "smooth",
)  # fmt: skip


def refuse_transforms(args: argparse.Namespace) -> None:
    """For a plan that is saved. Raises UsageError where a flag would change it."""
    for name in _MADE_BEFORE:
        if getattr(args, name) is not None:
            flag = "--" + name.removeprefix("window_").replace("_", "-")
            raise UsageError(
                f"{flag} changes a plan when it is made: give an archive, or save another plan"
            )


def check_transforms(args: argparse.Namespace) -> None:
    """Raises UsageError for flags that contradict each other."""
    for is_wrong, message in (
        (args.over and not args.qps, "--over says what is done above a rate: give --qps too"),
        (args.burst is not None and not args.qps, "--burst belongs to a rate: give --qps too"),
        (args.loop is not None and args.loop < 1, f"--loop {args.loop} must be 1 or more"),
        (args.burst is not None and args.burst < 1, f"--burst {args.burst} must be 1 or more"),
    ):
        if is_wrong:
            raise UsageError(message)


def settings_of(args: argparse.Namespace) -> PlanSettings:
    """What the flags ask for, checked. Raises UsageError."""
    check_transforms(args)
    qps, service_qps = _rates(args.qps or [])
    settings = PlanSettings(
        unit=args.unit or ("request" if getattr(args, "target", None) == "http" else "span"),
        sample=Fraction(1) if args.sample is None else check_ratio("--sample", args.sample),
        seed=args.seed,
        max_gap_ns=None if args.max_gap is None else parse_duration(args.max_gap),
        speed=Fraction(1) if args.speed is None else check_ratio("--speed", args.speed),
        start_at_ns=None if args.start_at is None else parse_time(args.start_at),
        qps=qps,
        over=args.over or "delay",
        burst=args.burst,
        service_qps=service_qps,
        loop=args.loop or 1,
        smooth_ns=None if args.smooth is None else _window(args.smooth),
    )
    if settings.sample > 1:
        raise UsageError(f"--sample {args.sample} is a share: give a number above 0, 1 at most")
    return settings


def _rates(told: list[str]) -> tuple[Fraction | None, tuple[tuple[str, Fraction], ...]]:
    """(the rate of all, the rates of single services, sorted)."""
    rates: dict[str, Fraction] = {}
    for text in told:
        service, sign, number = text.rpartition("=")
        if sign and not service:
            raise UsageError(f"--qps {text}: no service before the =; write N or SERVICE=N")
        if service in rates:
            raise UsageError(f"--qps {text}: a second rate for {service or 'all'}; give one")
        rates[service] = check_ratio("--qps", number)
    return rates.pop("", None), tuple(sorted(rates.items()))


def _window(text: str) -> int:
    window_ns = parse_duration(text)
    if window_ns < 1:
        raise UsageError(f"--smooth {text} must be above 0")
    return window_ns
