"""What a kernel's grid-stride loop does in a turn, read from its machine code."""

from __future__ import annotations

from dataclasses import dataclass

from spanlite_analytics.lab.pressure.code import Instruction, Routine
from spanlite_analytics.lab.pressure.loops import Loop, loops_of, whole
from spanlite_analytics.lab.pressure.model import rate
from spanlite_analytics.lab.pressure.pipes import Chip

#: Bytes of an access by the opcode's modifiers.
_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_ATOMICS = ("ATOM", "ATOMG", "RED", "REDG", "ATOMS")


@dataclass(frozen=True, slots=True)
class Work:
    """Of one thread in one turn of its loop, where nothing else is said."""

    instructions: int
    flops: int
    #: Clocks of a sub-partition for one warp's turn if nothing is waited for.
    issue_clocks: float
    #: Clocks of one warp alone for a turn, its loads from the L2, and from memory.
    latency_clocks: float
    memory_clocks: float
    load_bytes: int
    store_bytes: int
    loads: int
    stores: int
    atomics: int
    barriers: int
    #: Accesses to shared memory and shuffles.
    shared: int
    #: Loads and stores of spilled registers.
    spills: int


def grid_loop(routine: Routine) -> Loop:
    """The outermost loop with the most accesses to global memory, then the longest."""
    outer = [loop for loop in loops_of(routine) if loop.depth == 1]
    return max(outer, key=lambda loop: (_accesses(loop), len(loop.code)), default=whole(routine))


def _accesses(loop: Loop) -> int:
    return sum(
        code.name in ("LDG", "STG", "RED", "REDG", "ATOMG", "LD", "ST") for code in loop.code
    )


def work_of(loop: Loop, chip: Chip) -> Work:
    """Count a loop's instructions and run one warp through it."""
    busy: dict[str, float] = {}
    for code in loop.code:
        cost = chip.cost(code, "l2")
        busy[cost.pipe] = busy.get(cost.pipe, 0.0) + cost.busy
    loads = [code for code in loop.code if code.name in ("LDG", "LD")]
    stores = [code for code in loop.code if code.name in ("STG", "ST", "RED", "REDG")]
    names = [code.name for code in loop.code]
    return Work(
        len(loop.code),
        loop.flops,
        max(*busy.values(), float(len(loop.code))),
        rate(loop, chip, 1, "l2").clocks_per_turn,
        rate(loop, chip, 1, "dram").clocks_per_turn,
        sum(map(bytes_of, loads)),
        sum(map(bytes_of, stores)),
        len(loads),
        len(stores),
        sum(name in _ATOMICS for name in names),
        names.count("BAR"),
        sum(name in ("LDS", "STS", "SHFL", "LDSM", "STSM", "ATOMS") for name in names),
        sum(name in ("LDL", "STL") for name in names),
    )


def bytes_of(code: Instruction) -> int:
    """Of one lane's access."""
    return next((_BYTES[m] for m in code.modifiers if m in _BYTES), 4)
