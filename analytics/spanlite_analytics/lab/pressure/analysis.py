"""What a kernel's registers cost: warps that fit, the pace they reach, and what fewer would do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spanlite.errors import InputError, UsageError
from spanlite.occupancy import SmLimits
from spanlite.occupancy.limits import SUB_PARTITIONS, WARP_THREADS

from spanlite_analytics.lab.audit.inputs import Unit, target_of
from spanlite_analytics.lab.explain.case import Resources, read_resources
from spanlite_analytics.lab.occupancy import Launch, on
from spanlite_analytics.lab.pressure.code import Instruction, Routine, read_code
from spanlite_analytics.lab.pressure.loops import Loop, loops_of, main_loop, whole
from spanlite_analytics.lab.pressure.model import Rate, rate
from spanlite_analytics.lab.pressure.pipes import Chip
from spanlite_analytics.lab.toolchain import Compiler

#: Register caps that are tried: where another warp fits on a sub-partition.
CAPS = (24, 32, 40, 48, 56, 64, 72, 80, 96, 128, 168, 255)
#: A predicted gain below this may be the model's error.
WORTHWHILE = 1.1


#: What PTX makes of __launch_bounds__ and __maxnreg__.
_BOUNDS = re.compile(r"^\s*\.(?:maxntid|minnctapersm|maxnreg)\s[\d, ]+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Setting:
    """How the kernel is launched, and on what."""

    sm: SmLimits
    chip: Chip
    sms: int
    threads: int = 128
    dynamic_shared_bytes: int = 0
    #: Where global loads find their data: `l1`, `l2` or `dram`.
    memory: str = "l1"
    clock_hz: float = 0.0
    #: Wavefronts over those without bank conflicts, and lines over those of coalesced accesses.
    shared_degree: float = 1.0
    global_degree: float = 1.0

    @property
    def hz(self) -> float:
        """The SM's clock."""
        return self.clock_hz or self.chip.clock_hz


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compiled kernel: its code, its loop, and what it takes."""

    routine: Routine
    resources: Resources
    loop: Loop
    #: Register cap that it was compiled with; 0: none.
    cap: int = 0

    @property
    def peak(self) -> Instruction:
        """Where the most registers are alive."""
        return self.routine.peak

    def spills_in_loop(self) -> tuple[int, int]:
        """Stores and loads of spilled registers in a turn of the loop."""
        names = [code.name for code in self.loop.code]
        return names.count("STL"), names.count("LDL")


@dataclass(frozen=True, slots=True)
class Row:
    """One way to compile it, and the pace that it reaches."""

    cap: int
    registers: int
    blocks: int
    #: On an SM.
    warps: int
    stack_bytes: int
    spill_stores: int
    spill_loads: int
    rate: Rate
    #: Of the GPU: floating-point operations, turns of a thread's loop and instructions.
    flops_per_s: float
    turns_per_s: float
    instructions_per_s: float
    #: Clocks a turn against the code without a cap at the same warps.
    spill_cost: float


def kernels_of(unit: Unit, pattern: str, lines: bool = True, cap: int = 0) -> list[Kernel]:
    """The kernels of a module whose name holds `pattern`. Raises InputError without code."""
    if not unit.cubin:
        raise InputError(f"{unit.name}: holds no machine code, and there is no ptxas to make it")
    resources = {r.name: r for r in read_resources(unit.cubin, pattern)}
    return [
        Kernel(routine, resources[routine.name], main_loop(routine) or whole(routine), cap)
        for routine in read_code(unit.cubin, pattern, lines)
        if routine.name in resources
    ]


def at_loop(kernel: Kernel, offset: int) -> Kernel:
    """The same with the loop that starts at `offset`. Raises UsageError where none does."""
    found = {loop.start: loop for loop in loops_of(kernel.routine)}
    if offset not in found:
        known = ", ".join(f"{start:#x}" for start in found) or "none"
        raise UsageError(
            f"no loop of {kernel.routine.name} starts at {offset:#x}; there is {known}"
        )
    return replace(kernel, loop=found[offset])


def warps_of(kernel: Kernel, setting: Setting) -> tuple[int, int]:
    """Blocks and warps that an SM holds."""
    got = on(setting.sm, launch_of(kernel, setting))
    return int(got.blocks), int(got.warps)


def launch_of(kernel: Kernel, setting: Setting) -> Launch:
    """As `lab occupancy` sees it."""
    return Launch(
        setting.threads,
        kernel.resources.registers,
        kernel.resources.shared_bytes,
        setting.dynamic_shared_bytes,
    )


def rate_at(kernel: Kernel, setting: Setting, warps: int) -> Rate:
    """The model with so many warps on an SM; at least one on a sub-partition."""
    on_partition = max(round(warps / SUB_PARTITIONS), 1)
    group = max(-(-setting.threads // WARP_THREADS) // SUB_PARTITIONS, 1)
    threads = warps * WARP_THREADS * setting.sms
    spill = setting.chip.spill_factor(kernel.resources.stack_bytes * threads)
    dearer = {
        "spill": spill,
        "shared": setting.shared_degree,
        "global": setting.global_degree,
    }
    return rate(kernel.loop, setting.chip, on_partition, setting.memory, group, dearer)


def row_of(kernel: Kernel, setting: Setting, plain: Kernel | None = None) -> Row | None:
    """Its row of the table; None where no block fits. `plain`: the code without a cap."""
    blocks, warps = warps_of(kernel, setting)
    if not blocks:
        return None
    got = rate_at(kernel, setting, warps)
    cost = 1.0
    if plain is not None and plain is not kernel:
        cost = got.clocks_per_turn / rate_at(plain, setting, warps).clocks_per_turn
        cost *= _work(plain) / _work(kernel)
    per_second = setting.sms * setting.hz * warps / got.clocks_per_turn
    return Row(
        kernel.cap,
        kernel.resources.registers,
        blocks,
        warps,
        kernel.resources.stack_bytes,
        *kernel.spills_in_loop(),
        got,
        per_second * WARP_THREADS * kernel.loop.flops,
        per_second * WARP_THREADS,
        per_second * WARP_THREADS * len(kernel.loop.code),
        cost - 1,
    )


def _work(kernel: Kernel) -> int:
    """What a turn gets done: caps may change how far a loop is unrolled."""
    names = ("LDL", "STL", "IMAD", "MOV")
    other = sum(code.name not in names for code in kernel.loop.code)
    return kernel.loop.flops or other


def recompiled(
    unit: Unit,
    name: str,
    caps: Sequence[int],
    arch: str,
    told: Callable[[int], None] = lambda cap: None,
) -> list[Kernel]:
    """The kernel under each register cap, those that come out alike once.

    Empty where the module has no PTX. Launch bounds, for which ptxas would ignore the cap, are
    taken out; a cap that the compiler refuses is left out. `told` hears of each cap before it.
    """
    if not unit.ptx:
        return []
    made: dict[tuple[int, int, int], Kernel] = {}
    ptx = _BOUNDS.sub("", unit.ptx)
    for cap in sorted(caps, reverse=True):
        told(cap)
        compiler = Compiler(target_of(ptx, arch), (f"-maxrregcount={cap}",))
        try:
            answer = compiler.cubin(ptx)
        except InputError:
            continue
        for kernel in kernels_of(Unit(unit.name, "", answer.data), name, False, cap):
            if kernel.routine.name == name:
                needs = kernel.resources
                key = (needs.registers, needs.stack_bytes, len(kernel.loop.code))
                made.setdefault(key, kernel)
    return list(made.values())


def table(kernel: Kernel, others: Sequence[Kernel], setting: Setting) -> list[Row]:
    """Rows from many registers to few; the kernel as it was compiled is among them."""
    same = (kernel.resources.registers, kernel.resources.stack_bytes)
    different = [k for k in others if (k.resources.registers, k.resources.stack_bytes) != same]
    every = [kernel, *different]
    rows = [row_of(k, setting, kernel) for k in every]
    return sorted((r for r in rows if r is not None), key=lambda r: -r.registers)


def best_of(rows: Sequence[Row]) -> Row:
    """The fastest; of equal ones that with the most registers."""
    return max(rows, key=lambda r: (round(pace(r) / 1e9, 3), r.registers))


def pace(row: Row) -> float:
    """What is compared: FLOP/s, or turns of the loop where it has no such operations."""
    return row.flops_per_s or row.turns_per_s


def advice(kernel: Kernel, rows: Sequence[Row], setting: Setting) -> list[str]:
    """What to try, in sentences."""
    now = next((r for r in rows if r.cap == kernel.cap), None)
    if now is None:
        return ["No block fits an SM as it is compiled: lower -maxrregcount or the block size."]
    best = best_of(rows)
    said = []
    if now.stack_bytes and now.spill_loads + now.spill_stores:
        said.append(
            f"A turn of the loop stores {now.spill_stores} times to local memory and loads "
            f"{now.spill_loads} times from it: spilled registers, or an array that is indexed at "
            "run time. Give it more registers, or less to keep."
        )
    gain = pace(best) / pace(now)
    if best is not now and gain >= WORTHWHILE:
        said.append(
            f"-maxrregcount={best.cap} or __launch_bounds__({setting.threads}, {best.blocks}): "
            f"{now.registers} -> {best.registers} registers, {now.warps} -> {best.warps} warps an "
            f"SM, predicted {_gain_words(gain)}; {_spill_words(best)}."
        )
    elif len(rows) > 1:
        said.append(
            "No register cap that was tried is predicted to help by more than "
            f"{WORTHWHILE - 1:.0%}: keep {now.registers} registers."
        )
    said.append(_bound_words(now))
    return said


def _gain_words(gain: float) -> str:
    return f"{gain:.1f} times as fast" if gain >= 2 else f"{gain - 1:+.0%}"


def _spill_words(row: Row) -> str:
    if not row.spill_stores + row.spill_loads:
        words = "nothing is spilled within the loop"
        return words + (f" ({row.stack_bytes} bytes outside)" if row.stack_bytes else "")
    return (
        f"a turn then stores {row.spill_stores} spilled registers and loads {row.spill_loads}, "
        f"{row.spill_cost:+.0%} clocks a turn at equal warps"
    )


def _bound_words(row: Row) -> str:
    bound = row.rate.bound
    if bound == "latency":
        return (
            f"{row.warps} warps do not hide its latencies ({row.rate.issue:.0%} of the issue slots "
            "are used): more warps or more independent work in each help."
        )
    if bound == "issue":
        return "The schedulers issue in nearly every clock: only fewer instructions help."
    return f"The {bound} pipe is busy {row.rate.pipe_busy:.0%} of the time: more warps do not help."
