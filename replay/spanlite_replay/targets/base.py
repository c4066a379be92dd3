"""The seam between a plan and whatever runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spanlite_replay.pacing import Stop
from spanlite_replay.plan import Plan

if TYPE_CHECKING:
    from spanlite_replay.targets._http_results import RequestFigures

I64 = npt.NDArray[np.int64]
NO_EVENTS: I64 = np.empty(0, dtype=np.int64)

#: **Observed**: when each span really ran, one row a span that did, sorted by start. The ids are
#: the recording's (so this joins with the recording and the plan), the times lie on the
#: plan's time line, that of `Plan.due_ns`. A planned span without a row was lost.
OBSERVED_SCHEMA = pa.schema(
    [
        pa.field("trace_id_low", pa.uint64(), nullable=False),
        pa.field("trace_id_high", pa.uint64(), nullable=False),
        pa.field("span_id", pa.uint64(), nullable=False),
        pa.field("planned_start_ns", pa.int64(), nullable=False),  # after all transforms
        pa.field("planned_end_ns", pa.int64(), nullable=False),
        pa.field("start_ns", pa.int64(), nullable=False),  # as observed
        pa.field("end_ns", pa.int64(), nullable=False),
    ]
)
#: In the metadata of an observed table: which replay it is of, which target saw it, and the
#: digest of the plan (`Plan.digest`).
REPLAY_ID_KEY = b"spanlite.replay_id"
TARGET_KEY = b"spanlite.target"
PLAN_DIGEST_KEY = b"spanlite.plan_digest"


@dataclass(frozen=True)
class Outcome:
    """What a target says at the end: which of the launched events failed, as `launch` got them."""

    failed: I64 = field(default_factory=lambda: NO_EVENTS)
    #: Facts for the report, such as messages and bytes sent.
    facts: dict[str, int | str] = field(default_factory=dict)
    #: Why events failed, in a sentence; empty where none did.
    why: str = ""
    #: OBSERVED_SCHEMA; None from a target that runs nothing it could observe (dry, kafka).
    observed: pa.Table | None = None
    #: What requests took; of the target `http` alone.
    requests: RequestFigures | None = None


@runtime_checkable
class Timed(Protocol):
    """A target that needs to know when events are due by its own clock."""

    def begin_at(self, origin_ns: int, stop: Stop) -> None:
        """The plan's first event is due then, on CLOCK_MONOTONIC. Before the first `launch`.

        `stop`: Ctrl-C asks for it, also while `drain` waits.
        """
        ...


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
