"""Shuffles that bring nothing new."""

from __future__ import annotations

import numpy as np

from spanlite_analytics.lab.audit.machine import Machine
from spanlite_analytics.lab.audit.ptx import Instruction
from spanlite_analytics.lab.audit.state import WARP, Shuffle, Watcher
from spanlite_analytics.lab.audit.values import Mask, Numbers


class RedundantShuffle(Watcher):
    """A shuffle is redundant where each lane gets what it had, before this or an earlier shuffle.

    A shuffle in a loop is judged over all of its turns: one turn that brings something acquits it.
    """

    def __init__(self, machine: Machine) -> None:
        self.verdicts: dict[int, list[str]] = {}
        self.code: dict[int, Instruction] = {}
        #: Result of each shuffle by its number in the first lanes, with what it was given.
        self.results: list[tuple[Instruction, Mask, Numbers, Numbers]] = []

    def shuffle(self, machine: Machine, use: Shuffle) -> None:
        """Judge one."""
        self.code[use.instruction.index] = use.instruction
        self.verdicts.setdefault(use.instruction.index, []).append(self._judge(use))
        self.results.append((use.instruction, use.mask, use.given.number, use.result.number))
        self.results = self.results[-64:]

    def _judge(self, use: Shuffle) -> str:
        mask = use.mask
        given, result = use.given.number, use.result.number
        if mask.sum() < 2 or use.given.known[mask].all():
            return ""
        if _same_in_warps(given, mask):
            return "all lanes hold the same value already"
        if (given == result)[mask].all():
            return "each lane gets its own value back"
        for earlier, where, before, after in reversed(self.results):
            if earlier.index == use.instruction.index or not (where & mask)[mask].all():
                continue
            line = f" at line {earlier.place.line}" if earlier.place.line else ""
            if (after == given)[mask].all() and (before == result)[mask].all():
                return f"it undoes the shuffle{line}"
            if (before == given)[mask].all() and (after == result)[mask].all():
                return f"the shuffle{line} has brought the same already"
        return ""

    def finish(self, machine: Machine) -> None:
        """Report those that never brought anything."""
        for index, verdicts in self.verdicts.items():
            if all(verdicts):
                machine.report("shuffle-redundant", self.code[index], verdicts[0])


def _same_in_warps(number: Numbers, mask: Mask) -> bool:
    for first in range(0, len(mask), WARP):
        inside = number[first : first + WARP][mask[first : first + WARP]]
        if len(inside) and (inside != inside[0]).any():
            return False
    return bool(np.count_nonzero(mask))
