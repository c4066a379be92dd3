"""What device rows look up: the call that launched them, or the operator they came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from spanlite.kinds import CALL_KINDS

from spanlite_collectors.importers._events import I64, U64, Rows

_PROCESS_SHIFT = np.uint64(48)
_UNFILLED = 255


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


class KeySet:
    """Keys gathered in chunks. Not 0, which means "no key"."""

    def __init__(self) -> None:
        self._pieces: list[U64] = []

    def add(self, keys: U64) -> None:
        """Remember the keys that are not 0."""
        found = np.unique(keys)
        self._pieces.append(found[found != 0])

    def sorted(self) -> U64:
        """All distinct keys, sorted."""
        everything = np.concatenate([np.zeros(0, dtype=np.uint64), *self._pieces])
        self._pieces = []
        everything.sort()
        fresh = np.ones(len(everything), dtype=bool)
        np.not_equal(everything[1:], everything[:-1], out=fresh[1:])
        out: U64 = everything[fresh]
        return out


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
    """Host spans by key, for the device rows that come after. 33 bytes an entry."""

    def __init__(self, keys: U64) -> None:
        """`keys` are those that device rows will ask for, sorted."""
        count = len(keys)
        self.keys = keys
        self._span_id = np.zeros(count, dtype=np.uint64)
        self._start = np.zeros(count, dtype=np.int64)
        self._trace = np.zeros(count, dtype=np.uint32)
        self._process = np.zeros(count, dtype=np.int32)
        self._kind = np.full(count, _UNFILLED, dtype=np.uint8)

    def fill(self, keys: U64, rows: Rows, span_id: U64, trace: I64) -> None:
        """Take in host rows. Of equal keys the one of lower kind stays, else the first.

        So where a runtime call and the driver call in it share an id, the outer one counts.
        """
        at = find(self.keys, keys)
        pick = np.flatnonzero(at >= 0)
        pick = pick[np.lexsort((rows["start"][pick], rows["kind"][pick]))]
        _, first = np.unique(at[pick], return_index=True)
        pick = pick[first]
        pick = pick[rows["kind"][pick] < self._kind[at[pick]]]
        to = at[pick]
        self._span_id[to], self._trace[to] = span_id[pick], trace[pick]
        self._start[to], self._process[to] = rows["start"][pick], rows["process"][pick]
        self._kind[to] = rows["kind"][pick]

    def look_up(self, keys: U64) -> Found:
        """The span of each key."""
        at = find(self.keys, keys)
        if len(self.keys):
            at = np.where(self._kind[at] == _UNFILLED, -1, at)
        return self._at(at, at)

    def neighbours(self, keys: U64) -> Found:
        """What the entries below and above each key agree on; `at` is -1 where they do not.

        Correlation ids grow with time within a process, so a device row whose call is
        missing was launched between the two. Gives trace and process, no span.
        """
        after = np.searchsorted(self.keys, keys)
        inside = (after > 0) & (after < len(self.keys)) & (keys != 0)
        above = np.where(inside, after, -1)
        if inside.any():
            filled = (self._kind[above] != _UNFILLED) & (self._kind[above - 1] != _UNFILLED)
            same = self._trace[above] == self._trace[above - 1]
            one = self._process[above] == self._process[above - 1]
            above = np.where(inside & filled & same & one, above, -1)
        return self._at(above, above)

    def _at(self, at: I64, pick: I64) -> Found:
        if not len(self.keys):
            none = np.zeros(len(at), dtype=np.int64)
            return Found(np.full(len(at), -1, dtype=np.int64), none.view(np.uint64), *[none] * 3)
        return Found(
            at,
            self._span_id[pick],
            self._trace[pick].astype(np.int64),
            self._start[pick],
            self._process[pick].astype(np.int64),
        )


def is_call(rows: Rows) -> npt.NDArray[np.bool_]:
    """Which rows are runtime or driver calls, shape (n,)."""
    calls: npt.NDArray[np.bool_] = np.isin(rows["kind"], CALL_KINDS)
    return calls
