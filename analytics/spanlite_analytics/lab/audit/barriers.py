"""The block's barriers: who has come, and who still has to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from spanlite_analytics.lab.audit.ptx import Instruction
from spanlite_analytics.lab.audit.values import Mask

if TYPE_CHECKING:
    from spanlite_analytics.lab.audit.state import Context


@dataclass(slots=True)
class _Barrier:
    warps: Mask
    count: int | None
    arrivals: int = 0
    waiting: list[Context] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)


class Barriers:
    """The sixteen named barriers of a block; 0 is `__syncthreads()`."""

    def __init__(self, threads: int) -> None:
        self.warps = -(-threads // 32)
        self.open: dict[int, _Barrier] = {}
        #: Instructions that met at barrier 0 from different places.
        self.mixed: list[tuple[Instruction, Instruction]] = []

    def arrive(
        self,
        instruction: Instruction,
        id_: int,
        count: int | None,
        warps: Mask,
        who: Context | None,
    ) -> None:
        """Warps come to a barrier. `count`: threads it waits for; None: all that are left."""
        barrier = self.open.setdefault(id_, _Barrier(np.zeros(self.warps, np.bool_), count))
        barrier.warps = barrier.warps | warps
        barrier.arrivals += int(warps.sum())
        barrier.instructions.append(instruction)
        if who is not None:
            barrier.waiting.append(who)

    def complete(self, live: Mask) -> Iterator[tuple[Mask, list[Context]]]:
        """Take away and yield the barriers that all have come to: their warps, and who waits."""
        for id_, barrier in list(self.open.items()):
            if barrier.count is None:
                done = not (live & ~barrier.warps).any()
            else:
                done = barrier.arrivals * 32 >= barrier.count
            if done:
                del self.open[id_]
                first, last = barrier.instructions[0], barrier.instructions[-1]
                if barrier.count is None and first.index != last.index:
                    self.mixed.append((first, last))
                yield barrier.warps, barrier.waiting

    def stuck(self) -> list[Instruction]:
        """Where threads wait in vain."""
        return [b.instructions[0] for b in self.open.values() if b.waiting]

    def release(self) -> Iterator[tuple[Mask, list[Context]]]:
        """Let all go."""
        for barrier in self.open.values():
            yield barrier.warps, barrier.waiting
        self.open.clear()
