"""Compaction changes the files, never the spans; at no moment, whatever is killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spanlite.archive import _merge, compact, files
from spanlite.archive.compact import Policy
from spanlite.archive.layout import INCOMING, KERNEL_MINUTES, LEDGER, SPANS, Archive
from spanlite.archive.reader import ArchiveReader
from spanlite.archive.schema import LEDGER as LEDGER_SCHEMA
from spanlite.archive.writer import write_table
from spanlite.errors import ArchiveError

Rows = Callable[..., list[dict[str, Any]]]
NOW = Policy(grace_ns=0, keep_ns=0, leftover_ns=0)
HOUR_NS = 3_600_000_000_000
T0 = 1_796_108_400_000_000_000 - 48 * HOUR_NS  # closed long ago


def ids(archive: Archive) -> Counter[tuple[str, int]]:
    """Every (trace_id, span_id) that a reader sees, and how often."""
    seen: Counter[tuple[str, int]] = Counter()
    for batch in ArchiveReader(archive).scan(columns=["trace_id", "span_id"]):
        columns = batch.to_pydict()
        seen.update(zip(columns["trace_id"], columns["span_id"], strict=True))
    return seen


def content(archive: Archive) -> list[str]:
    return sorted(repr(row) for batch in ArchiveReader(archive).scan() for row in batch.to_pylist())


def parquet_below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*.parquet") if "/." not in str(p.relative_to(folder)))


def fill(archive: Archive, commit: Any, rows_of: Rows, hours: int = 2, parts: int = 5) -> None:
    for hour in range(hours):
        for part in range(parts):
            rows = rows_of(6, 20, seed=hour * 100 + part, start_ns=T0 + hour * HOUR_NS)
            commit(archive, rows, f"part-{hour}-{part}")


def test_few_files_and_the_same_spans(archive: Archive, commit: Any, rows_of: Rows) -> None:
    fill(archive, commit, rows_of)
    before = content(archive)
    report = compact.compact(archive, NOW)
    assert content(archive) == before
    assert len(report.hours) == 2
    assert report.spans == len(before)
    assert parquet_below(archive.root / INCOMING) == []
    for folder in (archive.root / SPANS).glob("date=*/hour=*/bucket=*"):
        assert len(parquet_below(folder)) == 1
    again = compact.compact(archive, NOW)
    assert (again.files_in, again.removed, again.leftovers) == (0, 0, [])


def test_late_files_are_seen_before_and_after(archive: Archive, commit: Any, rows_of: Rows) -> None:
    fill(archive, commit, rows_of, hours=1)
    compact.compact(archive, NOW)
    commit(archive, rows_of(5, 10, seed=999, start_ns=T0), "late")
    before = content(archive)
    assert len(before) == 5 * 120 + 50
    compact.compact(archive, NOW)
    assert content(archive) == before
    assert parquet_below(archive.root / INCOMING) == []


def test_open_hours_and_kept_files_stay(archive: Archive, commit: Any, rows_of: Rows) -> None:
    fill(archive, commit, rows_of, hours=2)
    first_end, before = T0 + HOUR_NS, len(parquet_below(archive.root / INCOMING))
    compact.compact(archive, Policy(grace_ns=0), now_ns=first_end)
    assert len(files.hours_of(archive.root, SPANS)) == 1
    assert len(parquet_below(archive.root / INCOMING)) == before  # taken in, but kept
    assert set(ids(archive).values()) == {1}
    compact.compact(archive, Policy(grace_ns=0), now_ns=time.time_ns() + HOUR_NS)
    assert len(files.hours_of(archive.root, SPANS)) == 2
    assert set(ids(archive).values()) == {1}


def test_merges_in_ranges_of_trace_ids(
    archive: Archive, commit: Any, rows_of: Rows, monkeypatch: Any
) -> None:
    monkeypatch.setattr(_merge, "MERGE_ROWS", 50)
    fill(archive, commit, rows_of, hours=1)
    before = content(archive)
    compact.compact(archive, NOW)
    assert content(archive) == before
    for path in parquet_below(archive.root / SPANS):
        with pq.ParquetFile(path) as file:
            traces = file.read().column("trace_id").to_pylist()
            assert file.num_row_groups > 1
        assert traces == sorted(traces)


def test_small_tables(archive: Archive) -> None:
    folder = archive.root / LEDGER / "date=2026-11-01"
    folder.mkdir(parents=True)
    row = {"time_ns": T0, "hop": "archive", "source": "job", "direction": "in", "reason": ""}
    for number in range(3):
        table = pa.Table.from_pylist([row | {"bucket": None, "spans": number, "messages": 1}])
        (folder / f"part-{number}.parquet").write_bytes(write_table(table, LEDGER_SCHEMA))
    reader = ArchiveReader(archive)
    compact.compact(archive, NOW)
    assert len(parquet_below(folder)) == 1
    assert sorted(reader.read_table(LEDGER).column("spans").to_pylist()) == [0, 1, 2]
    assert reader.read_table(KERNEL_MINUTES).num_rows == 0


def test_leftovers_are_cleaned(archive: Archive, commit: Any, rows_of: Rows) -> None:
    [old, *_] = commit(archive, rows_of(2, 3, start_ns=T0), "part-1")
    young = old.parent / ".part-9.inprogress.abc"
    dead = old.parent / ".part-8.inprogress.def"
    for path in (young, dead):
        path.write_bytes(b"half")
    os.utime(dead, ns=(T0, T0))
    draft = archive.root / SPANS / "date=2026-01-01" / ".hour=01.x.draft" / "bucket=0"
    draft.mkdir(parents=True)
    (draft / "compact-x.parquet").write_bytes(b"half")
    report = compact.compact(archive, Policy())
    assert young.exists()
    assert not dead.exists()
    assert not draft.parent.exists()
    assert len(report.leftovers) == 2


def test_only_one_at_a_time(archive: Archive) -> None:
    with (
        compact.maintenance_lock(archive.root),
        pytest.raises(ArchiveError, match="another `spanlite archive` is at work"),
    ):
        compact.compact(archive, NOW)


def test_damaged_file_is_named(archive: Archive, commit: Any, rows_of: Rows) -> None:
    [path, *_] = commit(archive, rows_of(1, 3, start_ns=T0), "part-1")
    path.write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(ArchiveError, match=r"part-1\.parquet"):
        compact.compact(archive, NOW)


@pytest.fixture(scope="module")
def processes() -> Any:
    """Processes that start in milliseconds, so that a kill may strike anywhere."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spanlite.archive.compact"])
    return context


