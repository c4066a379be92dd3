"""Compaction: a closed hour's many small files into one for each bucket.

An hour appears in `spans/` by one rename of its folder. Files that reach `incoming/` for
an hour that is there already are taken in by a further file for each bucket, each of them
visible by one rename. Every compacted file names what it took in (see
`spanlite.archive.files`), so that a kill at any point leaves an archive that reads
the same: either the draft is not visible, or what it took in is left out by readers, and
the next run removes the draft or the files.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from spanlite.archive import files
from spanlite.archive._merge import merge_files
from spanlite.archive._parquet import THOROUGH, SpanFileStream
from spanlite.archive.disk import maintenance_lock, put_file, sync_file, sync_folder, unique
from spanlite.archive.layout import INCOMING, KERNEL_MINUTES, LEDGER, SPANS, TRACES, Archive
from spanlite.archive.reader import SCHEMAS, conform, open_file
from spanlite.archive.writer import write_table

MINUTE_NS = 60_000_000_000
DAY_NS = 24 * 60 * MINUTE_NS
DRAFT = ".draft"
#: What Flink's FileSink calls a file that it has not committed.
_IN_PROGRESS = ".inprogress."
SMALL_TABLES = (TRACES, KERNEL_MINUTES, LEDGER)


@dataclass(frozen=True)
class Policy:
    """When to do what. Times in ns.

    `grace_ns`: an hour is closed this long after its end. `keep_ns`: files of `incoming/`
    that were taken in stay this long, for readers outside that have listed them.
    `leftover_ns`: an uncommitted file this old belongs to a run that was killed.
    """

    grace_ns: int = 15 * MINUTE_NS
    keep_ns: int = 10 * MINUTE_NS
    leftover_ns: int = DAY_NS


@dataclass
class Report:
    """What a run did."""

    hours: list[str] = field(default_factory=list)
    files_in: int = 0
    files_out: int = 0
    spans: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    removed: int = 0
    leftovers: list[str] = field(default_factory=list)


Progress = Callable[[str], None]


def _silent(_: str) -> None:
    return None


def compact(
    archive: Archive,
    policy: Policy | None = None,
    now_ns: int | None = None,
    progress: Progress = _silent,
) -> Report:
    """Compact every closed hour, and clean up after runs that were killed.

    Raises ArchiveError where another run is at work or a file is damaged.
    """
    policy, now = policy or Policy(), time.time_ns() if now_ns is None else now_ns
    report = Report()
    with maintenance_lock(archive.root):
        clean(archive, policy, now, report)
        for hour in files.hours_of(archive.root, INCOMING):
            if files.hour_range(hour)[1] + policy.grace_ns <= now:
                _compact_hour(archive, hour, report, progress)
        for hour in files.hours_of(archive.root, SPANS):
            _remove_absorbed(archive, hour, policy, now, report)
        for table in SMALL_TABLES:
            _compact_table(archive, table, policy, now, report, progress)
    return report


def clean(archive: Archive, policy: Policy, now_ns: int, report: Report) -> None:
    """Remove our own drafts, and uncommitted files of the job that are old enough.

    Only under the maintenance lock: then every draft is one of a run that was killed.
    """
    for path in _hidden(archive.root):
        if path.name.endswith(DRAFT):
            is_old = True
        elif _IN_PROGRESS in path.name:
            is_old = path.stat().st_mtime_ns + policy.leftover_ns <= now_ns
        else:
            continue
        if is_old:
            report.leftovers.append(str(path.relative_to(archive.root)))
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _hidden(root: Path) -> Iterator[Path]:
    for table in (INCOMING, SPANS, *SMALL_TABLES):
        for folder, folders, names in os.walk(root / table):
            hidden = [name for name in folders if name.startswith(".")]
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in (*hidden, *(name for name in names if name.startswith("."))):
                yield Path(folder) / name


def _fresh(archive: Archive, hour: str, bucket: int) -> list[Path]:
    """Files of `incoming/` that no compacted file has taken in."""
    listed = files.unit_files(archive, hour, bucket)
    return [path for path in listed if archive.root / INCOMING in path.parents]


def _compact_hour(archive: Archive, hour: str, report: Report, progress: Progress) -> None:
    target = archive.root / SPANS / hour
    buckets = {b: fresh for b in range(archive.bucket_count) if (fresh := _fresh(archive, hour, b))}
    if not buckets:
        return
    progress(f"compacting {hour}: {sum(map(len, buckets.values()))} files")
    if target.exists():
        for bucket, fresh in buckets.items():
            _add_to_hour(target / f"bucket={bucket}", fresh, report)
    else:
        _make_hour(target, buckets, report)
    report.hours.append(hour)


def _make_hour(target: Path, buckets: dict[int, list[Path]], report: Report) -> None:
    draft = target.parent / f".{target.name}.{unique()}{DRAFT}"
    for bucket, fresh in buckets.items():
        folder = draft / f"bucket={bucket}"
        folder.mkdir(parents=True)
        _merge_into(folder / f"{files.COMPACTED}{unique()}.parquet", fresh, report)
        sync_folder(folder)
    sync_folder(draft)
    draft.rename(target)
    sync_folder(target.parent)


def _add_to_hour(folder: Path, fresh: list[Path], report: Report) -> None:
    folder.mkdir(exist_ok=True)
    name = f"{files.COMPACTED}{unique()}.parquet"
    draft = folder / f".{name}{DRAFT}"
    _merge_into(draft, fresh, report)
    draft.rename(folder / name)
    sync_folder(folder)


def _merge_into(path: Path, fresh: Sequence[Path], report: Report) -> None:
    with path.open("wb") as sink:
        stream = SpanFileStream(sink, THOROUGH)
        merge_files(fresh, stream)
        size = stream.close({files.ABSORBED_KEY: _names(fresh)})
        sync_file(sink)
    report.files_in += len(fresh)
    report.files_out += 1
    report.spans += stream.rows
    report.bytes_in += sum(file.stat().st_size for file in fresh)
    report.bytes_out += size


def _names(paths: Sequence[Path]) -> bytes:
    return json.dumps([path.name for path in paths]).encode()


def _remove_absorbed(
    archive: Archive, hour: str, policy: Policy, now_ns: int, report: Report
) -> None:
    for bucket in range(archive.bucket_count):
        incoming = archive.root / INCOMING / hour / f"bucket={bucket}"
        there = set(files.parquet_in(incoming))
        done = archive.root / SPANS / hour / f"bucket={bucket}"
        for name in files.parquet_in(done) if there else ():
            path = done / name
            if policy.keep_ns and path.stat().st_mtime_ns + policy.keep_ns > now_ns:
                continue
            for old in there & files.absorbed_by(path):
                (incoming / old).unlink()
                report.removed += 1


def _compact_table(
    archive: Archive, table: str, policy: Policy, now_ns: int, report: Report, progress: Progress
) -> None:
    for folder in files.table_folders(archive.root, table):
        names = files.parquet_in(folder)
        taken = files.absorbed_in(folder, names)
        for name in taken.intersection(names):  # a killed run could not remove them
            (folder / name).unlink()
            report.removed += 1
        fresh = (name for name in names if not name.startswith(files.COMPACTED))
        small = [folder / name for name in fresh if name not in taken]
        if len(small) > 1 and _end_ns(archive.root / table, folder) + policy.grace_ns <= now_ns:
            progress(f"compacting {folder.relative_to(archive.root)}: {len(small)} files")
            _compact_folder(folder, table, small, report)


def _end_ns(root: Path, folder: Path) -> int:
    parts = folder.relative_to(root).as_posix()
    if "/" in parts:
        return files.hour_range(parts)[1]
    return files.hour_range(f"{parts}/hour=00")[0] + files.NS_PER_DAY


def _compact_folder(folder: Path, table: str, small: list[Path], report: Report) -> None:
    parts = []
    for path in small:
        with open_file(path, table) as file:
            parts.append(conform(file.read(use_threads=False), SCHEMAS[table]))
    data = write_table(pa.concat_tables(parts), SCHEMAS[table], {files.ABSORBED_KEY: _names(small)})
    put_file(folder, f"{files.COMPACTED}{unique()}.parquet", data)
    for path in small:
        path.unlink()
    report.files_in += len(small)
    report.files_out += 1
