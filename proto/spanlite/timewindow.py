"""Windows of time on the command line: `--from`, `--to` and `--last`, the same everywhere.

A window is half open, `from_ns <= t < to_ns`, in integer Unix nanoseconds. Times may be
written as ISO 8601 (`2026-12-01T07:15:00.000000001Z`; no zone means UTC), as a date, as an
epoch number (s, ms, us or ns, told apart by size), as `now`, or before now as `-15m`.
"""

from __future__ import annotations

import argparse
import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from spanlite.errors import UsageError

NS_PER_SECOND = 1_000_000_000
_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": NS_PER_SECOND,
    "m": 60 * NS_PER_SECOND,
    "h": 3600 * NS_PER_SECOND,
    "d": 86_400 * NS_PER_SECOND,
    "w": 7 * 86_400 * NS_PER_SECOND,
}
_DURATION = re.compile(r"(\d+)(?:\.(\d+))?(ns|us|ms|s|m|h|d|w)")
_NUMBER = re.compile(r"(\d+)(?:\.(\d+))?")
_FRACTION = re.compile(r"(?<=:\d\d)[.,](\d+)")
#: An epoch number below each limit is in this many ns. The limits lie near the year 5138
#: for each unit, so no time of this millennium is ambiguous after 1973.
_EPOCH_UNITS = ((10**11, NS_PER_SECOND), (10**14, 1_000_000), (10**17, 1_000))
#: What 64 bits hold.
_LONGEST_NS = 2**63 - 1
_HOW = "use ISO 8601 (2026-12-01T07:15:00Z), an epoch number, 'now', or '-15m'"


def _scaled(whole: str, fraction: str | None, unit_ns: int) -> int:
    """`whole.fraction` units in ns, exact (what lies below 1 ns is cut off)."""
    part = fraction or ""
    return int(whole + part) * unit_ns // int(10 ** len(part))


def parse_duration(text: str) -> int:
    """A length of time such as `15m`, `1.5h` or `250ms`, in ns. Raises UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise UsageError(f"'{text}' is not a duration: write 250ms, 30s, 15m, 2h, 1d or 1w")
    whole, fraction, unit = match.groups()
    # 19 digits hold every count of ns in 64 bits, and int() takes no text of any length.
    length = _scaled(whole, (fraction or "")[:19], _UNITS_NS[unit]) if len(whole) <= 19 else None
    if length is None or length > _LONGEST_NS:
        raise UsageError(f"'{text[:40]}' is too long a time: 292 years (106751d) at most")
    return length


def _parse_epoch(whole: str, fraction: str | None) -> int:
    value = int(whole)
    unit_ns = next((unit for limit, unit in _EPOCH_UNITS if value < limit), 1)
    return _scaled(whole, fraction, unit_ns)


def _parse_iso(text: str) -> int:
    fraction = _FRACTION.search(text)
    digits = fraction.group(1) if fraction else ""
    moment = datetime.fromisoformat(_FRACTION.sub("", text))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = since.days * 86_400 + since.seconds
    return seconds * NS_PER_SECOND + int(digits[:9].ljust(9, "0"))


def parse_time(text: str, now_ns: int | None = None) -> int:
    """A point in time as Unix ns. Raises UsageError where it cannot be read."""
    word = text.strip()
    now = time.time_ns() if now_ns is None else now_ns
    if word == "now":
        return now
    if word.startswith(("-", "now-")):
        return now - parse_duration(word.removeprefix("now").removeprefix("-"))
    number = _NUMBER.fullmatch(word)
    try:
        # Eight digits are a date (20261201), not a time in 1970.
        if number and len(number.group(1)) != len("20261201"):
            return _parse_epoch(*number.groups())
        return _parse_iso(word)
    except (ValueError, OverflowError):
        raise UsageError(f"'{text}' is not a time: {_HOW}") from None


def format_time(time_ns: int) -> str:
    """ISO 8601 in UTC with as many digits as the time needs; `parse_time` reads it back."""
    seconds, rest = divmod(time_ns, NS_PER_SECOND)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


@dataclass(frozen=True)
class TimeWindow:
    """`from_ns <= t < to_ns`; None means open on that side."""

    from_ns: int | None = None
    to_ns: int | None = None

    def __post_init__(self) -> None:
        if self.from_ns is not None and self.to_ns is not None and self.from_ns >= self.to_ns:
            raise UsageError(
                f"the window is empty: it starts at {format_time(self.from_ns)} "
                f"and ends at {format_time(self.to_ns)}"
            )

    def __contains__(self, time_ns: int) -> bool:
        return (self.from_ns is None or self.from_ns <= time_ns) and (
            self.to_ns is None or time_ns < self.to_ns
        )

    def overlaps(self, start_ns: int, end_ns: int) -> bool:
        """Whether any time in `start_ns <= t < end_ns` (a partition, say) lies inside."""
        return (self.to_ns is None or start_ns < self.to_ns) and (
            self.from_ns is None or end_ns > self.from_ns
        )

    def __str__(self) -> str:
        if self.from_ns is None and self.to_ns is None:
            return "all time"
        start = "the start" if self.from_ns is None else format_time(self.from_ns)
        end = "the end" if self.to_ns is None else format_time(self.to_ns)
        return f"{start} to {end}"


#: No bounds at all.
ALL_TIME = TimeWindow()


def add_window_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `--from`, `--to` and `--last`; read them with `window_of`."""
    # argparse takes a value that starts with a dash for a flag unless it looks like a
    # negative number to it; `--from -15m` must work as well as `--from=-15m`.
    parser._negative_number_matcher = re.compile(r"^-\d[\d.]*[a-z]*$")
    group = parser.add_argument_group("window", "Without these, all time. TIME: " + _HOW + ".")
    group.add_argument("--from", dest="window_from", metavar="TIME", help="start, inclusive")
    group.add_argument("--to", dest="window_to", metavar="TIME", help="end, exclusive")
    group.add_argument(
        "--last", dest="window_last", metavar="DURATION", help="shorthand for --from -DURATION"
    )


def window_of(args: argparse.Namespace, now_ns: int | None = None) -> TimeWindow:
    """The window that the flags ask for. Raises UsageError."""
    now = time.time_ns() if now_ns is None else now_ns
    start, end, last = args.window_from, args.window_to, args.window_last
    if last is not None:
        if start is not None:
            raise UsageError("--last and --from both say where the window starts: give one")
        start = f"-{last.removeprefix('-')}"
    return TimeWindow(
        None if start is None else parse_time(start, now),
        None if end is None else parse_time(end, now),
    )
