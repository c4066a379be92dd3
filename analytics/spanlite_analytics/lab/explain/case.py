"""All that is known about one kernel."""

from __future__ import annotations

from dataclasses import dataclass

from spanlite.occupancy import Occupancy, SmLimits

from spanlite_analytics.lab.counters import Counted
from spanlite_analytics.lab.explain.sampled import Sampled
from spanlite_analytics.lab.launches import Seen
from spanlite_analytics.lab.occupancy import Grid, Launch, grid_on, on
from spanlite_analytics.lab.resources import Resources as Resources
from spanlite_analytics.lab.resources import read_resources as read_resources


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel's launch, and what the archive, a profiler and a binary say of it."""

    name: str
    sm: SmLimits
    sms: int
    launch: Launch
    seen: Seen | None = None
    counted: Counted | None = None
    resources: Resources | None = None
    sampled: Sampled | None = None

    def counter(self, name: str) -> float | None:
        """A metric of the profiler; None without one."""
        return self.counted.get(name) if self.counted else None

    @property
    def block(self) -> tuple[int, ...]:
        """x, y, z of its block; empty where nobody says."""
        return (self.seen.block if self.seen else ()) or (
            self.counted.block if self.counted else ()
        )

    @property
    def occupancy(self) -> Occupancy:
        """Theoretical."""
        return on(self.sm, self.launch)

    @property
    def grid(self) -> Grid | None:
        """How the grid fills the GPU."""
        return grid_on(self.sm, self.launch, self.sms)

    @property
    def duration_ns(self) -> float | None:
        """Median in the archive, else the profiler's, which is longer by some microseconds."""
        return self.seen.median_ns if self.seen else self.counter("gpu__time_duration.sum")
