"""verify finds what is wrong; retain drops by age and accounts for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spanlite.archive import compact, disk
from spanlite.archive import retain as retention
from spanlite.archive.inventory import holdings
from spanlite.archive.layout import LEDGER, SPANS, Archive
from spanlite.archive.reader import ArchiveReader
from spanlite.archive.retain import expired, retain
from spanlite.archive.schema import LEDGER as LEDGER_SCHEMA
from spanlite.archive.schema import SPANS as SPANS_SCHEMA
from spanlite.archive.verify import verify
from spanlite.archive.writer import write_table

Rows = Callable[..., list[dict[str, Any]]]
HOUR_NS = 3_600_000_000_000
T0 = 1_796_108_400_000_000_000 - 48 * HOUR_NS
NOW = compact.Policy(grace_ns=0, keep_ns=0)


def ledger(archive: Archive, direction: str, spans: int) -> None:
    row = {"time_ns": T0, "hop": "archive", "source": "job", "direction": direction, "reason": ""}
    table = pa.Table.from_pylist([row | {"bucket": None, "spans": spans, "messages": 1}])
    name = f"part-{disk.unique()}.parquet"
    disk.put_file(
        archive.root / LEDGER / "date=2026-11-29", name, write_table(table, LEDGER_SCHEMA)
    )


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table], **options: Any) -> None:
    table = pq.read_table(path, partitioning=None)
    metadata = {"spanlite.schema_version": options.pop("version", "1")}
    pq.write_table(change(table).replace_schema_metadata(metadata), path)


def test_a_sound_archive(archive: Archive, commit: Any, rows_of: Rows) -> None:
    for part in range(3):
        commit(archive, rows_of(6, 20, seed=part, start_ns=T0), f"part-{part}")
    ledger(archive, "out", 360)
    found = verify(archive)
    assert (found.problems, found.spans, found.traces) == ([], 360, 18)
    compact.compact(archive, NOW)
    found = verify(archive)
    assert (found.problems, found.spans, found.traces) == ([], 360, 18)
    assert "360 should be there, 360 are" in found.ledger


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.take(pa.array(range(t.num_rows)[::-1])), "not sorted"),
        (lambda t: pa.concat_tables([t.slice(0, 1), t]), "more than once"),
        (lambda t: t.drop_columns(["flags"]), "column flags is missing"),
        (
            lambda t: t.set_column(3, "start_ns", pa.array([T0 - 1] * t.num_rows)),
            "do not start in date=",
        ),
        (
            lambda t: t.set_column(0, "trace_id", pa.array(_many_ids(t.num_rows))),
            "do not belong to bucket",
        ),
        (
            lambda t: t.set_column(3, "start_ns", pa.array([0.5] * t.num_rows)),
            "column start_ns is double, not int64",
        ),
    ],
)
def test_each_fault_is_found(
    archive: Archive, commit: Any, rows_of: Rows, change: Any, message: str
) -> None:
    [path, *_] = commit(archive, rows_of(2, 10, start_ns=T0), "part-0")
    rewrite(path, lambda table: table)
    assert verify(archive).is_sound
    rewrite(path, change)
    assert any(message in problem for problem in verify(archive).problems)


def _many_ids(count: int) -> list[str]:
    return [f"{i:032x}" for i in range(count)]


def test_damage_and_foreign_versions_are_found(
    archive: Archive, commit: Any, rows_of: Rows
) -> None:
    [path, *_] = commit(archive, rows_of(2, 10, start_ns=T0), "part-0")
    data = path.read_bytes()
    rewrite(path, lambda table: table, version="9")
    assert "schema version '9'" in verify(archive).problems[0]
    path.write_bytes(data[: len(data) // 2])
    assert str(path) in verify(archive).problems[0]
    middle = len(data) // 3
    path.write_bytes(data[:middle] + bytes(64) + data[middle + 64 :])
    assert str(path) in verify(archive).problems[0]


def test_the_ledger_must_agree(archive: Archive, commit: Any, rows_of: Rows) -> None:
    commit(archive, rows_of(2, 10, start_ns=T0), "part-0")
    ledger(archive, "out", 21)
    [problem] = verify(archive).problems
    assert "21 should be there, 20 are" in problem


def fill(archive: Archive, commit: Any, rows_of: Rows) -> None:
    for hour in range(3):
        commit(archive, rows_of(4, 10, seed=hour, start_ns=T0 + hour * HOUR_NS), f"a{hour}")
    ledger(archive, "out", 120)
    # Compacted, with what was taken in still there, and something late.
    compact.compact(archive, compact.Policy(grace_ns=0), now_ns=T0 + HOUR_NS)
    commit(archive, rows_of(1, 5, seed=9, start_ns=T0), "late")
    ledger(archive, "out", 5)


def test_retain_drops_and_accounts(archive: Archive, commit: Any, rows_of: Rows) -> None:
    fill(archive, commit, rows_of)
    before = T0 + 2 * HOUR_NS
    planned = expired(archive, SPANS, before)
    assert [item.rows for item in planned] == [45, 40]
    assert sum(item.rows for item in holdings(archive) if item.table == SPANS) == 125
    assert retain(archive, SPANS, before) == planned
    assert sum(batch.num_rows for batch in ArchiveReader(archive).scan()) == 40
    dropped = ArchiveReader(archive).read_table(LEDGER).to_pylist()
    assert sum(r["spans"] for r in dropped if r["reason"] == "expired") == 85
    assert verify(archive).is_sound
    assert retain(archive, SPANS, before) == []


@pytest.mark.parametrize("stage", ["put_file", "rmtree"])
def test_retain_killed_in_between_counts_once(
    archive: Archive, commit: Any, rows_of: Rows, monkeypatch: Any, stage: str
) -> None:
    fill(archive, commit, rows_of)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retention if stage == "put_file" else retention.shutil, stage, die)
        with pytest.raises(KeyboardInterrupt):
            retain(archive, SPANS, T0 + 2 * HOUR_NS)
    retain(archive, SPANS, T0 + 2 * HOUR_NS)
    rows = ArchiveReader(archive).read_table(LEDGER).to_pylist()
    assert sum(r["spans"] for r in rows if r["reason"] == "expired") == 85
    assert verify(archive).is_sound
    assert list(archive.root.rglob(".*")) == []


def test_what_is_there(archive: Archive, commit: Any, rows_of: Rows) -> None:
    fill(archive, commit, rows_of)
    spans = [item for item in holdings(archive) if item.table == SPANS]
    assert [item.state for item in spans] == ["both", "incoming", "incoming"]
    assert [item.rows for item in spans] == [45, 40, 40]
    assert all(item.bytes > 0 for item in spans)


def test_schema_is_what_a_plain_reader_sees(archive: Archive, commit: Any, rows_of: Rows) -> None:
    [path, *_] = commit(archive, rows_of(2, 10, start_ns=T0), "part-0")
    found = pq.read_schema(path)
    assert found.names == SPANS_SCHEMA.names
    for item in SPANS_SCHEMA:
        assert found.field(item.name).nullable == item.nullable, item.name


def test_retain_beside_a_job_leaves_what_is_not_committed(
    archive: Archive, commit: Any, rows_of: Rows
) -> None:
    """The job's sink writes a hidden file into the hour, which it renames when it commits."""
    commit(archive, rows_of(6, 20, start_ns=T0), "part-0")
    (first,) = {path.parent for path in archive.root.glob("incoming/*/*/bucket=0/*.parquet")}
    late = first / ".part-1.parquet.inprogress.x"
    late.write_bytes(next(first.glob("*.parquet")).read_bytes())
    rows = pq.read_metadata(late).num_rows
    gone = retain(archive, SPANS, T0 + 2 * HOUR_NS)
    assert sum(item.rows for item in gone) == 120
    assert expired(archive, SPANS, T0 + 2 * HOUR_NS) == []
    late.rename(first / "part-1.parquet")
    assert sum(item.rows for item in retain(archive, SPANS, T0 + 2 * HOUR_NS)) == rows
    dropped = ArchiveReader(archive).read_table(LEDGER).to_pylist()
    assert sum(row["spans"] for row in dropped if row["reason"] == "expired") == 120 + rows


def test_retain_removes_folders_that_have_been_empty_for_long(
    archive: Archive, commit: Any, rows_of: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(archive, rows_of(6, 20, start_ns=T0), "part-0")
    retain(archive, SPANS, T0 + 2 * HOUR_NS)
    assert any(archive.root.glob("incoming/date=*/hour=*"))
    monkeypatch.setattr(retention, "_IDLE_S", -1.0)
    retain(archive, SPANS, T0 + 2 * HOUR_NS)
    assert not any(archive.root.glob("incoming/date=*"))
