"""Steps, long kernels and stages get the means of their GPU's counters as attributes, steps its
clock too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind

from spanlite_collectors.agent.clocks import ClockHistory
from spanlite_collectors.agent.pm import METRICS, PmHistory
from spanlite_collectors.agent.rows import Rows, Texts
from spanlite_collectors.importers._json_text import to_json

I64 = npt.NDArray[np.int64]

#: What is shorter lies within a sample or two, whose mean says little about it.
LEAST_NS = 1_000_000
#: Steps that are shorter get the figures of all steps of their thread in so much time.
TOGETHER_NS = 10_000_000


class Measure:
    """Adds figures to rows of one process."""

    def __init__(
        self,
        history_of: Callable[[Mapping[str, Any]], PmHistory | None],
        resource: Mapping[str, Any],
        clocks_of: Callable[[Mapping[str, Any]], ClockHistory | None] = lambda resource: None,
    ) -> None:
        self._history_of, self._clocks_of, self._resource = history_of, clocks_of, resource

    def __call__(self, rows: Rows, texts: Texts) -> None:
        """Change the attributes of steps and kernels of 1 ms and more, by their own times.

        Shorter kernels get those of their stage: of the run of kernels around them on their
        stream that say the same, where that lasts 1 ms; `gpu.of` says so. Shorter steps get
        those of the steps of the same 10 ms.
        """
        clocks = self._clocks_of(self._resource)
        if clocks is not None:
            _clocks(rows, texts, clocks)
        history = self._history_of(self._resource)
        if history is None:
            return
        if "thread" in (rows.dtype.names or ()):
            _short_steps(rows, texts, history)
        kernel = rows["kind"] == SpanKind.KERNEL
        long = rows["duration"] >= LEAST_NS
        own = np.flatnonzero((kernel | (rows["kind"] == SpanKind.STEP)) & long)
        start = rows["start"][own]
        means = history.means(start, start + rows["duration"][own])
        _say(rows, texts, [own[i : i + 1] for i in range(len(own))], means, {})
        has_device = "stream" in (rows.dtype.names or ())
        runs = _runs(rows, np.flatnonzero(kernel & ~long & (rows["attributes"] >= 0) & has_device))
        if not runs:
            return
        first = np.array([rows["start"][run[0]] for run in runs], np.int64)
        last = np.array(
            [rows["start"][run[-1]] + rows["duration"][run[-1]] for run in runs], np.int64
        )
        _say(rows, texts, runs, history.means(first, last), {"gpu.of": "stage"})


def _clocks(rows: Rows, texts: Texts, clocks: ClockHistory) -> None:
    for row in np.flatnonzero(rows["kind"] == SpanKind.STEP).tolist():
        start = int(rows["start"][row])
        found = clocks.around(start, start + int(rows["duration"][row]))
        if found:
            code = int(rows["attributes"][row])
            said = texts.text(code)[:-1] + "," if code >= 0 else "{"
            rows["attributes"][row] = texts.code(said + to_json(found)[1:])


def _short_steps(rows: Rows, texts: Texts, history: PmHistory) -> None:
    at = np.flatnonzero((rows["kind"] == SpanKind.STEP) & (rows["duration"] < LEAST_NS))
    if not len(at):
        return
    end = rows["start"] + rows["duration"]
    slot = rows["start"][at] // TOGETHER_NS
    order = np.lexsort((rows["start"][at], rows["thread"][at], slot))
    at, slot = at[order], slot[order]
    cut = (np.diff(slot) != 0) | (np.diff(rows["thread"][at].astype(np.int64)) != 0)
    groups = np.split(at, np.flatnonzero(cut) + 1)
    first = np.array([rows["start"][group[0]] for group in groups], np.int64)
    last = np.array([end[group].max() for group in groups], np.int64)
    means = history.means(first, last)
    for number in np.flatnonzero(np.isfinite(means).all(axis=1) & (last - first >= LEAST_NS)):
        figures = dict(zip(METRICS, means[number].round(2).tolist(), strict=True))
        tail = to_json({**figures, "gpu.of": "steps"})[1:]
        for row in groups[number].tolist():
            code = int(rows["attributes"][row])
            said = texts.text(code)[:-1] + "," if code >= 0 else "{"
            rows["attributes"][row] = texts.code(said + tail)


def _runs(rows: Rows, at: I64) -> list[I64]:
    """Kernels one after the other on a stream with the same attributes, 1 ms and more in all."""
    if not len(at):
        return []
    keys = ("stream", "context", "device")
    at = at[np.lexsort((rows["start"][at], *(rows[key][at] for key in keys)))]
    cut = np.zeros(len(at) - 1, np.bool_)
    for column in ("attributes", *keys):
        cut |= np.diff(rows[column][at]) != 0
    edges = np.concatenate([[0], np.flatnonzero(cut) + 1, [len(at)]])
    first, last = edges[:-1], edges[1:]
    end = rows["start"][at[last - 1]] + rows["duration"][at[last - 1]]
    long = end - rows["start"][at[first]] >= LEAST_NS
    return [at[i:j] for i, j in zip(first[long].tolist(), last[long].tolist(), strict=True)]


def _say(
    rows: Rows,
    texts: Texts,
    groups: list[I64],
    means: npt.NDArray[np.float64],
    more: dict[str, Any],
) -> None:
    """Add the means to the attributes that all rows of a group share, shape (groups, metrics)."""
    known = np.isfinite(means).all(axis=1)
    for number in np.flatnonzero(known).tolist():
        at = groups[number]
        code = int(rows["attributes"][at[0]])
        said = json.loads(texts.text(code)) if code >= 0 else {}
        said |= dict(zip(METRICS, means[number].round(2).tolist(), strict=True)) | more
        rows["attributes"][at] = texts.code(to_json(said))
