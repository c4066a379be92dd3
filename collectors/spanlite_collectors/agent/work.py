"""How much each step started on the GPU, and how long that ran."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from spanlite.kinds import CALL_KINDS, SpanKind

from spanlite_collectors.agent.place import I64
from spanlite_collectors.agent.ring import Records
from spanlite_collectors.agent.rows import Rows, pick

#: Waits are no work, and a graph's time has the gaps between its kernels in it.
_WORK = (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET)


def work_of_steps(window: int, steps: Records, host: Rows, device: Sequence[Rows]) -> I64:
    """How many calls in each step started kernels or copies, and for how many ns those ran in sum.

    Shape (n, 2).

    Of a window: correlation ids may begin anew with the next one. A call belongs to the step of its
    own thread that it began in.
    """
    calls = pick(host, (host["window"] == window) & np.isin(host["kind"], CALL_KINDS))
    step = _steps_of(calls, steps)
    order = np.argsort(calls["correlation"], kind="stable")
    order = order[step[order] >= 0]
    correlation = calls["correlation"][order]
    out = np.zeros((len(steps), 2), np.int64)
    if not len(order):
        return out
    started = np.zeros(len(order), np.bool_)
    for rows in device:
        mine = pick(rows, (rows["window"] == window) & np.isin(rows["kind"], _WORK))
        at = np.minimum(np.searchsorted(correlation, mine["correlation"]), len(order) - 1)
        found = correlation[at] == mine["correlation"]
        started[at[found]] = True
        np.add.at(out[:, 1], step[order[at[found]]], mine["duration"][found])
    np.add.at(out[:, 0], step[order[started]], 1)
    return out


def _steps_of(calls: Rows, steps: Records) -> I64:
    """The step that each call began in, shape (n,): -1 for none."""
    out = np.full(len(calls), -1)
    for thread in np.unique(steps["thread_id"]).tolist():
        own = np.flatnonzero(steps["thread_id"] == thread)
        own = own[np.argsort(steps["start_ns"][own], kind="stable")]
        start, end = (steps[name][own].astype(np.int64) for name in ("start_ns", "end_ns"))
        here: npt.NDArray[np.int64] = np.flatnonzero(calls["thread"] == thread)
        began = calls["start"][here]
        at = np.searchsorted(start, began, side="right") - 1
        inside = (at >= 0) & (began < end[at])
        out[here[inside]] = own[at[inside]]
    return out
