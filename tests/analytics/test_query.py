import csv
import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest

HOUR = 1_796_108_400_000_000_000
NEXT = HOUR + 3_600_000_000_000


@pytest.fixture
def filled(build: Any) -> Any:
    rows = [
        {
            "trace_id": f"{i:032x}",
            "span_id": 2**63 - 1 - i,
            "start_ns": HOUR + i,
            "name": name,
            "duration_ns": 100 + i,
            "sampling_weight": 2.0,
        }
        for i, name in enumerate(["gemm", "flash", "gemm"])
    ]
    late = {"trace_id": f"{9:032x}", "span_id": 9, "start_ns": NEXT, "duration_ns": 7, "name": "ü"}
    build.spans(*rows, late)
    return build


def test_table(filled: Any, spanlite: Any) -> None:
    sql = (
        "SELECT name, count(*) AS n, sum(duration_ns) AS ns FROM spans GROUP BY name ORDER BY name"
    )
    code, out, err = spanlite("query", sql, "--archive", filled.root)
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["name", "n", "ns"],
        ["flash", "1", "101"],
        ["gemm", "2", "202"],
        ["ü", "1", "7"],
    ]


def test_json_keeps_every_digit(filled: Any, spanlite: Any) -> None:
    sql = (
        "SELECT span_id, start_time, end_ns, date, hour, sum(span_id) OVER () AS big, [1.5] AS l "
        "FROM spans WHERE name = 'flash'"
    )
    code, out, _ = spanlite("query", sql, "--format", "json", "--archive", filled.root)
    assert code == 0
    assert json.loads(out) == [
        {
            "span_id": 2**63 - 2,
            "start_time": "2026-12-01T07:00:00.000000001",
            "end_ns": HOUR + 102,
            "date": "2026-12-01",
            "hour": 7,
            "big": 2**63 - 2,
            "l": [1.5],
        }
    ]


def test_csv_and_stdin(filled: Any, spanlite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.stdin", io.StringIO("FROM spans SELECT name, NULL AS x, {'a': name} AS s")
    )
    code, out, _ = spanlite("query", "-", "--format", "csv", "--archive", filled.root)
    assert code == 0
    rows = list(csv.reader(io.StringIO(out)))
    assert rows[0] == ["name", "x", "s"]
    assert ["ü", "", '{"a": "ü"}'] in rows


def test_parquet_and_sql_file(filled: Any, spanlite: Any, tmp_path: Any) -> None:
    sql, out = tmp_path / "q.sql", tmp_path / "out.parquet"
    sql.write_text("CREATE TEMP VIEW v AS SELECT span_id FROM spans; SELECT * FROM v ORDER BY 1;")
    args = ("query", "--file", sql, "--format", "parquet", "--archive", filled.root)
    assert spanlite(*args, "-o", out)[0] == 0
    assert pq.read_table(out)["span_id"].to_pylist() == [9, 2**63 - 3, 2**63 - 2, 2**63 - 1]
    assert [p.name for p in tmp_path.glob("*.part")] == []
    code, _, err = spanlite(*args)
    assert (code, "--output" in err) == (2, True)
    code, _, err = spanlite(*args, "-o", tmp_path / "no" / "such")
    assert (code, "cannot write" in err) == (2, True)


def test_window_prunes_partitions(filled: Any, spanlite: Any) -> None:
    # The pruned hour is not even opened: a broken file there does not matter.
    for path in filled.root.glob("incoming/date=*/hour=08/**/*.parquet"):
        path.write_bytes(b"broken")
    args = ("query", "SELECT count(*) AS n FROM spans", "--archive", filled.root, "--format", "csv")
    assert spanlite(*args, "--from", HOUR + 1, "--to", NEXT) == (0, "n\n2\n", "")
    code, _, err = spanlite(*args)
    assert (code, "spanlite archive verify" in err) == (2, True)


def test_compacted_hour_hides_incoming(filled: Any, spanlite: Any) -> None:
    filled.spans(
        {"trace_id": f"{1:032x}", "span_id": 1, "start_ns": HOUR, "duration_ns": 5}, compacted=True
    )
    sql = "SELECT sum(duration_ns) AS ns FROM spans WHERE trace_id LIKE '%1'"
    result = spanlite("query", sql, "--archive", filled.root, "--format", "csv")
    assert result == (0, "ns\n5\n", "")


@pytest.mark.parametrize(
    "sql",
    [
        "COPY spans TO '{out}'",
        "EXPLAIN ANALYZE COPY spans TO '{out}'",
        "explain analyze (format json) COPY spans TO '{out}'",
        "SELECT 1; COPY spans TO '{out}'",
        "ATTACH '{out}'",
        "EXPORT DATABASE '{out}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT 1; DROP VIEW spans",
        "CREATE TABLE t AS SELECT 1; SELECT * FROM t",
        "/* a */ CREATE -- b\n TEMP TABLE view AS SELECT 1",
        "DROP TABLE t",
        "INSERT INTO spans SELECT * FROM spans",
        "DELETE FROM spans",
        "CREATE SCHEMA s",
    ],
)
def test_writing_is_refused(filled: Any, spanlite: Any, tmp_path: Any, sql: str) -> None:
    out = tmp_path / "written"
    code, stdout, err = spanlite("query", sql.format(out=out), "--archive", filled.root)
    assert (code, stdout, out.exists()) == (2, "", False)
    assert "statements are refused" in err and "--output" in err
    assert "--file" not in err


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE VIEW v AS SELECT 1 AS n; SELECT n FROM v",
        "-- a note\nCREATE OR REPLACE TEMP MACRO one() AS 1; SELECT one() AS n",
        "SET threads = 1; SELECT 1 AS n",
    ],
)
def test_names_on_the_way_are_fine(filled: Any, spanlite: Any, sql: str) -> None:
    args = ("query", sql, "--format", "csv", "--archive", filled.root)
    assert spanlite(*args) == (0, "n\n1\n", "")


