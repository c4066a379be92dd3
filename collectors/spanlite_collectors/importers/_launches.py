"""What device rows look up: the call that launched them, or the operator they came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind

from spanlite_collectors.importers._events import I64, U64, Rows

_CALLS = (SpanKind.RUNTIME_CALL, SpanKind.DRIVER_CALL)
_PROCESS_SHIFT = np.uint64(48)


def launch_keys(rows: Rows, per_process: bool) -> U64:
    """What a launch and its device rows have in common, shape (n,); 0: nothing.

    Correlation ids count per process; where device rows name their process, it is part
    of the key.
    """
    key: U64 = rows["correlation"]
    if per_process:
        salt = (rows["process"].astype(np.int64) + 1).astype(np.uint64) << _PROCESS_SHIFT
        key = np.where(key == 0, key, key ^ salt)
    return key


class Wanted:
    """Keys seen so far, gathered in chunks; only they are worth remembering."""

    def __init__(self) -> None:
        self._pieces: list[U64] = []
        self._sorted: U64 | None = None

    def add(self, keys: U64) -> None:
        """Remember the keys that are not 0."""
        self._pieces.append(np.unique(keys[keys != 0]))

    @property
    def keys(self) -> U64:
        """All distinct keys, sorted."""
        if self._sorted is None:
            none = np.zeros(0, dtype=np.uint64)
            self._sorted = np.unique(np.concatenate([none, *self._pieces]))
            self._pieces = []
        return self._sorted

    def hold(self, keys: U64) -> npt.NDArray[np.bool_]:
        """Which of the keys are among them, shape (n,)."""
        return find(self.keys, keys) >= 0


def find(table: U64, keys: U64) -> I64:
    """The position of each key in a sorted table, -1 where it is not there."""
    if not len(table):
        return np.full(len(keys), -1, dtype=np.int64)
    at = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return np.where((table[at] == keys) & (keys != 0), at, -1)


@dataclass(frozen=True)
class Found:
    """What a look-up gives, each of shape (n,); `at` is -1 where nothing was found."""

    at: I64
    span_id: U64
    trace: I64
    start: I64
    process: I64


class SpanTable:
    """Host spans by key, for the device rows that come after. 30 bytes an entry."""

    _DTYPE = np.dtype(
        [("key", "u8"), ("span_id", "u8"), ("start", "i8"), ("trace", "u4"), ("process", "i2")]
    )

    def __init__(self) -> None:
        self._pieces: list[Rows] = []
        self._table: Rows | None = None

    def add(self, keys: U64, rows: Rows, span_id: U64, trace: I64) -> None:
        """Add host rows, in order of preference among equal keys."""
        piece = np.empty(len(rows), dtype=self._DTYPE)
        piece["key"], piece["span_id"], piece["start"] = keys, span_id, rows["start"]
        piece["trace"], piece["process"] = trace, rows["process"]
        self._pieces.append(piece)

    def _sorted(self) -> Rows:
        if self._table is None:
            table = np.concatenate([np.zeros(0, dtype=self._DTYPE), *self._pieces])
            self._pieces = []
            _, first = np.unique(table["key"], return_index=True)
            self._table = table[first]
        return self._table

    def look_up(self, keys: U64) -> Found:
        """The span of each key."""
        table = self._sorted()
        at = find(table["key"], keys)
        return _found(at, table[at] if len(table) else np.zeros(len(keys), self._DTYPE))

    def neighbours(self, keys: U64) -> Found:
        """What the entries below and above each key agree on; `at` is -1 where they do not.

        Correlation ids grow with time within a process, so a device row whose call is
        missing was launched between the two. Gives trace and process, no span.
        """
        table = self._sorted()
        if not len(table):
            return self.look_up(keys)
        after = np.searchsorted(table["key"], keys)
        inside = (after > 0) & (after < len(table)) & (keys != 0)
        below, above = table[np.maximum(after - 1, 0)], table[np.minimum(after, len(table) - 1)]
        agree = inside & (below["trace"] == above["trace"]) & (below["process"] == above["process"])
        return _found(np.where(agree, after, -1), above)


def _found(at: I64, row: Rows) -> Found:
    trace, process = row["trace"].astype(np.int64), row["process"].astype(np.int64)
    return Found(at, row["span_id"], trace, row["start"], process)


def is_call(rows: Rows) -> npt.NDArray[np.bool_]:
    """Which rows are runtime or driver calls, shape (n,)."""
    return np.isin(rows["kind"], _CALLS)
