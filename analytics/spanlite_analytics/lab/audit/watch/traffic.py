"""Global memory: sectors a warp touches, loads that could be one, generic addresses."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from spanlite_analytics.lab.audit.machine import Machine
from spanlite_analytics.lab.audit.ptx import Instruction
from spanlite_analytics.lab.audit.state import WARP, Access, Watcher
from spanlite_analytics.lab.audit.values import Ints, Mask

SECTOR_BYTES = 32
VECTOR_BYTES = 16
#: A warp with fewer lanes at work is at the edge of the data, and no measure.
LANES_AT_LEAST = 16
#: Misses of alignment cost one sector; only more than these tell of a bad pattern.
WASTE_AT_LEAST, RATIO_AT_LEAST = 4.0, 1.9


@dataclass(slots=True)
class _Traffic:
    instruction: Instruction
    requests: int = 0
    sectors: int = 0
    least: int = 0


@dataclass(slots=True)
class _Load:
    instruction: Instruction
    at: Ints
    mask: Mask
    size_bytes: int


@dataclass(slots=True)
class Traffic(Watcher):
    """Counts sectors for each instruction, and looks for neighbouring loads in straight code."""

    seen: dict[int, _Traffic] = field(default_factory=dict)
    recent: list[_Load] = field(default_factory=list)
    last: int = -9
    #: Loads that one wider load would replace: their cost is reported there.
    joined: set[int] = field(default_factory=set)

    def step(self, machine: Machine, instruction: Instruction, mask: Mask) -> None:
        """A gap in the indices is a branch: straight code ends."""
        if instruction.index != self.last + 1:
            self._neighbours(machine)
        self.last = instruction.index

    def access(self, machine: Machine, use: Access) -> None:
        """Count a use of global memory."""
        if use.generic and use.space == "shared":
            machine.report(
                "generic-address",
                use.instruction,
                f"`{use.instruction.opcode}` finds out at run time that this is shared memory",
            )
        if use.space != "global" or use.atomic:
            return
        mask = use.mask & use.address.known
        if not (use.address.known | ~use.mask).all():
            return
        self._count(machine, use, mask)
        if use.reads and use.instruction.name == "ld":
            self.recent.append(_Load(use.instruction, use.address.bits, mask, use.size_bytes))

    def _count(self, machine: Machine, use: Access, mask: Mask) -> None:
        warp = np.arange(machine.threads) // WARP
        lanes = np.bincount(warp[mask], minlength=1)
        busy = mask & (lanes[np.minimum(warp, len(lanes) - 1)] >= LANES_AT_LEAST)
        if not busy.any():
            return
        at, who = use.address.bits[busy], warp[busy].astype(np.int64) << 48
        first = at // SECTOR_BYTES
        last = (at + use.size_bytes - 1) // SECTOR_BYTES
        sectors = np.unique(np.concatenate([who + first, who + last]))
        distinct = np.unique(who + at // use.size_bytes)
        per_warp = np.unique(distinct >> 48, return_counts=True)[1] * use.size_bytes
        entry = self.seen.setdefault(use.instruction.index, _Traffic(use.instruction))
        entry.requests += len(per_warp)
        entry.sectors += len(sectors)
        entry.least += int((-(-per_warp // SECTOR_BYTES)).sum())

    def _neighbours(self, machine: Machine) -> None:
        loads, self.recent = self.recent, []
        while len(loads) > 1:
            first = loads.pop(0)
            distance = {0: first}
            rest = []
            for load in loads:
                gap = _gap(first, load)
                if gap is None:
                    rest.append(load)
                else:
                    distance.setdefault(gap, load)
            self._runs(machine, distance, first.size_bytes)
            loads = rest

    def _runs(self, machine: Machine, distance: dict[int, _Load], size: int) -> None:
        offsets = sorted(distance)
        start = 0
        while start < len(offsets):
            run = [offsets[start]]
            while (
                start + len(run) < len(offsets)
                and offsets[start + len(run)] == run[-1] + size
                and (len(run) + 1) * size <= VECTOR_BYTES
            ):
                run.append(offsets[start + len(run)])
            if len(run) > 1 and self._worth(distance[run[0]], len(run) * size, size):
                self._tell(machine, [distance[offset] for offset in run], size)
            start += len(run)

    def _worth(self, load: _Load, run_bytes: int, size: int) -> bool:
        """Aligned, and each lane has a run of its own, not one that its neighbours share."""
        at = load.at[load.mask]
        if len(at) < LANES_AT_LEAST or (at % (2 * size)).any():
            return False
        gaps = np.diff(np.unique(at))
        return bool(len(gaps) and gaps.min() >= run_bytes)

    def _tell(self, machine: Machine, run: list[_Load], size: int) -> None:
        first = run[0]
        at = np.unique(first.at[first.mask])
        if np.diff(at).min() == len(run) * size:
            self.joined |= {load.instruction.index for load in run}
        machine.report(
            "unvectorised",
            first.instruction,
            f"{len(run)} loads of {size} bytes side by side: one of {len(run) * size} would do",
        )

    def finish(self, machine: Machine) -> None:
        """Report the instructions that waste sectors."""
        self._neighbours(machine)
        for index, entry in self.seen.items():
            if index in self.joined:
                continue
            waste = (entry.sectors - entry.least) / entry.requests
            if waste >= WASTE_AT_LEAST and entry.sectors >= RATIO_AT_LEAST * entry.least:
                machine.report(
                    "uncoalesced",
                    entry.instruction,
                    f"{entry.sectors / entry.requests:.0f} sectors a warp, "
                    f"where {entry.least / entry.requests:.0f} hold the data",
                )


def _gap(first: _Load, load: _Load) -> int | None:
    """The distance in bytes, where it is the same in all threads and small."""
    if load.size_bytes != first.size_bytes or not np.array_equal(load.mask, first.mask):
        return None
    gaps = (load.at - first.at)[first.mask]
    gap = int(gaps[0])
    same = bool((gaps == gap).all())
    return gap if same and abs(gap) < 256 and gap % first.size_bytes == 0 else None
