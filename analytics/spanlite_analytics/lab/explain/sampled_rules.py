"""What sampled counters say, where the profiler's are not there."""

from __future__ import annotations

from spanlite_analytics.lab.explain.case import Case
from spanlite_analytics.lab.explain.finding import BOUND_PCT, Finding
from spanlite_analytics.lab.explain.sampled import KERNEL, STAGE, STEP, Sampled

#: A step of which the kernel is less says little about it.
_SHARE = 0.5
_IDLE_PCT = 70.0
_QUIET_PCT = 30.0
_WHILE = {KERNEL: "while it ran", STAGE: "while its stage ran", STEP: "in its steps"}


def bound(case: Case) -> Finding | None:
    """Memory or tensor pipe at its limit, or neither of them busy."""
    sampled = case.sampled
    if sampled is None or case.counted is not None or not _speaks_of_it(sampled):
        return None
    units = {"device memory": sampled.dram_pct, "the tensor pipe": sampled.tensor_pct}
    known = {unit: value for unit, value in units.items() if value is not None}
    if not known:
        return None
    unit = max(known, key=lambda u: known[u])
    when = _WHILE[sampled.of]
    if known[unit] >= BOUND_PCT:
        advice = (
            "move fewer bytes: fuse with its neighbours, narrower types, reuse in L2"
            if unit == "device memory"
            else "it does what it can; narrower types or less work"
        )
        evidence = f"{known[unit]:.0f}% of what it can do {when} (sampled)"
        return Finding(known[unit] / 100 * _trust(sampled), f"Bound by {unit}", evidence, advice)
    if known[unit] < _QUIET_PCT and (sampled.active_pct or 100) >= _IDLE_PCT:
        listed = ", ".join(f"{name} {value:.0f}%" for name, value in known.items())
        return Finding(
            0.5 * _trust(sampled),
            "Neither device memory nor the tensor pipe is busy",
            f"{listed} {when} (sampled): latency, the other pipes, L1 or L2",
            "ask ncu what its warps wait for (below); `lab audit` looks for uncoalesced "
            "accesses and spills",
        )
    return None


def idle(case: Case) -> Finding | None:
    """The GPU has nothing to do between launches."""
    sampled = case.sampled
    if sampled is None or sampled.of == KERNEL or sampled.active_pct is None:
        return None
    if sampled.active_pct >= _IDLE_PCT:
        return None
    return Finding(
        (1 - sampled.active_pct / 100) * 0.9,
        "The GPU idles between its launches",
        f"active {sampled.active_pct:.0f}% of the time {_WHILE[sampled.of]} (sampled)",
        "launches come too slowly: a CUDA graph, fused kernels, fewer synchronisations",
    )


def _speaks_of_it(sampled: Sampled) -> bool:
    return sampled.of != STEP or (sampled.share or 0) >= _SHARE


def _trust(sampled: Sampled) -> float:
    """Figures of the kernel alone count whole; of what surrounds it, less."""
    return {KERNEL: 1.0, STAGE: 0.9}.get(sampled.of, sampled.share or 0.0)


RULES = (bound, idle)
