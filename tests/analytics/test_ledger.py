import json
from typing import Any

import pytest

HOUR = 1_796_108_400_000_000_000


def row(
    hop: str, direction: str, spans: int, reason: str = "", messages: int = 0
) -> dict[str, Any]:
    return {
        "time_ns": HOUR,
        "hop": hop,
        "direction": direction,
        "spans": spans,
        "reason": reason,
        "messages": messages,
    }


def closed_ledger() -> list[dict[str, Any]]:
    return [
        row("collector", "in", 110),
        row("collector", "out", 100),
        row("collector", "dropped", 10, "queue_full"),
        row("wire", "in", 100),
        row("wire", "out", 95),
        row("wire", "dropped", 5, "lost"),
        row("pipeline", "in", 120),
        row("pipeline", "out", 2),
        row("pipeline", "dropped", 25, "duplicate"),
        row("pipeline", "dropped", 90, "sampled_out"),
        row("pipeline", "dropped", 0, "malformed", 3),
        row("pipeline", "open", 10),
        row("pipeline", "open", -7),
    ]


def spans(count: int) -> list[dict[str, Any]]:
    return [
        {"trace_id": f"{i:032x}", "span_id": i + 1, "start_ns": HOUR + i, "duration_ns": 1}
        for i in range(count)
    ]


def test_closes_with_everything_named(build: Any, spanlite: Any) -> None:
    build.ledger(*closed_ledger()).spans(*spans(2))
    code, out, _ = spanlite("ledger", "--archive", build.root)
    assert code == 0
    assert "It closes." in out
    assert "duplicate 25, sampled_out 90, malformed 3 messages" in out
    assert "Known to be lost on the wire: 5 spans." in out


def test_json_holds_every_number(build: Any, spanlite: Any) -> None:
    build.ledger(*closed_ledger()).spans(*spans(2))
    code, out, _ = spanlite("ledger", "--json", "--archive", build.root)
    result = json.loads(out)
    assert (code, result["closes"], result["lost"]) == (0, True, 5)
    hops = {hop["hop"]: hop for hop in result["hops"]}
    assert list(hops) == ["collector", "wire", "pipeline", "archive"]
    assert hops["pipeline"]["in"] == 120
    assert hops["pipeline"]["open"] == 3
    assert hops["pipeline"]["dropped"] == {"duplicate": 25, "malformed": 0, "sampled_out": 90}
    assert hops["archive"] == {
        "hop": "archive",
        "in": 2,
        "out": 2,
        "dropped": {},
        "dropped_messages": {},
        "open": 0,
        "difference": 0,
        "closes": True,
    }


@pytest.mark.parametrize("changed", range(6))
def test_a_missing_row_opens_it(build: Any, spanlite: Any, changed: int) -> None:
    rows = closed_ledger()
    del rows[changed]
    build.ledger(*rows).spans(*spans(2))
    code, out, _ = spanlite("ledger", "--archive", build.root)
    assert code == 1
    assert "It does not close." in out


def test_a_lost_file_opens_it(build: Any, spanlite: Any) -> None:
    build.ledger(*closed_ledger()).spans(*spans(2))
    next(build.root.glob("incoming/**/*.parquet")).unlink()
    code, out, _ = spanlite("ledger", "--archive", build.root)
    assert code == 1
    assert "1 missing" in out


def test_expired_rows_close_it(build: Any, spanlite: Any) -> None:
    build.ledger(*closed_ledger(), row("archive", "dropped", 1, "expired")).spans(*spans(1))
    assert spanlite("ledger", "--archive", build.root)[0] == 0


def test_an_hour_in_both_places_is_counted_once(build: Any, spanlite: Any) -> None:
    build.ledger(*closed_ledger()).spans(*spans(2)).spans(*spans(2), compacted=True)
    assert spanlite("ledger", "--archive", build.root)[0] == 0


def test_window_leaves_files_out(build: Any, spanlite: Any) -> None:
    build.ledger(*closed_ledger(), {**row("wire", "in", 5), "time_ns": HOUR + 3600 * 10**9})
    args = ("ledger", "--json", "--archive", build.root)
    code, out, _ = spanlite(*args, "--from", HOUR, "--to", HOUR + 1)
    assert code == 0
    assert [hop["hop"] for hop in json.loads(out)["hops"]] == ["collector", "wire", "pipeline"]
    assert spanlite(*args, "--from", HOUR, "--to", HOUR + 3600 * 10**9 + 1)[0] == 1
    code, out, _ = spanlite("ledger", "--archive", build.root, "--to", HOUR)
    assert (code, "Nothing was counted in this window." in out) == (0, True)
    assert "from 2026-12-01T07:00:00" in out and "to 2026-12-01T08:00:00" in out


def test_empty_archive(build: Any, spanlite: Any) -> None:
    code, out, _ = spanlite("ledger", "--archive", build.root)
    assert (code, "Nothing was counted." in out) == (0, True)


def test_foreign_folder_and_damaged_file(build: Any, spanlite: Any, tmp_path: Any) -> None:
    code, _, err = spanlite("ledger", "--archive", tmp_path)
    assert (code, "not a SpanLite archive" in err) == (2, True)
    build.ledger(*closed_ledger()).spans(*spans(1))
    next(build.root.glob("incoming/**/*.parquet")).write_bytes(b"PAR1 not really")
    code, _, err = spanlite("ledger", "--archive", build.root)
    assert (code, "spanlite archive verify" in err, "Traceback" in err) == (2, True, False)
