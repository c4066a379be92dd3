"""What a scan has found so far: a journal that outlives a kill, and a Parquet table at the end."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from spanlite.errors import InputError, UsageError

from spanlite_analytics.lab.scan.build import Theory
from spanlite_analytics.lab.scan.space import key_of
from spanlite_analytics.lab.scan.spec import Config

JOURNAL, TABLE = "journal.jsonl", "results.parquet"


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration. `times_ns`: a launch's time in each repetition; empty where not timed."""

    config: Config
    theory: Theory | None
    times_ns: tuple[float, ...]
    launches: int
    flops: float | None
    moved_bytes: float | None
    clocks: dict[str, Any]
    error: str = ""

    @property
    def key(self) -> str:
        """The configuration's."""
        return key_of(self.config)


class Journal:
    """A line a configuration, on the disk before the next is tried. One scan at a time."""

    def __init__(self, folder: Path, fingerprint: str, gpu: str) -> None:
        """Raises InputError where the folder holds another scan; UsageError while one runs."""
        self.folder, self.path = folder, folder / JOURNAL
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = self.path.open("a+", encoding="utf-8", errors="replace")
        except OSError as error:
            words = f"no scan can be kept there: {error.strerror}; choose another --out"
            raise InputError(f"{folder}: {words}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{folder}: another scan is running there") from None
        self.rows: dict[str, Row] = {}
        self._read(fingerprint, gpu)

    def _read(self, fingerprint: str, gpu: str) -> None:
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind("\n") + 1]
        lines = whole.splitlines()
        if not lines:
            # A kill can cut our own first line; any other text is somebody's.
            begun = json.dumps({"fingerprint": fingerprint, "gpu": gpu})
            if not begun.startswith(text):
                raise InputError(f"{self.path}: is no journal of a scan; choose another --out")
            os.truncate(self.path, 0)
            self._write({"fingerprint": fingerprint, "gpu": gpu})
            return
        try:
            head = dict(json.loads(lines[0]))
            rows = [_row(json.loads(line)) for line in lines[1:]]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.path}: is no journal of a scan: {error}") from None
        for what, now in (("fingerprint", fingerprint), ("gpu", gpu)):
            if head.get(what) != now:
                word = "GPU" if what == "gpu" else "kernel, sizes or flags"
                raise InputError(
                    f"{self.folder}: holds a scan of another {word} ({head.get(what)}, now {now}); "
                    "choose another --out"
                )
        if len(whole) < len(text):
            # A kill cut the last line; its configuration is measured again.
            os.truncate(self.path, len(whole.encode()))
        self.rows = {row.key: row for row in rows}

    def add(self, row: Row) -> None:
        """Keep a row; it is on the disk when this returns."""
        self._write(asdict(row))
        self.rows[row.key] = row

    def _write(self, value: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(value) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let another scan in."""
        self._file.close()


def _row(values: dict[str, Any]) -> Row:
    theory = values.pop("theory")
    times = tuple(values.pop("times_ns"))
    return Row(**values, theory=Theory(**theory) if theory else None, times_ns=times)


def write_table(rows: list[dict[str, Any]], path: Path, about: Mapping[str, str]) -> None:
    """Rows as Parquet, in place by one rename; `about` is in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows)
    table = table.replace_schema_metadata({f"spanlite.{k}": v for k, v in about.items()})
    made = path.with_suffix(".partial")
    pq.write_table(table, made, compression="zstd")
    made.replace(path)
