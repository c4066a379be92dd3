"""All that is known about one kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spanlite.occupancy import Occupancy, SmLimits
from spanlite.occupancy.limits import KIB

from spanlite_analytics.lab.counters import Counted
from spanlite_analytics.lab.explain.sampled import Sampled
from spanlite_analytics.lab.launches import Seen
from spanlite_analytics.lab.occupancy import Grid, Launch, grid_on, on

_FUNCTION = re.compile(r"Function (\S+):\s*\n?\s*(REG:.*)")
#: A symbol of binaries in which CUDA 13 counts the driver's 1 KiB as the kernel's own.
_RESERVED = b"__nv_reservedSMEM"
_FIELD = re.compile(r"([A-Z]+):(\d+)")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a binary says of a kernel."""

    name: str
    registers: int
    #: Local memory a thread: spilled registers, and arrays that are indexed at run time.
    stack_bytes: int
    #: Static, without what the driver takes.
    shared_bytes: int


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


def read_resources(cubin: bytes, pattern: str) -> list[Resources]:
    """Kernels of a binary whose name holds `pattern`. Raises InputError and ServiceError."""
    from spanlite_analytics.lab.toolchain import run_tool

    text = run_tool("cuobjdump", ("-res-usage", "{in}"), cubin, ".cubin").words
    return parse_resources(text, pattern, KIB if _RESERVED in cubin else 0)


def parse_resources(text: str, pattern: str, reserved_bytes: int = 0) -> list[Resources]:
    """The same from what `cuobjdump -res-usage` prints.

    `reserved_bytes`: of the shared memory that it shows, what is the driver's.
    """
    found = []
    for name, fields in _FUNCTION.findall(text):
        if pattern.lower() in name.lower():
            values = {key: int(value) for key, value in _FIELD.findall(fields)}
            shared = max(values.get("SHARED", 0) - reserved_bytes, 0)
            found.append(Resources(name, values["REG"], values.get("STACK", 0), shared))
    return found
