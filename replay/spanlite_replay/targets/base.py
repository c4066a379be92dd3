"""The seam between a plan and whatever runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spanlite_replay.plan import Plan

I64 = npt.NDArray[np.int64]
NO_EVENTS: I64 = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Outcome:
    """What a target says at the end: which of the launched events failed, as `launch` got them."""

    failed: I64 = field(default_factory=lambda: NO_EVENTS)
    #: Facts for the report, such as messages and bytes sent.
    facts: dict[str, int | str] = field(default_factory=dict)
    #: Why events failed, in a sentence; empty where none did.
    why: str = ""


class Target(Protocol):
    """Runs the events of a plan. Called from one thread, in the order below."""

    @property
    def name(self) -> str:
        """The word after `--target`."""
        ...

    def prepare(self, plan: Plan, events: I64) -> npt.NDArray[np.bool_]:
        """Get ready for `events`, the plan's events still to run, in order of deadline.

        Returns which of them it can run, same shape. All slow work belongs here.
        """
        ...

    def launch(self, events: I64) -> None:
        """Start these events now. Must return at once: the next deadline is waiting."""
        ...

    def drain(self) -> Outcome:
        """Wait for what was launched. Called once, also after Ctrl-C."""
        ...
