"""Loops over columns in C++, where a compiler is at hand; numpy does the same in more passes.

columns.cpp is compiled once, with `$CXX` or g++, into the user's cache folder, under a name that
its text decides. `SPANLITE_PLAN_NATIVE=0` does without.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spanlite_replay._compiled import compiled

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SOURCE = Path(__file__).with_name("columns.cpp")
VARIABLE = "SPANLITE_PLAN_NATIVE"
#: With fewer rows the time to compile is not worth it.
WORTH_IT = 20_000

_I64 = ctypes.c_int64


def is_worth_it(rows: int) -> bool:
    """Whether so many rows go through here; compiles at the first call."""
    return rows >= WORTH_IT and os.environ.get(VARIABLE, "1") != "0" and is_there()


def is_there() -> bool:
    """Whether there is a library, or a compiler to make it with."""
    return _library() is not None


def find(wanted: I64, among: I64) -> I64:
    """Where each wanted id is first in `among`, -1 for nowhere. Shape of `wanted`."""
    wanted, among = np.ascontiguousarray(wanted), np.ascontiguousarray(among)
    found = np.empty(len(wanted), np.int64)
    _call("spanlite_find", _at(wanted), len(wanted), _at(among), len(among), _at(found))
    return found


def outermost(at: I64, start: I64, end: I64, thread: I32, calls: Mask, leader: I64) -> None:
    """Mark those of `at`, sorted by start, that are inside none of their thread, in `calls`;
    `leader` of each becomes the one that it is part of. All but `at` are by position."""
    threads = int(thread[at].max()) + 1 if len(at) else 0
    _call(
        "spanlite_outermost",
        _at(at), len(at), _at(start), _at(end), _at(thread), threads, _at(calls), _at(leader),
    )  # fmt: skip


def observed(op: I64, lane: I32, lanes: I64, bounds: I64, start: I64, end: I64) -> tuple[I64, I64]:
    """(before, after): what had ended last on each other lane, where that is news to `after`'s.

    `op` in order of start, `lane` of each; `lanes` the same lane by lane, from `bounds` on.
    `start` and `end` are by position. Sorted by after, then before.
    """
    room = 4 * len(op)
    while True:
        before, after = np.empty(room, np.int64), np.empty(room, np.int64)
        edges = _call(
            "spanlite_observed",
            _at(op), _at(lane), len(op), _at(lanes), _at(bounds), len(bounds) - 1,
            _at(start), _at(end), room, _at(before), _at(after),
        )  # fmt: skip
        if edges <= room:
            return before[:edges], after[:edges]
        room = edges


def _at(array: npt.NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data


def _call(name: str, *arguments: Any) -> int:
    library = _library()
    assert library is not None
    function = getattr(library, name)
    function.restype = _I64
    return int(function(*[_I64(one) if isinstance(one, int) else one for one in arguments]))


@cache
def _library() -> ctypes.CDLL | None:
    return compiled(SOURCE, "plan", ("-std=c++17", "-O2", "-fPIC", "-shared"))
