"""What a rule says."""

from __future__ import annotations

from dataclasses import dataclass

#: Nsight Compute's own line between "bound by it" and "latency".
BOUND_PCT = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that costs time; `weight`, 0 to 1, is about how much of it."""

    weight: float
    what: str
    evidence: str
    advice: str