@pytest.mark.chaos
def test_killed_at_random_and_run_again(
    archive: Archive, commit: Any, rows_of: Rows, processes: Any
) -> None:
    fill(archive, commit, rows_of, hours=2, parts=4)
    expected, chance, killed = content(archive), random.Random(5), 0
    longest_s = 0.4
    for attempt in range(30):
        process = processes.Process(target=compact.compact, args=(archive, NOW))
        process.start()
        process.join(chance.uniform(0.0, longest_s))
        process.kill()
        process.join()
        if process.exitcode == 0:
            longest_s *= 0.8  # a fast machine: strike earlier
        killed += process.exitcode == -signal.SIGKILL
        assert content(archive) == expected, f"after kill {attempt}"
        if killed == 8:
            break
        # Something late, so that there is always work.
        rows = rows_of(3, 10, seed=1000 + attempt, start_ns=T0 + HOUR_NS * (attempt % 2))
        commit(archive, rows, f"late-{attempt}")
        expected = content(archive)
    assert killed > 0
    compact.compact(archive, NOW)
    assert content(archive) == expected
    assert parquet_below(archive.root / INCOMING) == []
    assert list(archive.root.rglob(".*")) == []


@pytest.mark.chaos
def test_readers_during_compaction(
    archive: Archive, commit: Any, rows_of: Rows, processes: Any
) -> None:
    fill(archive, commit, rows_of, hours=2, parts=4)
    for round_ in range(2):
        expected, reads = ids(archive), 0
        assert set(expected.values()) == {1}
        process = processes.Process(target=compact.compact, args=(archive, NOW))
        process.start()
        while process.is_alive() or reads == 0:
            assert ids(archive) == expected
            reads += 1
        process.join()
        assert process.exitcode == 0
        assert ids(archive) == expected
        commit(archive, rows_of(6, 20, seed=500 + round_, start_ns=T0), f"late-{round_}")


class _Slowly:
    """Makes a reader's listing slow, so that a compaction fits in between its steps."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.do, self.real = do, files.parquet_in

    def __call__(self, folder: Path) -> list[str]:
        names = self.real(folder)
        files.parquet_in = self.real
        self.do()
        return names


@pytest.mark.parametrize("late", [False, True])
def test_compaction_between_the_steps_of_a_listing(
    archive: Archive, commit: Any, rows_of: Rows, late: bool, monkeypatch: Any
) -> None:
    fill(archive, commit, rows_of, hours=1, parts=3)
    if late:
        compact.compact(archive, NOW)
        commit(archive, rows_of(3, 10, seed=77, start_ns=T0), "late")
    expected = ids(archive)
    # `incoming/` has just been listed, then everything moves, then `spans/` is listed.
    slow = _Slowly(lambda: compact.compact(archive, NOW) and None)
    monkeypatch.setattr(files, "parquet_in", slow)
    assert ids(archive) == expected
    assert files.parquet_in is not slow
    assert parquet_below(archive.root / INCOMING) == []
