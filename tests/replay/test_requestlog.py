"""Arrivals from logs of requests: exact times, and questions instead of guesses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from spanlite.errors import InputError, UsageError
from spanlite.timewindow import ALL_TIME, TimeWindow
from spanlite_replay.requestlog import read_requests

Run = Callable[..., tuple[int, str, str]]
SHARED = Path(__file__).parents[3] / "shared" / "data" / "requests"
SECOND = 1_000_000_000
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16T18:15:50.000000001Z,396,109
2023-11-16 18:15:51,879,55
"""


def jsonl(times: list[object]) -> str:
    return "".join(
        json.dumps({"timestamp": t, "input_length": 5, "output_length": 2, "hash_ids": [0]}) + "\n"
        for t in times
    )


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_azure_keeps_every_digit(tmp_path: Path) -> None:
    rec = read_requests(write(tmp_path, "a.csv", AZURE), ALL_TIME)
    base = 1_700_158_546 * SECOND
    assert rec.start_ns.tolist() == [base + 680_590_000, base + 4 * SECOND + 1, base + 5 * SECOND]
    assert rec.traces == 3
    told = json.loads(rec.table.column("attributes").to_pylist()[0])
    assert told == {"gen_ai.usage.input_tokens": 374, "gen_ai.usage.output_tokens": 44}
    assert rec.table.column("service").to_pylist() == ["a"] * 3


def test_mooncake_counts_milliseconds(tmp_path: Path) -> None:
    rec = read_requests(write(tmp_path, "m.jsonl", jsonl([0, 27, 30_000])), ALL_TIME)
    assert rec.start_ns.tolist() == [0, 27_000_000, 30 * SECOND]


def test_ids_are_of_the_file(tmp_path: Path) -> None:
    one = read_requests(write(tmp_path, "a.csv", AZURE), ALL_TIME)
    two = read_requests(write(tmp_path, "b.csv", AZURE + "2023-11-16 19:00:00,1,1\n"), ALL_TIME)
    assert not set(one.trace_low.tolist()) & set(two.trace_low.tolist())


