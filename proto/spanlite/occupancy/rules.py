"""How many blocks of a kernel one SM holds at once: CUDA's rules, over arrays.

A block gets its warps, registers, shared memory and barriers whole or not at all. So the
blocks an SM holds is the smallest of five quotients, each with its own rounding:

- warps: a block takes whole warps;
- registers: a warp takes units of 256, and lives in one of four sub-partitions that has a
  quarter of the registers, so what is left over in each is lost;
- shared memory: static + dynamic + what the driver reserves, in units; the SM's share of the
  unified memory is one of a few sizes;
- blocks: a limit of the SM;
- barriers (from 9.0): as many hardware barriers as the block names.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntFlag
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spanlite.errors import UsageError
from spanlite.occupancy.limits import (
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_BLOCK,
    REGISTER_UNIT,
    SHARED_WITHOUT_OPT_IN_BYTES,
    SUB_PARTITIONS,
    WARP_THREADS,
    SmLimits,
    limits_of,
)

Ints = NDArray[np.int64]
#: Where a resource sets no limit.
UNLIMITED = np.iinfo(np.int32).max
#: No wish: as the occupancy API sees it, the SM has all the shared memory it can have.
CARVEOUT_DEFAULT = -1


class Limiter(IntFlag):
    """What keeps another block out; several where they tie. CUDA's numbers."""

    WARPS = 1
    REGISTERS = 2
    SHARED_MEMORY = 4
    BLOCKS = 8
    BARRIERS = 16

    @property
    def words(self) -> str:
        """For people: `registers, shared memory`."""
        return ", ".join(str(bit.name).lower().replace("_", " ") for bit in Limiter if bit in self)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """For each configuration. All arrays have the shape of the broadcast arguments.

    `blocks` is 0 where no block can ever run: the launch fails.
    """

    sm: SmLimits
    blocks: Ints
    #: Resident warps: blocks times the warps of a block.
    warps: Ints
    #: Bits of Limiter.
    limiters: Ints
    blocks_by_warps: Ints
    blocks_by_registers: Ints
    blocks_by_shared: Ints
    blocks_by_blocks: Ints
    blocks_by_barriers: Ints
    warps_per_block: Ints
    registers_per_block: Ints
    #: With the reserve, rounded up.
    shared_per_block_bytes: Ints
    #: What the SM's shared memory is set to.
    carveout_bytes: Ints

    @property
    def fraction(self) -> NDArray[np.float64]:
        """Resident warps of those that the SM can hold, 0 to 1."""
        return self.warps / self.sm.max_warps

    def row(self, place: int | tuple[int, ...] = ()) -> dict[str, Any]:
        """One configuration in plain types; `()` for scalar arguments."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "sm"}
        plain: dict[str, Any] = {name: int(value[place]) for name, value in values.items()}
        return plain | {
            "fraction": float(self.fraction[place]),
            "limiters": Limiter(plain["limiters"]).words,
        }


def occupancy(
    compute_capability: str | int | tuple[int, int] | SmLimits,
    threads_per_block: ArrayLike,
    registers_per_thread: ArrayLike,
    static_shared_bytes: ArrayLike = 0,
    dynamic_shared_bytes: ArrayLike = 0,
    *,
    carveout_percent: ArrayLike = CARVEOUT_DEFAULT,
    barriers: ArrayLike = 1,
    max_dynamic_shared_bytes: ArrayLike | None = None,
    shared_config_bytes: ArrayLike | None = None,
) -> Occupancy:
    """Blocks and warps that one SM holds, for arrays that broadcast against each other.

    `threads_per_block`: 1 or more; above 1,024 nothing can run. `registers_per_thread`: as
    the compiler or a launch record says, before rounding; 0 for a kernel without any.
    `carveout_percent`: the kernel's preferred share of shared memory, -1 to 100.
    `barriers`: named barriers of the kernel, as `ptxas -v` says; counts from 9.0 on.
    `max_dynamic_shared_bytes`: the kernel's opt-in (`cudaFuncSetAttribute`); none: as much as
    the launch asks for. It counts where static and dynamic exceed 48 KiB together.
    `shared_config_bytes`: what the SM's shared memory was set to, where a profiler says so (for a
    launch without a preference the driver takes no more than the launch needs); it overrides
    `carveout_percent`. Raises UsageError for values that no kernel can have.
    """
    sm = compute_capability
    limits = sm if isinstance(sm, SmLimits) else limits_of(sm)
    dynamic = dynamic_shared_bytes
    opt_in = dynamic if max_dynamic_shared_bytes is None else max_dynamic_shared_bytes
    named = {
        "threads_per_block": threads_per_block,
        "registers_per_thread": registers_per_thread,
        "static_shared_bytes": static_shared_bytes,
        "dynamic_shared_bytes": dynamic,
        "carveout_percent": carveout_percent,
        "barriers": barriers,
        "max_dynamic_shared_bytes": opt_in,
        "shared_config_bytes": 0 if shared_config_bytes is None else shared_config_bytes,
    }
    given = [np.asarray(value, np.int64) for value in named.values()]
    for name, value in zip(named, given, strict=True):
        _check(name, value)
    threads, registers, static, dynamic, carveout, barriers, opt_in, setting = np.broadcast_arrays(
        *given
    )
    warps = _ceil_div(threads, WARP_THREADS)
    by_warps = np.where(threads > MAX_THREADS_PER_BLOCK, 0, limits.max_warps // warps)
    by_registers, registers_per_block = _by_registers(limits, warps, registers)
    wish = _wish(limits, carveout) if shared_config_bytes is None else setting
    by_shared, shared, carved = _by_shared(limits, static, dynamic, wish, opt_in)
    by_blocks = np.full_like(warps, limits.max_blocks)
    by_barriers = _by_barriers(limits, barriers)
    each = np.stack([by_warps, by_registers, by_shared, by_blocks, by_barriers])
    blocks = each.min(axis=0)
    bits = (1 << np.arange(len(each))).reshape((-1,) + (1,) * blocks.ndim)
    limiters = ((each == blocks) * bits).sum(axis=0)
    return Occupancy(
        limits,
        blocks,
        blocks * warps,
        limiters,
        by_warps,
        by_registers,
        by_shared,
        by_blocks,
        by_barriers,
        warps,
        registers_per_block,
        shared,
        carved,
    )


def _ceil_div(value: Ints, by: int) -> Ints:
    return -(-value // by)


def _round_up(value: Ints, unit: int) -> Ints:
    return _ceil_div(value, unit) * unit


def _check(name: str, value: Ints) -> None:
    low = {"threads_per_block": 1, "carveout_percent": CARVEOUT_DEFAULT}.get(name, 0)
    if value.size and int(value.min()) < low:
        raise UsageError(f"{name} is {int(value.min())}; it must be {low} or more")
    if name == "carveout_percent" and value.size and int(value.max()) > 100:
        raise UsageError(f"carveout_percent is {int(value.max())}; it must be 100 or less")


def _by_registers(sm: SmLimits, warps: Ints, registers: Ints) -> tuple[Ints, Ints]:
    """Blocks, and registers that a block gets."""
    per_warp = _round_up(registers * WARP_THREADS, REGISTER_UNIT)
    per_partition = sm.registers // SUB_PARTITIONS // np.maximum(per_warp, 1)
    blocks = per_partition * SUB_PARTITIONS // warps
    # Whether one block fits at all is asked as if its warps were the same number in each
    # sub-partition, although they need not be.
    assumed = per_warp * _round_up(warps, SUB_PARTITIONS)
    cannot = (assumed > sm.registers_per_block) | (registers > MAX_REGISTERS_PER_THREAD + 1)
    blocks = np.where(per_warp == 0, UNLIMITED, np.where(cannot, 0, blocks))
    return blocks, per_warp * warps


def _by_shared(
    sm: SmLimits, static: Ints, dynamic: Ints, wish: Ints, opt_in: Ints
) -> tuple[Ints, Ints, Ints]:
    """Blocks, bytes that a block gets, and what the SM is set to."""
    fixed = static + sm.reserved_shared_bytes
    each = _round_up(fixed + dynamic, sm.shared_unit_bytes)
    opted = fixed + opt_in > SHARED_WITHOUT_OPT_IN_BYTES
    most = np.where(opted, sm.shared_per_block_bytes, SHARED_WITHOUT_OPT_IN_BYTES)
    # The opt-in only raises what a block may have. A smaller one takes nothing from the 48 KiB
    # that need none: the API on an H200 says so, NVIDIA's header says 0 blocks.
    beyond = (dynamic > opt_in) & (static + dynamic > SHARED_WITHOUT_OPT_IN_BYTES)
    cannot = beyond | (each > most + sm.reserved_shared_bytes)
    # A wish too small for one block is not followed; then the SM gets just enough for one.
    carved = np.where(wish >= each, wish, _carve(sm, np.minimum(each, sm.shared_bytes)))
    blocks = np.where(each == 0, UNLIMITED, carved // np.maximum(each, 1))
    return np.where(cannot, 0, blocks), each, carved


def _wish(sm: SmLimits, percent: Ints) -> Ints:
    """The setting that a preference asks for."""
    return _carve(sm, sm.shared_bytes * np.where(percent == CARVEOUT_DEFAULT, 100, percent) // 100)


def _carve(sm: SmLimits, size: Ints) -> Ints:
    """The smallest setting that holds `size` bytes."""
    choices = np.array(sm.carveouts_bytes, np.int64)
    return choices[np.searchsorted(choices, size)]


def _by_barriers(sm: SmLimits, barriers: Ints) -> Ints:
    if not sm.barriers:
        return np.full_like(barriers, UNLIMITED)
    return np.where(barriers == 0, UNLIMITED, sm.barriers // np.maximum(barriers, 1))
