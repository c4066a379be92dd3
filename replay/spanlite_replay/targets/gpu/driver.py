"""The seam between graphs of work and a GPU: a small Protocol, and what it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
Spin = Literal["wall", "work"]
Dim = tuple[int, int, int]
NO_DIM: Dim = (0, 0, 0)


@dataclass(frozen=True)
class Launch:
    """A launch of one of our own kernels. `registers` chooses the compiled variant."""

    name: Literal["start", "gate", "wall", "work"]
    grid: Dim = (1, 1, 1)
    block: Dim = (32, 1, 1)
    cluster: Dim = NO_DIM
    shared_bytes: int = 0
    registers: int = 0


@dataclass(frozen=True)
class StandIn:
    """What a stand-in is told: how long, and which share of it a block has.

    `length`: ns of the wall clock, or cycles of the SM's. `stamp`: place of the start of the
    kernel's first block, from which its blocks count; -1: each counts from its own. A block
    waits for the end of its wave: of `waves`, with `blocks_per_wave` each. `moved_bytes`: read
    and written first. `hold`: blocks leave after so long, and only the last one stays until
    `length` has passed since the first began; 0: all stay. `due_ns`: when it is to end, from
    the origin; it may end up to `steer_ns` earlier or later for it.
    """

    length: int
    stamp: int = -1
    blocks_per_wave: int = 1
    waves: int = 1
    moved_bytes: int = 0
    hold: int = 0
    due_ns: int = 0
    steer_ns: int = 0
    cycles_per_ns: float = 1.0


@dataclass(frozen=True)
class Captured:
    """A kernel or memset of another library, as a node of a graph that was captured from it."""

    node: int
    is_kernel: bool
    label: str = ""


@dataclass(frozen=True)
class Device:
    """What is known of the GPU."""

    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    driver: str
    memory_bytes: int = 0


@dataclass(frozen=True)
class Records:
    """What was measured: one row for each node that ran. Arrays of shape (records,).

    `graph` and `node` are the measurer's ids; within a graph, ids of nodes grow in the order
    in which they were added. Times are ns of one clock. `grid`: blocks, 0 for copies.
    """

    graph: I64
    node: I64
    start_ns: I64
    end_ns: I64
    blocks: I64
    dropped: int = 0
    names: list[str] = field(default_factory=list)
    name: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.start_ns)


class Driver(Protocol):
    """Builds graphs, runs them on one GPU and measures them. Nodes and graphs are numbers."""

    @property
    def device(self) -> Device:
        """The GPU."""
        ...

    def registers_of(self, launch: Launch) -> int:
        """Registers a thread of the compiled variant really has."""
        ...

    def reserve(self, stamps: int, copy_bytes: int) -> None:
        """Room for stamps and for the longest copy (both sides). Before graphs are made."""
        ...

    def new_graph(self) -> int:
        """An empty graph."""
        ...

    def add_start(self, graph: int, lead_ns: int) -> int:
        """A node that waits for `go`, then sets the origin `lead_ns` ahead."""
        ...

    def add_gate(self, graph: int, after: Sequence[int], offset_ns: int) -> int:
        """A node that ends `offset_ns` after the origin, or at once where that has passed."""
        ...

    def add_stand_in(self, graph: int, after: Sequence[int], launch: Launch, work: StandIn) -> int:
        """A kernel that takes as long as it is told."""
        ...

    def add_copy(self, graph: int, after: Sequence[int], way: str, size_bytes: int) -> int:
        """A copy; `way` is `htod`, `dtoh`, `dtod` or `htoh`; host memory is pinned."""
        ...

    def add_memset(self, graph: int, after: Sequence[int], size_bytes: int) -> int:
        """A memset of device memory to 0."""
        ...

    def add_captured(self, graph: int, after: Sequence[int], captured: Captured) -> int:
        """A copy of a captured node."""
        ...

    def instantiate(self, graph: int) -> int:
        """Make it ready to run, and upload it. Returns what `launch` takes."""
        ...

    def rewind(self) -> None:
        """Forget stamps, origin and `go`, before the first launch of a run."""
        ...

    def launch(self, ready: int) -> None:
        """Queue it behind what was launched before."""
        ...

    def go(self) -> None:
        """Let the start node pass."""
        ...

    def finish(self) -> Records:
        """Wait for everything, and return what was measured since `rewind`."""
        ...

    def close(self) -> None:
        """Give graphs and memory back."""
        ...
