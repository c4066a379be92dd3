"""What limits a launch's occupancy, and the nearest change that would raise it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spanlite.occupancy import Occupancy, SmLimits, occupancy
from spanlite.occupancy.limits import (
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_BLOCK,
    REGISTER_UNIT,
    SUB_PARTITIONS,
    WARP_THREADS,
)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched. Shared memory in bytes a block."""

    threads: int
    registers: int
    static_shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    barriers: int = 1
    carveout_percent: int = -1
    grid_blocks: int = 0
    cluster_blocks: int = 1

    @property
    def shared_bytes(self) -> int:
        """Static and dynamic."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    @property
    def warps(self) -> int:
        """Of a block."""
        return -(-self.threads // WARP_THREADS)


@dataclass(frozen=True, slots=True)
class Step:
    """One change, and what an SM holds then."""

    what: str
    value: int
    blocks: int
    warps: int
    fraction: float


def on(sm: SmLimits, launch: Launch, **changed: Any) -> Occupancy:
    """Occupancy of a launch; `changed` puts arrays in the place of single fields."""
    named = {
        "threads_per_block": launch.threads,
        "registers_per_thread": launch.registers,
        "static_shared_bytes": launch.static_shared_bytes,
        "dynamic_shared_bytes": launch.dynamic_shared_bytes,
        "barriers": launch.barriers,
        "carveout_percent": launch.carveout_percent,
    }
    return occupancy(sm, **(named | changed))


def steps(sm: SmLimits, launch: Launch) -> list[Step]:
    """The nearest block size, register count, shared memory and carve-out with more warps.

    Each changes one thing alone. A block size keeps the shared memory of a block, which a
    kernel that sizes it by its threads would not. None is in the list where a change of
    that one thing does not help.
    """
    found = []
    for what, argument, values, now in _candidates(sm, launch):
        got = on(sm, launch, **{argument: values})
        better = np.flatnonzero(got.warps > int(on(sm, launch).warps))
        if better.size:
            place = better[np.argmin(np.abs(values[better] - now))]
            found.append(_step(what, int(values[place]), got, int(place)))
    return found


def _candidates(sm: SmLimits, launch: Launch) -> list[tuple[str, str, NDArray[np.int64], int]]:
    sizes = np.arange(WARP_THREADS, MAX_THREADS_PER_BLOCK + 1, WARP_THREADS)
    dynamic = np.arange(0, launch.dynamic_shared_bytes, sm.shared_unit_bytes)
    listed = [
        ("block size", "threads_per_block", sizes, launch.threads),
        ("registers", "registers_per_thread", np.arange(1, launch.registers), launch.registers),
        ("dynamic shared memory", "dynamic_shared_bytes", dynamic, launch.dynamic_shared_bytes),
    ]
    if launch.carveout_percent >= 0:
        percents = np.arange(launch.carveout_percent + 1, 101)
        listed.append(("carve-out", "carveout_percent", percents, launch.carveout_percent))
    return [row for row in listed if row[2].size]


def _step(what: str, value: int, got: Occupancy, place: int) -> Step:
    blocks, warps = int(got.blocks[place]), int(got.warps[place])
    return Step(what, value, blocks, warps, warps / got.sm.max_warps)


def best_block_size(sm: SmLimits, launch: Launch) -> Step:
    """The block size with the most warps; of equal ones the nearest to the launch's."""
    sizes = np.arange(WARP_THREADS, MAX_THREADS_PER_BLOCK + 1, WARP_THREADS)
    got = on(sm, launch, threads_per_block=sizes)
    best = np.flatnonzero(got.warps == got.warps.max())
    place = int(best[np.argmin(np.abs(sizes[best] - launch.threads))])
    return _step("best block size", int(sizes[place]), got, place)


def needs(sm: SmLimits, launch: Launch, blocks: int) -> dict[str, int]:
    """The most of each resource that a block may take so that an SM holds `blocks` of them.

    Keys: `registers` a thread, `shared_bytes` (static and dynamic) and `threads` a block,
    `barriers` where the SM counts them. Empty where the SM never holds so many blocks.
    """
    if not 1 <= blocks <= sm.max_blocks or blocks * launch.warps > sm.max_warps:
        return {}
    warps = -(-launch.warps * blocks // SUB_PARTITIONS)
    units = sm.registers // SUB_PARTITIONS // warps // REGISTER_UNIT
    whole = -(-launch.warps // SUB_PARTITIONS) * SUB_PARTITIONS
    units = min(units, sm.registers_per_block // whole // REGISTER_UNIT)
    shared = sm.shared_bytes // blocks // sm.shared_unit_bytes * sm.shared_unit_bytes
    most = {
        "threads": min(sm.max_warps // blocks * WARP_THREADS, MAX_THREADS_PER_BLOCK),
        "registers": min(units * REGISTER_UNIT // WARP_THREADS, MAX_REGISTERS_PER_THREAD),
        "shared_bytes": min(shared - sm.reserved_shared_bytes, sm.shared_per_block_bytes),
    }
    return most | ({"barriers": sm.barriers // blocks} if sm.barriers else {})


def spare(sm: SmLimits, launch: Launch) -> dict[str, int]:
    """Registers a thread and shared bytes a block that can be added at the same occupancy."""
    most = needs(sm, launch, int(on(sm, launch).blocks))
    if not most:
        return {}
    return {
        "registers": most["registers"] - launch.registers,
        "shared_bytes": most["shared_bytes"] - launch.shared_bytes,
    }


@dataclass(frozen=True, slots=True)
class Grid:
    """How a grid fills the GPU."""

    sms: int
    #: Blocks that the GPU holds at once.
    capacity: int
    #: Grid over capacity; below 1 the grid does not fill the GPU once.
    waves: float
    #: Of the block slots in all waves, the share that is used.
    used_fraction: float
    #: Resident warps of the GPU's, averaged over the SMs, in the first wave.
    first_wave_fraction: float


def grid_on(sm: SmLimits, launch: Launch, sms: int) -> Grid | None:
    """None where nothing runs, or no grid is given."""
    got = on(sm, launch)
    capacity = int(got.blocks) * sms
    if not capacity or not launch.grid_blocks:
        return None
    waves = launch.grid_blocks / capacity
    first = min(launch.grid_blocks, capacity) * launch.warps / (sms * sm.max_warps)
    return Grid(sms, capacity, waves, waves / np.ceil(waves), first)


def clusters_at_most(sm: SmLimits, launch: Launch, sms: int) -> int:
    """An upper bound on the clusters that the GPU holds at once.

    A cluster lives within one GPC. How many SMs each GPC of a chip has differs from chip to
    chip, and only `cuOccupancyMaxActiveClusters` on that chip knows: an H200 with 132 SMs
    holds 30 clusters of 4 one-an-SM blocks, not 33.
    """
    return int(on(sm, launch).blocks) * sms // max(launch.cluster_blocks, 1)
