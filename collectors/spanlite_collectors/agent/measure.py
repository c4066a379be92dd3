"""Steps and long kernels get the means of their GPU's counters as attributes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from spanlite.kinds import SpanKind

from spanlite_collectors.agent.pm import METRICS, PmHistory
from spanlite_collectors.agent.rows import Rows, Texts
from spanlite_collectors.importers._json_text import to_json

#: What is shorter lies within a sample or two, whose mean says little about it.
LEAST_NS = 1_000_000


class Measure:
    """Adds figures to rows of one process."""

    def __init__(
        self,
        history_of: Callable[[Mapping[str, Any]], PmHistory | None],
        resource: Mapping[str, Any],
    ) -> None:
        self._history_of, self._resource = history_of, resource

    def __call__(self, rows: Rows, texts: Texts) -> None:
        """Change the attributes of those rows that are steps, or kernels of 1 ms and more."""
        kinds = (rows["kind"] == SpanKind.STEP) | (rows["kind"] == SpanKind.KERNEL)
        at = np.flatnonzero(kinds & (rows["duration"] >= LEAST_NS))
        history = self._history_of(self._resource) if len(at) else None
        if history is None:
            return
        start = rows["start"][at]
        means = history.means(start, start + rows["duration"][at])
        known = np.isfinite(means).all(axis=1)
        for row, values in zip(at[known].tolist(), means[known].round(2).tolist(), strict=True):
            code = int(rows["attributes"][row])
            said = json.loads(texts.text(code)) if code >= 0 else {}
            said |= dict(zip(METRICS, values, strict=True))
            rows["attributes"][row] = texts.code(to_json(said))
