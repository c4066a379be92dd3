"""What a file says that cannot be kept: that record is refused and told, and the rest goes on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spanlite.cli import main
from spanlite.errors import InputError
from spanlite_collectors.commands import import_
from spanlite_collectors.importers import ImportOptions, import_file
from spanlite_collectors.importers.report import ImportReport
from spanlite_collectors.sinks import MemorySink

T0 = 1_700_000_000_000_000_000
KERNEL = {"t": "kernel", "name": "k", "start": T0, "end": T0 + 5, "grid": [1, 1, 1],
          "block": [1, 1, 1]}  # fmt: skip
EVENT = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 5, "dur": 1}
Imported = Callable[..., tuple[ImportReport, MemorySink]]


@pytest.fixture
def imported(tmp_path: Path) -> Imported:
    def run(content: str, kind: str = "auto") -> tuple[ImportReport, MemorySink]:
        path = tmp_path / "file"
        path.write_text(content)
        sink = MemorySink()
        return import_file(path, sink, source_format=kind), sink

    return run


def lines(*records: Any) -> str:
    return "\n".join(map(json.dumps, records))


def rows(sink: MemorySink) -> list[dict[str, Any]]:
    return [row for spans, _ in sink.written for row in spans.to_pylist()]


@pytest.mark.parametrize(
    "odd",
    [
        {"start": 2**63}, {"start": "x"}, {"start": None}, {"end": [1]}, {"end": True},
        {"start": -(2**62), "end": 2**63 - 1}, {"grid": [1, 1]}, {"grid": [2**40, 1, 1]},
        {"grid": [1.5, 1, 1]}, {"cluster": [1]}, {"regs": "x"}, {"dev": 2**40}, {"dev": 0.5},
        {"dev": "0"}, {"dev": -5}, {"stream": 2**64}, {"corr": 2**65}, {"corr": -1},
        {"graph_id": 2**33}, {"name": 5}, {"name": None},
    ],
)  # fmt: skip
def test_a_cupti_record_that_no_column_holds_is_refused_alone(
    imported: Imported, odd: dict[str, Any]
) -> None:
    report, sink = imported(lines(KERNEL, KERNEL | odd))
    assert (report.kinds["kernel"].kept, report.kinds["kernel"].refused) == (1, 1)
    assert sink.dropped == dict(report.reasons)
    assert set(report.reasons) <= {"unreadable_record", "unreadable_time", "invalid_time"}
    assert [row["name"] for row in rows(sink)] == ["k"]


def test_null_is_not_given(imported: Imported) -> None:
    report, sink = imported(
        lines(KERNEL | {"dev": None, "stream": None, "corr": None, "regs": None})
    )
    assert report.spans == 1 and not report.reasons
    assert rows(sink)[0]["device"] == rows(sink)[0]["stream"] == -1


@pytest.mark.parametrize("odd", [-5, 2**70, "x", [1], 1e300])
def test_the_count_of_dropped_records_is_a_count(imported: Imported, odd: Any) -> None:
    report, sink = imported(
        lines({"t": "stats", "dropped": 3}, {"t": "stats", "dropped": odd}, KERNEL)
    )
    assert sink.dropped == {"cupti_dropped": 3}
    assert report.reasons == {"unreadable_context": 1} and report.spans == 1


@pytest.mark.parametrize("args", [[1], "abc", 5, None])
def test_a_begin_with_args_of_another_shape_still_pairs(imported: Imported, args: Any) -> None:
    begin = {"ph": "B", "name": "a", "pid": 1, "tid": 1, "ts": 1, "args": args}
    end = {"ph": "E", "name": "a", "pid": 1, "tid": 1, "ts": 2, "args": {"x": 1}}
    report, sink = imported(json.dumps({"traceEvents": [begin, end]}))
    assert not report.reasons
    assert json.loads(rows(sink)[0]["attributes"])["x"] == 1


def test_numbers_beyond_any_size_are_read(imported: Imported) -> None:
    nines = "9" * 5000
    event = json.dumps(EVENT | {"args": {"a": "NINES", "b": "TINY"}}).replace('"NINES"', nines)
    event = event.replace('"TINY"', "1e-999999999999999999999")
    far = json.dumps(EVENT | {"ts": "NINES"}).replace('"NINES"', nines)
    long_pid = json.dumps(EVENT | {"pid": "NINES", "tid": "NINES"}).replace('"NINES"', nines)
    report, sink = imported(f'{{"traceEvents": [{event}, {far}, {long_pid}]}}')
    assert report.spans == 2 and report.reasons == {"unreadable_time": 1}
    first = next(row for row in rows(sink) if row["attributes"] and "a" in row["attributes"])
    assert json.loads(first["attributes"]) == {"a": nines, "b": 0}


@pytest.mark.parametrize(
    ("base", "ts", "duration"),
    [
        (2**62, 9 * 10**15, 1),
        (-(2**62), -9 * 10**15, 1),
        (T0, 9 * 10**15, 1),
        (T0, 10, 9 * 10**15),
    ],
)
@pytest.mark.parametrize("base_first", [True, False])
def test_kineto_times_do_not_wrap(
    imported: Imported, base: int, ts: int, duration: int, base_first: bool
) -> None:
    events = [EVENT, EVENT | {"ts": ts, "dur": duration}]
    parts = [("baseTimeNanoseconds", base), ("traceEvents", events)]
    report, sink = imported(json.dumps(dict(parts if base_first else parts[::-1])))
    assert report.reasons == {"invalid_time": 1} == sink.dropped
    assert [row["start_ns"] for row in rows(sink)] == [base + 5000]


def test_far_times_that_fit_are_kept(imported: Imported) -> None:
    report, sink = imported(json.dumps([EVENT | {"ts": (2**63 - 1) // 1000, "dur": 0}]))
    assert not report.reasons
    assert rows(sink)[0]["start_ns"] == (2**63 - 1) // 1000 * 1000


@pytest.mark.parametrize("base", [9 * 10**18, -9 * 10**18, 2**70, "soon", 1.5])
def test_a_base_that_is_no_time_refuses_the_file(imported: Imported, base: Any) -> None:
    with pytest.raises(InputError, match="baseTimeNanoseconds"):
        imported(json.dumps({"traceEvents": [EVENT], "baseTimeNanoseconds": base}))


def database(path: Path, epoch: Any, *kernels: tuple[Any, ...]) -> Path:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE StringIds (id, value)")
        db.execute("INSERT INTO StringIds VALUES (1, 'k')")
        db.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs)")
        db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (epoch,))
        db.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL "
            "(start, end, deviceId, correlationId, globalPid, gridX, shortName)"
        )
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, 1)", kernels
        )
    db.close()
    return path


GOOD = (100, 200, 0, 1, 1 << 24, 1)


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ((100, 200, 0, 1, 1 << 24, -1), "unreadable_record"),
        ((100, 200, 0, 1, 1 << 24, "x"), "unreadable_record"),
        ((100, 200, 2**40, 1, 1 << 24, 1), "unreadable_record"),
        ((100, 200, 0, "q", 1 << 24, 1), "unreadable_record"),
        ((100, 200, 0, -1, 1 << 24, 1), "unreadable_record"),
        ((100, 200, 0, 1, "q", 1), "unreadable_record"),
        ((100, "q", 0, 1, 1 << 24, 1), "unreadable_time"),
        ((2**63 - 9, 2**63 - 1, 0, 1, 1 << 24, 1), "invalid_time"),
        ((2**63 - 1, -(2**63), 0, 1, 1 << 24, 1), "invalid_time"),
    ],
)
def test_an_nsys_row_that_no_column_holds_is_refused_alone(
    tmp_path: Path, odd: tuple[Any, ...], reason: str
) -> None:
    sink = MemorySink()
    report = import_file(database(tmp_path / "x.sqlite", T0, GOOD, odd), sink)
    assert report.reasons == {reason: 1} == sink.dropped
    assert [row["start_ns"] for row in rows(sink)] == [T0 + 100]


def test_nsys_epochs(tmp_path: Path) -> None:
    sink = MemorySink()
    report = import_file(database(tmp_path / "late.sqlite", 2**63 - 1, GOOD), sink)
    assert report.reasons == {"invalid_time": 1} and sink.written == []
    for number, epoch in enumerate(("q", 1.5, b"1")):
        with pytest.raises(InputError, match="utcEpochNs"):
            import_file(database(tmp_path / f"{number}.sqlite", epoch, GOOD), sink)


@pytest.mark.parametrize("odd", ["1e400", "NaN", "1e300", str(10**20), str(-(10**20))])
def test_of_a_request_log_no_time_wraps_and_nothing_is_sent_early(
    imported: Imported, odd: str
) -> None:
    line = '{"timestamp": %s, "input_length": 1, "output_length": 2}\n'
    report, sink = imported(line % 1 * 20_000 + line % odd, "requests")
    assert report.reasons == {"invalid_time": 1} == sink.dropped
    assert sink.span_count == report.spans == 20_000


@pytest.mark.parametrize(
    "day", ["0000-01-01", "0001-01-01", "1500-01-01", "2262-04-12", "9999-12-31", "2023-13-01"]
)
def test_days_that_no_clock_of_ns_shows(imported: Imported, day: str) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    report, sink = imported(f"{header}2023-11-16 18:15:46.5,1,2\n{day} 00:00:00,1,2\n")
    assert report.reasons == {"invalid_time": 1} == sink.dropped
    assert [row["start_ns"] for row in rows(sink)] == [1_700_158_546_500_000_000]


@pytest.mark.parametrize(
    ("content", "kind", "says"),
    [
        ('{"timestamp": 1, "input_length": 1, "output_length": 1}\n{"timestamp": "5"}',
         "requests", "line 2"),
        ('{"timestamp": 1, "x": %s}' % ("[" * 5000 + "]" * 5000), "requests", "too deeply"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-01-01 00:00:00,1," + "1" * 200_000,
         "requests", "limit"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens," + "x" * 200_000, "requests", "limit"),
        ('{"resourceSpans": 5}', "otlp", "not an array"),
        ('{"t": "kernel", "x": %s}' % ("[" * 5000 + "]" * 5000), "cupti", "too deeply"),
        ("[" * 200_000, "auto", "too deeply"),
        ('{"a":' * 200_000, "auto", "too deeply"),
    ],
)  # fmt: skip
def test_files_that_are_none(imported: Imported, content: str, kind: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        imported(content, kind)


@pytest.mark.parametrize(("levels", "kept"), [(63, 1), (64, 0), (900, 0)])
def test_attributes_are_only_as_deep_as_any_reader_goes(
    imported: Imported, levels: int, kept: int
) -> None:
    event = json.dumps(EVENT | {"args": {"a": "DEEP", "b": [[1]] * 100}})
    report, sink = imported(f"[{event}]".replace('"DEEP"', "[" * levels + "]" * levels))
    assert report.spans == kept
    assert sink.dropped == ({} if kept else {"unreadable_record": 1})


def test_no_resource_spans_at_all(imported: Imported) -> None:
    assert imported('{"resourceSpans": null}')[0].spans == 0


@pytest.mark.parametrize("kind", ["kineto", "cupti", "requests", "otlp"])
def test_half_a_character_becomes_a_replacement(imported: Imported, kind: str) -> None:
    half = "a\ud800"
    span = {"traceId": "01" * 16, "spanId": "02" * 8, "name": half, "startTimeUnixNano": "1",
            "endTimeUnixNano": "2",
            "attributes": [{"key": half, "value": {"stringValue": half}}]}  # fmt: skip
    resource = {"attributes": [{"key": "host.name", "value": {"stringValue": half}}]}
    content = {
        "kineto": json.dumps(
            {"traceEvents": [EVENT | {"name": half, "cat": half, "args": {half: [half]}}],
             "host_name": half}
        ),
        "cupti": lines({"t": "process", "pid": 1, "exe": half}, KERNEL | {"name": half}),
        "requests": lines({"timestamp": 1, "input_length": half, "output_length": 1, half: half}),
        "otlp": json.dumps(
            {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}
        ),
    }  # fmt: skip
    report, sink = imported(content[kind], kind)
    assert report.spans == 1
    [(spans, attributes)] = sink.written
    said = json.dumps([spans.to_pylist(), attributes], ensure_ascii=False)
    assert "a\ufffd" in said and "\\ud" not in said
    said.encode()


def test_pairs_of_escapes_are_characters(imported: Imported) -> None:
    _, sink = imported(
        '[{"ph":"X","name":"\\ud83d\\ude00 \\\\ud800","pid":1,"tid":1,"ts":1,"dur":1}]'
    )
    assert rows(sink)[0]["name"] == "\U0001f600 \\ud800"


def test_names_of_files_and_flags_are_any_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trace\udcff.json"
    path.write_text(json.dumps([EVENT]))
    sink = MemorySink()
    report = import_file(path, sink, ImportOptions(service="s\udcff", attributes={"a": "\udcff"}))
    report.table().encode()
    assert sink.written[0][1]["spanlite.import.file"] == "trace\ufffd.json"
    assert sink.written[0][1]["service.name"] == "s\ufffd"


def test_a_fault_of_ours_names_the_file_and_lets_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for path in (first, second):
        path.write_text(json.dumps([EVENT]))
    real = import_.import_file

    def breaks(path: Path, *rest: Any) -> ImportReport:
        if path == first:
            raise ZeroDivisionError("of ours")
        return real(path, *rest)

    monkeypatch.setattr(import_, "import_file", breaks)
    assert main(["import", str(first), str(second), "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert f"{first}: cannot be imported: ZeroDivisionError: of ours (" in err
    assert "nothing of it was sent" in err
    assert "1 spans in 1 traces" in out
