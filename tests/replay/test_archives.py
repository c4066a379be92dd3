"""Which archive a command reads, and what of it no replay can use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

Run = Callable[..., tuple[int, str, str]]
HOUR = 1_796_108_400_000_000_000


@pytest.fixture
def archive(
    tmp_path: Path, make_spans: Callable[..., pa.RecordBatch], write_archive: Callable[..., Path]
) -> Path:
    """One good trace, and four with a time that is centuries away."""
    starts = [HOUR, -(2**63), 2**63 - 1, HOUR, HOUR]
    durations = [50, 5, 0, 2**62, -(2**63)]
    batch = make_spans(
        trace_id_low=[1, 2, 3, 4, 5],
        span_id=[1, 2, 3, 4, 5],
        parent_span_id=[0] * 5,
        start_ns=starts,
        duration_ns=durations,
        kind=[9] * 5,
        name=pa.array(["step"] * 5).dictionary_encode(),
    )
    return write_archive(tmp_path / "archive", batch, {"service.name": "llm"}, 1)


@pytest.mark.parametrize("window", [(), ("--from", "2026-12-01T07:00")])
def test_times_centuries_away_stay_out(spanlite: Run, archive: Path, window: tuple[str]) -> None:
    code, out, err = spanlite("replay", archive, *window, "--no-wait")
    assert (code, len(out.splitlines())) == (0, 1)
    # The window looks at hours around it alone, so it may not even meet the other starts.
    assert "traces left out, their times being centuries away: " in err
    assert window or "away: 4" in err


def test_the_archive_by_word_flag_or_environment(
    spanlite: Run, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_word = spanlite("replay", archive, "--no-wait")[:2]
    assert spanlite("replay", "--archive", archive, "--no-wait")[:2] == by_word
    monkeypatch.setenv("SPANLITE_ARCHIVE", str(archive))
    assert spanlite("replay", "--no-wait")[:2] == by_word
    code, _, err = spanlite("replay", archive, "--archive", "other", "--no-wait")
    assert (code, "give one" in err) == (2, True)
    for command in ("bottlenecks", "whatif --streams 1", "plan save --out x.slplan"):
        code, _, err = spanlite(*command.split(), "--archive", archive.parent / "none")
        assert (code, "not a SpanLite archive" in err) == (2, True), command