#: SQL, as CSV, as a JSON value.
ODD_VALUES = [
    ("TIMESTAMP '290000-01-01'", "290000-01-01 00:00:00", "290000-01-01T00:00:00"),
    ("DATE 'infinity'", "infinity", "infinity"),
    ("DATE '2026-12-01'", "2026-12-01", "2026-12-01"),
    ("INTERVAL '1 day 2 hours'", "1 day 02:00:00", "1 day 02:00:00"),
    ("'\\xAA\\x00z'::BLOB", "aa007a", "aa007a"),
    ("[DATE '-infinity']", '["-infinity"]', '["-infinity"]'),
    ("{'at': TIMESTAMP '290000-01-01'}", '{"at":"290000-01-01 00:00:00"}',
     '{"at":"290000-01-01 00:00:00"}'),
    ("MAP {'a': INTERVAL '1 day'}", '{"a":"1 day"}', '{"a":"1 day"}'),
    ("NULL::TIMESTAMP", "", None),
    ("[1, 2]", "[1, 2]", [1, 2]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "as_csv", "as_json"), ODD_VALUES)
def test_values_that_python_cannot_hold(
    filled: Any, spanlite: Any, value: str, as_csv: str, as_json: Any
) -> None:
    args = ("query", f'SELECT 1 AS a, {value} AS "b ""c"', "--archive", filled.root)
    code, out, err = spanlite(*args, "--format", "csv")
    assert (code, err) == (0, "")
    assert list(csv.reader(io.StringIO(out))) == [["a", 'b "c'], ["1", as_csv]]
    _, out, _ = spanlite(*args, "--format", "json")
    assert json.loads(out) == [{"a": 1, 'b "c': as_json}]
    code, out, _ = spanlite(*args)
    assert (code, as_csv in out) == (0, True)


@pytest.mark.parametrize("raw", [b"SELECT '\xff'", b"\xc3("])
def test_sql_that_is_not_text(
    filled: Any, spanlite: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    as_argument = raw.decode(errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
    (tmp_path / "q.sql").write_bytes(raw)
    for given in ((as_argument,), ("-",), ("--file", tmp_path / "q.sql")):
        code, _, err = spanlite("query", *given, "--archive", filled.root)
        assert (code, "utf-8" in err.lower()) == (2, True)
    for flag in ("--host", "--service"):
        assert spanlite("report", flag, as_argument, "--archive", filled.root)[0] == 2


def test_other_files_can_be_joined(filled: Any, spanlite: Any, tmp_path: Any) -> None:
    (tmp_path / "prices.csv").write_text("name,price\ngemm,2\n")
    sql = (
        "SELECT sum(price) AS cost FROM spans "
        f"JOIN read_csv('{tmp_path / 'prices.csv'}') USING (name)"
    )
    result = spanlite("query", sql, "--format", "csv", "--archive", filled.root)
    assert result == (0, "cost\n4\n", "")


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nonsense FROM spans", "nonsense"),
        ("SELECT * FROM tracez", "Did you mean"),
        ("SELECT name::INTEGER FROM spans", "Could not convert"),
        ("  ", "no SQL"),
    ],
)
def test_errors_are_plain(filled: Any, spanlite: Any, sql: str, message: str) -> None:
    code, _, err = spanlite("query", sql, "--archive", filled.root)
    assert (code, message in err, "Traceback" in err) == (2, True, False)


@pytest.mark.parametrize("table", ["spans", "traces", "kernel_minutes", "ledger"])
def test_missing_tables_are_empty(build: Any, spanlite: Any, table: str) -> None:
    sql = f"SELECT count(*) AS n, min(start_time) AS first, min(date) AS day FROM {table}"
    result = spanlite("query", sql, "--archive", build.root, "--format", "csv")
    assert result == (0, "n,first,day\n0,,\n", "")


def test_traces_view_sums_late_rows(build: Any, spanlite: Any) -> None:
    one, two = f"{1:032x}", f"{2:032x}"
    build.traces(
        {"trace_id": one, "start_ns": HOUR, "end_ns": HOUR + 10, "spans": 5, "errors": 1},
        {"trace_id": two, "start_ns": HOUR + 3, "end_ns": HOUR + 9, "spans": 2, "kept": False},
        {
            "trace_id": one,
            "start_ns": HOUR + 8,
            "end_ns": HOUR + 50,
            "spans": 3,
            "late": True,
            "root_name": None,
            "policy": "late",
        },
    )
    sql = (
        "SELECT trace_id, duration_ns, spans, errors, kept, policy, root_name "
        "FROM traces ORDER BY 1"
    )
    _, out, _ = spanlite("query", sql, "--archive", build.root, "--format", "csv")
    assert out.splitlines()[1:] == [
        f"{one},50,8,1,True,all,step",
        f"{two},6,2,0,False,all,step",
    ]


def test_foreign_folder(spanlite: Any, tmp_path: Any) -> None:
    code, _, err = spanlite("query", "SELECT 1", "--archive", tmp_path / "nowhere")
    assert (code, "not a SpanLite archive" in err) == (2, True)