@pytest.mark.parametrize(
    ("name", "text", "question"),
    [
        ("a.jsonl", jsonl([0.5, 1.25, 2.5]), "seconds or milliseconds"),
        ("a.jsonl", jsonl([1_700_000_000, 1_700_000_001]), "Unix time in s, ms, us or ns"),
        ("a.jsonl", jsonl(list(range(0, 20, 1)) * 30), "really milliseconds"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n", "seconds or milliseconds"),
    ],
)
def test_an_ambiguous_file_is_refused_with_its_question(
    tmp_path: Path, name: str, text: str, question: str
) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(InputError, match=question) as refused:
        read_requests(path, ALL_TIME)
    assert "--time-unit" in str(refused.value)
    assert len(read_requests(path, ALL_TIME, "s").start_ns)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "x,y\n1,2\n", "has no timestamp"),
        ("a.jsonl", "{", "not a log of requests"),
        ("a.csv", AZURE.splitlines()[0] + "\n", "no requests"),
        ("a.csv", AZURE + "16.11.2023 18:16,1,1\n", "request 4: is '16.11.2023 18:16' UTC"),
        ("a.csv", AZURE + "2023-11-16 18:15:46+02:00,1,1\n", "UTC"),
        ("a.csv", AZURE + "2023-11-31 18:15:46,1,1\n", "no calendar"),
        ("a.csv", AZURE + "2023-11-16 18:15:46,many,1\n", "contexttokens"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_requests(write(tmp_path, name, text), ALL_TIME)


def test_windows_and_units(tmp_path: Path) -> None:
    path = write(tmp_path, "m.jsonl", jsonl([0, 27, 30_000]))
    window = TimeWindow(0, SECOND)
    assert len(read_requests(path, window).start_ns) == 2
    assert read_requests(path, ALL_TIME, "us").start_ns.tolist() == [0, 27_000, 30_000_000]
    with pytest.raises(UsageError, match="no request"):
        read_requests(path, TimeWindow(SECOND * 40, SECOND * 50))
    with pytest.raises(UsageError, match="dates and times"):
        read_requests(write(tmp_path, "a.csv", AZURE), ALL_TIME, "s")


def test_replayed_from_the_command_line(spanlite: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", AZURE)
    code, out, _ = spanlite("replay", path, "--unit", "request", "--speed", "2", "--no-wait")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [row["kind"] for row in rows] == ["request"] * 3
    assert rows[1]["due_ns"] - rows[0]["due_ns"] == 3_319_410_001 // 2
    plan = tmp_path / "a.slplan"
    assert spanlite("plan", "save", path, "--out", plan)[0] == 0
    assert spanlite("replay", plan, "--no-wait")[0] == 0


def test_blocks_that_requests_share_are_kept(tmp_path: Path) -> None:
    text = jsonl([0, 27]).replace("[0]", "[7, 8]", 1) + '{"timestamp":50,"input_length":5,'
    path = write(tmp_path, "m.jsonl", text + '"output_length":2,"hash_ids":[]}\n')
    told = [
        json.loads(one) for one in read_requests(path, ALL_TIME).table["attributes"].to_pylist()
    ]
    assert [one.get("hash_ids") for one in told] == [[7, 8], [0], None]
    assert all(one["gen_ai.usage.input_tokens"] == 5 for one in told)


def test_a_loop_of_arrivals_keeps_their_rate(spanlite: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "m.jsonl", jsonl([0, 100, 200, 300]))
    code, out, _ = spanlite("replay", path, "--unit", "request", "--loop", "3", "--no-wait")
    due = [json.loads(line)["due_ns"] for line in out.splitlines()]
    assert code == 0 and due == [number * SECOND // 10 for number in range(12)]


@pytest.mark.parametrize("name", ["azure_llm_conv_2023.csv", "mooncake_synthetic.jsonl"])
def test_an_import_reads_the_same(name: str, import_rows: Callable[[Path], pa.Table]) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not in ../shared/data/requests")
    mine, theirs = read_requests(path, ALL_TIME), import_rows(path)
    assert sorted(mine.start_ns.tolist()) == sorted(theirs.column("start_ns").to_pylist())

    def counts(texts: pa.ChunkedArray) -> list[tuple[int, int]]:
        keys = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
        return sorted(tuple(json.loads(text)[key] for key in keys) for text in texts.to_pylist())

    assert counts(mine.table.column("attributes")) == counts(theirs.column("attributes"))


@pytest.mark.parametrize(
    ("name", "count"), [("azure_llm_conv_2023.csv", 19_366), ("mooncake_synthetic.jsonl", 3_993)]
)
def test_published_logs(name: str, count: int) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not in ../shared/data/requests")
    assert len(read_requests(path, ALL_TIME).start_ns) == count


@pytest.mark.parametrize(
    "time", [2**64 - 1, -(2**63), 1e300, True, [1], "0001-01-01 00:00:00", "9999-01-01 00:00:00"]
)
def test_a_time_out_of_range_is_refused_with_its_row(tmp_path: Path, time: object) -> None:
    unit = None if isinstance(time, str) else "ms"
    with pytest.raises(InputError, match="request 1: "):
        read_requests(write(tmp_path, "m.jsonl", jsonl([time])), ALL_TIME, unit)


def test_dates_in_json_lines_without_fractions(tmp_path: Path) -> None:
    path = write(tmp_path, "m.jsonl", jsonl(["2023-11-16 18:15:46"]))
    assert read_requests(path, ALL_TIME).start_ns.tolist() == [1_700_158_546 * SECOND]


def test_a_null_among_block_ids_is_refused(tmp_path: Path) -> None:
    text = jsonl([0, 1]).replace("[0]", "[null, -1]", 1).replace("[0]", "null")
    with pytest.raises(InputError, match=r"null among the ids .request 1"):
        read_requests(write(tmp_path, "m.jsonl", text), ALL_TIME)


def test_durations_and_starts_beyond_64_bits_are_refused(spanlite: Run, tmp_path: Path) -> None:
    path = write(tmp_path, "m.jsonl", jsonl([0, 100]))
    for flags in (["--max-gap", "9" * 20 + "d"], ["--start-at", "9" * 29]):
        assert spanlite("replay", path, "--no-wait", *flags)[0] == 2
