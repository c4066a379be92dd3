"""Single measures of a replay against its plan. Everything is vectorised."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spanlite_replay.fidelity.spans import BOOL, I64, group_rows, union_ns

F64 = npt.NDArray[np.float64]

#: A duration within this share or this time of the plan is as good as equal: 1 % or 1 us.
DURATION_SHARE = 0.01
DURATION_FLOOR_NS = 1_000
#: Points of a quantile that need that many values; with fewer it is the largest value.
KERNELS_SHOWN = 50


@dataclass(frozen=True)
class Durations:
    """How long spans took. Percentages of the planned duration; None: not defined."""

    spans: int
    mape_pct: float | None
    p95_pct: float | None
    p95_us: float | None
    #: p95 of |error| / max(1 % of the planned duration, 1 us): 1 or less is within both.
    p95_of_limit: float | None
    bias_pct: float | None  # of the total time; + means the replay took longer
    r: float | None  # Pearson's, of planned and observed durations


@dataclass(frozen=True)
class Starts:
    """When spans started, after the constant part of the error is taken out."""

    spans: int
    offset_us: float | None  # that constant part: the median error
    p50_us: float | None
    p99_us: float | None
    max_us: float | None
    drift_us_per_s: float | None


@dataclass(frozen=True)
class Dispatch:
    """Observed start minus planned start, as it is: constant delays included."""

    of: str  # which spans it is of
    spans: int
    p50_us: float | None
    p99_us: float | None
    max_us: float | None


@dataclass(frozen=True)
class KernelRow:
    """All spans of one name."""

    name: str
    spans: int
    planned_ns: int
    observed_ns: int
    bias_pct: float
    mape_pct: float
    p95_pct: float


def durations(planned_ns: I64, observed_ns: I64) -> Durations:
    """Compare durations, shape (spans,). Spans planned with 0 ns have no share."""
    error = observed_ns - planned_ns
    share = _shares(error, planned_ns)
    limit = np.maximum(planned_ns * DURATION_SHARE, DURATION_FLOOR_NS)
    total = int(planned_ns.sum())
    return Durations(
        len(error),
        None if not len(share) else float(share.mean()) * 100,
        _percent(quantile(share, 0.95)),
        _us(quantile(np.abs(error), 0.95)),
        quantile(np.abs(error) / limit, 0.95),
        None if not total else int(error.sum()) / total * 100,
        pearson(planned_ns, observed_ns),
    )


def starts(planned_ns: I64, observed_ns: I64) -> Starts:
    """Compare start times, shape (spans,)."""
    if not len(planned_ns):
        return Starts(0, None, None, None, None, None)
    error = observed_ns - planned_ns
    offset = int(np.median(error))
    rest = np.abs(error - offset)
    return Starts(
        len(error),
        offset / 1e3,
        _us(quantile(rest, 0.5)),
        _us(quantile(rest, 0.99)),
        _us(quantile(rest, 1.0)),
        _slope(planned_ns, error),
    )


def dispatch(of: str, planned_ns: I64, observed_ns: I64) -> Dispatch:
    """Errors of the moments at which something was to start, shape (spans,)."""
    error = np.abs(observed_ns - planned_ns)
    points = (_us(quantile(error, at)) for at in (0.5, 0.99, 1.0))
    return Dispatch(of, len(error), *points)


def makespan_ns(start_ns: I64, end_ns: I64) -> int:
    """From the first start to the last end."""
    return int(end_ns.max() - start_ns.min()) if len(start_ns) else 0


def idle_pct(device: I64, start_ns: I64, end_ns: I64) -> float | None:
    """Share of the devices' makespans in which they ran nothing."""
    busy = total = 0
    for one in np.unique(device):
        rows = device == one
        busy += union_ns(start_ns[rows], end_ns[rows])
        total += makespan_ns(start_ns[rows], end_ns[rows])
    return None if not total else (1 - busy / total) * 100


def error_pct(planned: float, observed: float) -> float | None:
    """Signed error in percent of what was planned."""
    return None if not planned else (observed - planned) / planned * 100


def by_kernel(name: I64, names: list[str], planned_ns: I64, observed_ns: I64) -> list[KernelRow]:
    """One row a name, the longest first."""
    if not len(name):
        return []
    group, first = group_rows(name)
    count = np.bincount(group)
    planned, observed = (
        np.bincount(group, weights=values).astype(np.int64) for values in (planned_ns, observed_ns)
    )
    share = np.abs(observed_ns - planned_ns) / np.maximum(planned_ns, 1)
    order = np.lexsort((share, group))
    last = np.cumsum(count)
    p95 = share[order][last - count + np.ceil(count * 0.95).astype(np.int64) - 1]
    mean = np.bincount(group, weights=share) / count
    longest = np.argsort(-planned, kind="stable")[:KERNELS_SHOWN]
    return [
        KernelRow(
            names[name[first[i]]],
            int(count[i]),
            int(planned[i]),
            int(observed[i]),
            float(observed[i] - planned[i]) / max(int(planned[i]), 1) * 100,
            float(mean[i]) * 100,
            float(p95[i]) * 100,
        )
        for i in longest.tolist()
    ]


def quantile(values: npt.NDArray[np.generic], at: float) -> float | None:
    """The smallest value with a share `at` of all values at or below it, at 0.5 the median (so
    that every p50 is the same figure); None of none."""
    if not len(values):
        return None
    if at == 0.5:
        return float(np.median(np.asarray(values, np.float64)))
    place = max(int(np.ceil(len(values) * at)) - 1, 0)
    return float(np.partition(values, place)[place])


def pearson(x: I64, y: I64) -> float | None:
    """Correlation; 1 where both are constant and equal, None where it is not defined."""
    if len(x) < 2:
        return None
    if np.array_equal(x, y):
        return 1.0
    a, b = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return None if not scale else float(a @ b) / scale


def _shares(error: I64, planned_ns: I64) -> F64:
    some: BOOL = planned_ns > 0
    return np.asarray(np.abs(error[some]) / planned_ns[some], np.float64)


def _slope(planned_ns: I64, error: I64) -> float | None:
    """How the error grows, in us a second: least squares."""
    when = (planned_ns - planned_ns.min()) / 1e9
    spread = when - when.mean()
    scale = float(spread @ spread)
    return None if not scale else float(spread @ (error - error.mean())) / scale / 1e3


def _us(value: float | None) -> float | None:
    return None if value is None else value / 1e3


def _percent(value: float | None) -> float | None:
    return None if value is None else value * 100
