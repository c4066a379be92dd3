"""The sqlite file that `nsys export` writes, read by whatever columns it has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from spanlite.errors import InputError

from spanlite_collectors.importers._events import fits_int64

_FETCH = 8192
_RANGE_COLUMNS = {"start", "end", "globalTid", "nameId"}


class Database:
    """A read-only connection. Rows are dicts of the columns that the table has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._db = sqlite3.connect(uri, uri=True)
        self._db.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
        self._labels: dict[str, dict[int, str]] = {}

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @cached_property
    def tables(self) -> list[str]:
        """Names of all tables, sorted."""
        query = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        return [name for (name,) in self._db.execute(query)]

    def columns(self, table: str) -> list[str]:
        """A table's columns; none where there is no such table."""
        return [row[1] for row in self._db.execute(f"PRAGMA table_info({_quoted(table)})")]

    def count(self, table: str) -> int:
        """Rows of a table."""
        return int(self._db.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0])

    def rows(self, table: str, where: str = "1") -> Iterator[dict[str, Any]]:
        """All rows of a table, some thousands at a time; none where it is missing."""
        columns = self.columns(table)
        if not columns:
            return
        cursor = self._db.execute(f"SELECT * FROM {_quoted(table)} WHERE {where}")
        while chunk := cursor.fetchmany(_FETCH):
            for row in chunk:
                yield dict(zip(columns, row, strict=True))

    def is_range_table(self, table: str) -> bool:
        """Whether its rows are named intervals on a thread."""
        return set(self.columns(table)) >= _RANGE_COLUMNS

    def has_time(self, table: str) -> bool:
        """Whether its rows are events at all."""
        return bool({"start", "timestamp", "rawTimestamp"} & set(self.columns(table)))

    def strings(self) -> dict[int, str]:
        """StringIds."""
        if "StringIds" not in self.tables:
            return {}
        return dict(self._db.execute("SELECT id, value FROM StringIds"))

    def label(self, table: str, number: int | None) -> str:
        """What an ENUM_ table calls a number; the number itself where it does not."""
        if table not in self._labels:
            wanted = "label" if "label" in self.columns(table) else "name"
            query = f"SELECT id, {wanted} FROM {_quoted(table)}"
            found = self._db.execute(query) if self.columns(table) else ()
            self._labels[table] = {key: value for key, value in found if value}
        return self._labels[table].get(-1 if number is None else number, str(number))

    def base_ns(self) -> int:
        """Unix ns of time 0 of the export; 0 where it does not say. Raises InputError.

        Times are on the system's own clock, which the session start ties to UTC, or count
        from the session start where they were normalised or the release is older.
        """
        for row in self.rows("TARGET_INFO_SESSION_START_TIME"):
            normalised = self._setting("EXPORT_PARAM_TIME_NORMALIZE") == "true"
            clock = 0 if normalised else row.get("systemClockNs") or 0
            epoch = row.get("utcEpochNs") or 0
            if type(epoch) is int and type(clock) is int and fits_int64(epoch - clock):
                return epoch - clock
            raise InputError(
                f"{self.path}: its session starts at no Unix time in ns (utcEpochNs "
                f"{str(epoch)[:40]!r}, systemClockNs {str(clock)[:40]!r}), so no event has a "
                "time; export it again; nothing of it was sent"
            )
        return 0

    def _setting(self, name: str) -> str | None:
        for row in self.rows("META_DATA_EXPORT"):
            if row.get("name") == name:
                return str(row.get("value"))
        return None

    def machine(self) -> dict[str, Any]:
        """Resource attributes: host name, GPUs, the export's version."""
        out: dict[str, Any] = {}
        for row in self.rows("TARGET_INFO_SYSTEM_ENV"):
            if row.get("name") == "Hostname" and row.get("value"):
                out["host.name"] = str(row["value"])
        gpus = [str(row.get("name")) for row in self.rows("TARGET_INFO_GPU")]
        if gpus:
            out["gpu.name"], out["gpu.count"] = gpus[0], len(gpus)
        version = self._setting("EXPORT_PRODUCT_VERSION")
        if version:
            out["nsys.version"] = version
        return out

    def process_names(self) -> dict[int, str]:
        """Executable by globalPid."""
        return {
            row["globalPid"]: str(row["name"])
            for row in self.rows("PROCESSES")
            if row.get("globalPid") is not None and row.get("name")
        }


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
