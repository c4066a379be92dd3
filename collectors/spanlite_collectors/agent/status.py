"""What agents say of themselves, and what became of their records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np

from spanlite_collectors.agent.layout import Level
from spanlite_collectors.agent.ring import Ring, printable


@dataclass(frozen=True)
class ProcessStatus:
    """What one process's agent says of itself."""

    pid: int
    executable: str
    #: What it is asked to record, and what it does: kernels only in a window.
    level: str
    now: str
    #: What windows may cost, and how long a step may take before it opens one; 0: for ever.
    budget_ppm: int
    step_slo_ms: float
    steps: int
    steps_covered: int
    windows: int
    #: How often CUPTI has been detached, each of which leaves GPU memory allocated (docs/agent.md),
    #: and whether it is there now.
    detaches: int
    attached: bool
    cost_ppm: int
    #: Of CUPTI alone; ranges and steps are not among them.
    records: int
    dropped: Mapping[str, int]
    #: Why it records no kernels; empty where it does.
    disabled: str


@dataclass
class Account:
    """What became of what was read: rows = spans + waiting + dropped."""

    #: Everything in the rings: also texts, clocks, windows, steps and values of metrics.
    records: int = 0
    #: Those of them that become a span each.
    rows: int = 0
    spans: int = 0
    waiting: int = 0
    #: Rows given up because reading failed.
    dropped: int = 0

    def __add__(self, other: Account) -> Account:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Account(*[mine + theirs for mine, theirs in pairs])


def status_of(ring: Ring, dropped: Mapping[str, int] | None = None) -> ProcessStatus:
    """What the agent of a ring says of itself."""
    state, control = ring.state[0], ring.control[0]
    return ProcessStatus(
        pid=ring.process_id,
        executable=ring.executable,
        level=ring.level.name.lower(),
        now=_now(ring.level, state),
        budget_ppm=int(control["budget_ppm"]),
        step_slo_ms=int(control["step_slo_ns"]) / 1e6,
        steps=int(state["steps"]),
        steps_covered=int(state["steps_covered"]),
        windows=int(state["windows"]),
        detaches=int(state["detaches"]),
        attached=bool(state["attached"]),
        cost_ppm=int(state["cost_ppm"]),
        records=int(state["records"]),
        dropped=ring.all_drops() if dropped is None else dict(dropped),
        disabled=disabled(ring),
    )


def disabled(ring: Ring) -> str:
    """Why the agent of a ring records no kernels; empty where it does."""
    state = ring.state[0]
    return (printable(state["reason"]) or "no reason given") if state["disabled"] else ""


def _now(wanted: Level, state: np.void) -> str:
    """What it does now. Between windows it obeys at once, but its own word is of the last one."""
    if not state["window_open"]:
        return min(wanted, Level.RANGES).name.lower()
    value = int(state["level"])
    return Level(value).name.lower() if value in list(Level) else str(value)
