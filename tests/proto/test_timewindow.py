import argparse
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite.errors import UsageError
from spanlite.timewindow import (
    TimeWindow,
    add_window_arguments,
    format_time,
    parse_duration,
    parse_time,
    window_of,
)

NOW = 1_764_572_400_123_456_789
MINUTE = 60_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("-15m", NOW - 15 * MINUTE),
        ("now-1.5h", NOW - 90 * MINUTE),
        ("1764572400", 1_764_572_400_000_000_000),
        ("1764572400.5", 1_764_572_400_500_000_000),
        ("1764572400123", 1_764_572_400_123_000_000),
        ("1764572400123456", 1_764_572_400_123_456_000),
        ("1764572400123456789", NOW),
        ("2025-12-01T07:00:00Z", 1_764_572_400_000_000_000),
        ("2025-12-01 07:00", 1_764_572_400_000_000_000),
        ("2025-12-01T08:00:00.123456789+01:00", NOW),
        ("2025-12-01", 1_764_547_200_000_000_000),
        ("20251201", 1_764_547_200_000_000_000),
        ("1969-12-31T23:59:59.5Z", -500_000_000),
    ],
)
def test_reads_times_exactly(text: str, expected: int) -> None:
    assert parse_time(text, NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-15", "-15 parsecs", "2025-13-01", "12:00", "-"]
)
def test_refuses_what_is_not_a_time(text: str) -> None:
    with pytest.raises(UsageError, match="is not a"):
        parse_time(text, NOW)


@given(st.integers(min_value=-(2**62), max_value=2**62))
def test_formatted_times_read_back(time_ns: int) -> None:
    assert parse_time(format_time(time_ns)) == time_ns


@given(st.integers(0, 10**4), st.sampled_from(["ns", "us", "ms", "s", "m", "h", "d", "w"]))
def test_durations_scale(count: int, unit: str) -> None:
    assert parse_duration(f"{count}{unit}") == count * parse_duration(f"1{unit}")


def test_year_2262_formats() -> None:
    assert format_time(2**63 - 1).startswith("2262-04-11T23:47:16")
    assert datetime.fromisoformat(format_time(0)) == datetime(1970, 1, 1, tzinfo=UTC)


def _parse(*argv: str) -> TimeWindow:
    parser = argparse.ArgumentParser()
    add_window_arguments(parser)
    return window_of(parser.parse_args(argv), NOW)


def test_flags() -> None:
    assert _parse() == TimeWindow(None, None)
    assert _parse("--from", "-15m") == TimeWindow(NOW - 15 * MINUTE, None)
    assert _parse("--from=-15m", "--to", "now") == TimeWindow(NOW - 15 * MINUTE, NOW)
    assert _parse("--last", "15m") == _parse("--from", "-15m")
    with pytest.raises(UsageError, match="give one"):
        _parse("--last", "15m", "--from", "now")
    with pytest.raises(UsageError, match="window is empty"):
        _parse("--from", "now", "--to", "-1m")


def test_bounds() -> None:
    window = TimeWindow(10, 20)
    assert [t in window for t in (9, 10, 19, 20)] == [False, True, True, False]
    assert window.overlaps(0, 11) and not window.overlaps(0, 10)
    assert window.overlaps(19, 30) and not window.overlaps(20, 30)
    assert str(TimeWindow()) == "all time"
