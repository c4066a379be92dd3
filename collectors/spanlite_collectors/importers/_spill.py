"""A temporary file of event rows, written in any order and read back in time order.

It keeps memory flat for files of many GB: rows go to disk by time window, and the index
in memory holds one small entry for each slice.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np

from spanlite_collectors.importers._events import EVENT, Rows

#: Rows are put into windows of this length (134 ms): at 10 million events a second, far
#: above any profiler, a window still fits in memory.
WINDOW_SHIFT = 27
#: Windows are read back together until they hold this many rows.
GROUP_ROWS = 1 << 17


class Spill:
    """Rows by time window, on disk."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="spanlite-import-")  # noqa: SIM115
        self._slices: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._end = 0
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, rows: Rows) -> None:
        """Write rows, shape (n,) of EVENT."""
        window = rows["start"] >> WINDOW_SHIFT
        order = np.argsort(window, kind="stable")
        window, rows = window[order], rows[order]
        cuts = np.flatnonzero(np.diff(window)) + 1
        starts = np.concatenate(([0], cuts))
        ends = np.append(cuts, len(rows))
        self._file.seek(0, 2)
        self._file.write(rows.tobytes())
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
            if last > first:
                self._slices[int(window[first])].append((self._end + first, last - first))
        self._end += len(rows)
        self.count += len(rows)

    def groups(self) -> Iterator[tuple[Rows, int]]:
        """(rows, first start that a later group can have), groups in time order."""
        picked: list[int] = []
        size = 0
        for window in sorted(self._slices):
            picked.append(window)
            size += sum(count for _, count in self._slices[window])
            if size >= GROUP_ROWS:
                yield self._read(picked), (picked[-1] + 1) << WINDOW_SHIFT
                picked, size = [], 0
        if picked:
            yield self._read(picked), (picked[-1] + 1) << WINDOW_SHIFT

    def _read(self, windows: list[int]) -> Rows:
        pieces = sorted(piece for window in windows for piece in self._slices[window])
        out = np.empty(sum(count for _, count in pieces), dtype=EVENT)
        at = 0
        for first, count in pieces:
            self._file.seek(first * EVENT.itemsize)
            data = self._file.read(count * EVENT.itemsize)
            out[at : at + count] = np.frombuffer(data, dtype=EVENT)
            at += count
        return out
