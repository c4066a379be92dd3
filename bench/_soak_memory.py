"""Whether memory stays flat: like is compared with like, round after round."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bench._soak_processes import Process

if TYPE_CHECKING:
    from bench._soak_report import Run

#: In a stretch of a level, so long after its begin: what the level before took has been given back.
AFTER_CHANGE_S = 10.0


def rounds_slope(run: Run, process: Process, settled_s: float) -> float | None:
    """MiB a minute of the median memory of each stretch at `windows`, by the median of all pairs'
    slopes (Theil and Sen): a daemon's memory goes up by 100 MiB and comes back when the level does,
    so a regression over all seconds of some minutes tells where the rises lay. None: too few."""
    at, mib = medians(run, process, settled_s)
    if len(at) < 5:
        return None
    pairs = itertools.combinations(range(len(at)), 2)
    slopes = [(mib[b] - mib[a]) / (at[b] - at[a]) * 60 for a, b in pairs]
    return round(float(np.median(slopes)), 3)


def medians(
    run: Run, process: Process, settled_s: float
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Second and MiB of each stretch at `windows`, after the first `settled_s` seconds."""
    offset_s = (time.time_ns() - int((time.monotonic() - run.watch.began) * 1e9)) / 1e9
    at, kib = np.array(process.seconds), np.array(process.anonymous_kib)
    begins = [since / 1e9 - offset_s for _, since in run.levels]
    found = []
    for number in run.stretches("windows"):
        end = begins[number + 1] if number + 1 < len(begins) else at[-1]
        first = max(begins[number] + AFTER_CHANGE_S, settled_s)
        inside = (at >= first) & (at < end)
        if inside.sum() >= 5:
            found.append((float(at[inside].mean()), float(np.median(kib[inside])) / 1024))
    return np.array([second for second, _ in found]), np.array([mib for _, mib in found])


def over_time(run: Run) -> list[list[float | None]]:
    """Second, MiB of both processes, and windows, detaches and records by then."""
    rows = []
    for at, *counts in run.watch.marks:
        mib = [round(float(np.interp(at, process.seconds, process.anonymous_kib)) / 1024, 2)
               for process in run.watched]  # fmt: skip
        rows.append([round(at), *mib, *(None if n != n else int(n) for n in counts)])
    return rows
