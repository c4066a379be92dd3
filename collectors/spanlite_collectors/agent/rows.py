"""The rows that records become before they are spans, and the text they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from spanlite.schema import LAUNCH_COLUMNS

Rows: TypeAlias = npt.NDArray[Any]

#: Ranges and calls: what happens on a thread. `id` and `parent_id` are the agent's numbers of
#: ranges; `trace_*`, `parent_span` and `own_span` come from W3C trace context (0: none).
HOST = np.dtype(
    [
        ("kind", "u1"),
        ("start", "i8"),
        ("duration", "i8"),
        ("name", "i4"),
        ("attributes", "i4"),
        ("status", "u1"),
        ("process", "i4"),
        ("thread", "u8"),
        ("free_range", "?"),
        ("correlation", "u8"),
        ("flags", "u4"),
        ("window", "u4"),
        ("id", "u8"),
        ("parent_id", "u8"),
        ("trace_low", "u8"),
        ("trace_high", "u8"),
        ("parent_span", "u8"),
        ("own_span", "u8"),
        ("step", "u8"),  # of a step that a window covers: its number and 1
    ],
    align=True,
)

#: Kernels, copies, graphs and waits: what a call started.
DEVICE = np.dtype(
    [
        ("kind", "u1"),
        ("start", "i8"),
        ("duration", "i8"),
        ("name", "i4"),
        ("attributes", "i4"),
        ("device", "i4"),
        ("context", "i8"),
        ("stream", "i8"),
        ("correlation", "u8"),
        ("graph_id", "u4"),
        ("graph_node", "u8"),
        ("bytes", "u8"),
        ("copy_kind", "u1"),
        ("flags", "u4"),
        ("window", "u4"),
        ("local_bytes", "u4"),  # of local memory a thread: what spilled, and arrays
        *[(name, "u4") for name in LAUNCH_COLUMNS],
    ],
    align=True,
)


def empty(count: int, dtype: np.dtype[Any]) -> Rows:
    """`count` rows that say "none" everywhere."""
    out = np.zeros(count, dtype)
    out["attributes"] = -1
    for column in ("device", "context", "stream"):
        if column in (dtype.names or ()):
            out[column] = -1
    return out


def pick(rows: Rows, chosen: npt.NDArray[Any]) -> Rows:
    """`rows[chosen]`, of indexes or a mask: numpy copies rows as a whole far faster."""
    at = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    out: Rows = _whole(rows).take(at).view(rows.dtype)
    return out


def concat(parts: Sequence[Rows]) -> Rows:
    """Rows of one dtype one after the other; of a single part, that part."""
    some = [part for part in parts if len(part)] or list(parts[:1])
    if len(some) == 1:
        return some[0]
    out: Rows = np.concatenate([_whole(part) for part in some]).view(some[0].dtype)
    return out


def _whole(rows: Rows) -> Rows:
    return np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize)))


class Texts:
    """Each distinct text once; rows hold its number. Forgets what no row uses any more."""

    def __init__(self, keep: int = 1 << 14) -> None:
        self._least = self._keep = keep
        self._codes: dict[str, int] = {}
        self._texts: list[str] = []

    def code(self, text: str) -> int:
        """The number of a text."""
        code = self._codes.setdefault(text, len(self._texts))
        if code == len(self._texts):
            self._texts.append(text)
        return code

    def text(self, code: int) -> str:
        """The text of a number."""
        return self._texts[code]

    def all(self) -> list[str]:
        """All texts; position is number. Not to be changed."""
        return self._texts

    @property
    def crowded(self) -> bool:
        """Whether it is time to `renumber`."""
        return len(self._texts) > self._keep

    def renumber(self, columns: Iterable[npt.NDArray[np.int32]]) -> None:
        """Forget all texts but those in the columns, and rewrite those in place."""
        columns = list(columns)
        in_use = np.zeros(len(self._texts) + 1, np.bool_)  # the last is what -1 picks
        for column in columns:
            in_use[column] = True
        used = np.flatnonzero(in_use[:-1])
        moved = np.full(len(self._texts) + 1, -1, np.int32)
        moved[used] = np.arange(len(used))
        self._texts = [self._texts[old] for old in used.tolist()]
        self._codes = {text: code for code, text in enumerate(self._texts)}
        for column in columns:
            column[:] = moved[column]
        self._keep = max(self._least, 2 * len(used))
