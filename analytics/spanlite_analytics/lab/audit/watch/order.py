"""Data that blocks hand over to each other: is it ordered, and in the right scope?"""

from __future__ import annotations

from dataclasses import dataclass, field

from spanlite_analytics.lab.audit.machine import Machine
from spanlite_analytics.lab.audit.ptx import Instruction
from spanlite_analytics.lab.audit.state import REGION_BITS, Access, Watcher
from spanlite_analytics.lab.audit.values import From, Mask


@dataclass(slots=True)
class Fault:
    """A flag's use that does not order the data beside it."""

    flag: Instruction
    data: Instruction
    narrow: bool
    publishes: bool


@dataclass(slots=True)
class Handovers:
    """What is known of a kernel over all of its runs, by region of global memory."""

    written: dict[int, From] = field(default_factory=dict)
    read: dict[int, From] = field(default_factory=dict)
    faults: dict[int, list[Fault]] = field(default_factory=dict)

    def handed_over(self, region: int) -> bool:
        """Whether some block may read what another wrote."""
        if region not in self.written or region not in self.read:
            return False
        wrote, read = self.written[region], self.read[region]
        if (wrote | read) & From.ATOMIC:
            return False
        return not (wrote & From.BLOCK and read & From.BLOCK)


class Order(Watcher):
    """Follows fences, flags and data in the order in which the block meets them."""

    def __init__(self, machine: Machine, handovers: Handovers) -> None:
        self.handovers = handovers
        self.unreleased: dict[int, Instruction] = {}
        self.unacquired: tuple[int, Instruction] | None = None
        self.narrow_since: set[int] = set()
        self.acquire_narrow = False
        self.touched_global = False
        self.touched_shared = False

    def step(self, machine: Machine, instruction: Instruction, mask: Mask) -> None:
        """Fences."""
        if instruction.name not in ("membar", "fence") or instruction.has("proxy", "mbarrier_init"):
            return
        scope = next(
            (w for w in instruction.words[1:] if w in ("cta", "cluster", "gl", "gpu", "sys")), "gpu"
        )
        if scope == "sys":
            _wide(machine, instruction, "it orders memory for the host and for other GPUs too")
        elif scope in ("gl", "gpu") and not self.touched_global and self.touched_shared:
            _wide(machine, instruction, "only shared memory was written before it")
        if scope in ("cta", "cluster"):
            self.narrow_since |= set(self.unreleased)
            self.acquire_narrow = self.acquire_narrow or self.unacquired is not None
        else:
            self.unreleased.clear()
            self.unacquired, self.acquire_narrow = None, False

    def access(self, machine: Machine, use: Access) -> None:
        """Flags and data."""
        if use.space == "shared":
            self.touched_shared |= use.writes
            return
        if use.space != "global":
            return
        instruction = use.instruction
        region = int(use.address.bits[use.mask][0]) >> REGION_BITS
        self.touched_global |= use.writes or use.atomic
        if use.atomic:
            self._scope(machine, use)
        if use.atomic or instruction.has("volatile", "relaxed", "acquire", "release", "mmio"):
            self._flag(use, region)
        elif use.writes:
            wrote = self.handovers.written.get(region, use.address.origin)
            self.handovers.written[region] = wrote & use.address.origin | (
                (wrote | use.address.origin) & From.ATOMIC
            )
            self.unreleased[region] = instruction
            self.narrow_since.discard(region)
        else:
            self._data(use, region)

    def _data(self, use: Access, region: int) -> None:
        origin = use.address.origin
        read = self.handovers.read.get(region, origin)
        self.handovers.read[region] = read & origin | ((read | origin) & From.ATOMIC)
        if self.unacquired and self.unacquired[0] != region:
            fault = Fault(self.unacquired[1], use.instruction, self.acquire_narrow, False)
            self.handovers.faults.setdefault(region, []).append(fault)

    def _flag(self, use: Access, flag: int) -> None:
        instruction = use.instruction
        if use.writes and not instruction.has("release", "acq_rel"):
            for region, store in self.unreleased.items():
                if region != flag:
                    fault = Fault(instruction, store, region in self.narrow_since, True)
                    self.handovers.faults.setdefault(region, []).append(fault)
        elif use.writes:
            self.unreleased.clear()
        if use.reads:
            ordered = instruction.has("acquire", "acq_rel")
            self.unacquired = None if ordered else (flag, instruction)
            self.acquire_narrow = False

    def _scope(self, machine: Machine, use: Access) -> None:
        if use.instruction.has("sys"):
            _wide(machine, use.instruction, "it is atomic for the host and for other GPUs too")
        elif use.instruction.has("cta") and not use.address.origin & (From.BLOCK | From.ATOMIC):
            machine.report(
                "scope-narrow",
                use.instruction,
                "atomic within its block only, at an address that is the same for all blocks",
            )


def _wide(machine: Machine, instruction: Instruction, why: str) -> None:
    machine.report("scope-wide", instruction, why)


def finish(machine: Machine, handovers: Handovers) -> None:
    """Report each handover that something does not order; once for each flag."""
    told: set[tuple[str, int]] = set()
    for region, faults in handovers.faults.items():
        if not handovers.handed_over(region):
            continue
        for fault in faults:
            rule = "scope-narrow" if fault.narrow else "atomic-order"
            if (rule, fault.flag.index) in told:
                continue
            told.add((rule, fault.flag.index))
            line = f" (line {fault.data.place.line})" if fault.data.place.line else ""
            between = "only a fence of block scope" if fault.narrow else "no fence"
            if fault.publishes:
                why = f"others may see it before the data stored earlier{line}: {between} between"
            else:
                why = f"data read after it{line} may be older than it: {between} between"
            machine.report(rule, fault.flag, why)
