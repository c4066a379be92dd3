"""How well deadlines were kept, from what the pacing loop saw."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from spanlite_replay.pacing import NEVER, Paced

#: A slope over fewer events is chance.
ENOUGH_FOR_DRIFT = 100

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Timing:
    """How well the deadlines were kept. Errors are dispatch minus deadline."""

    error_p50_us: float
    error_p99_us: float
    error_p999_us: float
    error_max_us: float
    drift_us_per_s: float
    asked_per_s: float
    achieved_per_s: float
    spin_us: float
    #: Events that went out later than `--tolerance`; None where none was given.
    missed: int | None = None
    #: How many events all this is of.
    dispatched: int = 0

    @classmethod
    def of(cls, due_ns: I64, paced: Paced, tolerance_ns: int | None = None) -> Timing | None:
        """Of the events that were dispatched; None where there are none."""
        went = paced.observed_ns != NEVER
        due, seen = due_ns[went], paced.observed_ns[went]
        if not len(due):
            return None
        error = seen - due
        p50, p99, p999 = np.percentile(error, [50, 99, 99.9]) / 1e3
        return cls(
            float(p50),
            float(p99),
            float(p999),
            float(error.max() / 1e3),
            drift_us_per_s(due, error),
            rate(due),
            rate(seen),
            paced.spin_ns / 1e3,
            None if tolerance_ns is None else int((error > tolerance_ns).sum()),
            len(due),
        )


def rate(times_ns: I64) -> float:
    """Events a second, from the first to the last; 0 for fewer than two moments."""
    span_ns = int(times_ns[-1] - times_ns[0]) if len(times_ns) > 1 else 0
    return (len(times_ns) - 1) * 1e9 / span_ns if span_ns > 0 else 0.0


def drift_us_per_s(due_ns: I64, error_ns: I64, blocks: int = 64) -> float:
    """By how much the error grows each second: the median slope between blocks.

    Each block of events counts by its median, and all pairs of blocks by the median of
    their slopes (Theil-Sen), so that a machine that stalls now and then does not look like
    a clock that drifts.
    """
    parts = min(blocks, len(due_ns))
    edges = np.linspace(0, len(due_ns), parts + 1).astype(np.int64)
    pairs = list(pairwise(edges.tolist()))
    seconds = np.array([np.median(due_ns[a:b] - due_ns[0]) for a, b in pairs]) / 1e9
    errors = np.array([np.median(error_ns[a:b]) for a, b in pairs]) / 1e3
    early, late = np.triu_indices(parts, 1)
    apart = seconds[late] - seconds[early]
    slopes = (errors[late] - errors[early])[apart > 0] / apart[apart > 0]
    return float(np.median(slopes)) if len(slopes) else 0.0
