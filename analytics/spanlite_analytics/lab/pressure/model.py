"""A sub-partition of an SM issues a loop of some warps, instruction by instruction.

Each clock the scheduler issues one instruction of one warp. A warp may issue when the stall that
the compiler wrote into its last instruction is over, when the scoreboards it waits for are clear,
and when the pipe takes an instruction. Of several warps the one goes on that issued last. The
four sub-partitions are alike, so one of them is run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from spanlite_analytics.lab.pressure.code import NO_BARRIER, Instruction
from spanlite_analytics.lab.pressure.loops import Loop
from spanlite_analytics.lab.pressure.pipes import Chip, class_of, kind_of, reads_of

#: Turns of all warps before the count begins at most, and while it lasts; issues of a run.
_WARM_TURNS, _MOST_TURNS, _MOST_ISSUES = 2, 12, 6_000
#: Clocks that reads of registers may lag behind the issue.
SLACK = 2.0


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a loop runs with some warps on a sub-partition."""

    warps: int
    #: Clocks in which every warp makes one turn.
    clocks_per_turn: float
    #: Instructions issued a clock; 1 is the most.
    issue: float
    #: Share of the clocks that the busiest pipe works, and its name.
    pipe: str
    pipe_busy: float

    @property
    def bound(self) -> str:
        """What keeps it from being faster."""
        if self.pipe_busy > 0.9 and self.pipe_busy >= self.issue:
            return self.pipe
        return "issue" if self.issue > 0.9 else "latency"


@dataclass(slots=True)
class _Step:
    """An instruction, ready to be issued."""

    pipe: int
    busy: float
    stall: float
    wait: tuple[int, ...]
    write: int
    latency: float
    read: int
    read_after: float
    barrier: bool
    #: Reads from the two banks of the register file: after an instruction of the same warp,
    #: and after one of another.
    kept: tuple[int, int] = (0, 0)
    fresh: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class _Warp:
    at: int = 0
    ready: float = 0.0
    boards: list[float] = field(default_factory=lambda: [0.0] * 6)


def rate(
    loop: Loop,
    chip: Chip,
    warps: int,
    memory: str = "l1",
    group: int = 0,
    dearer: Mapping[str, float] | None = None,
) -> Rate:
    """Run `warps` warps of one sub-partition through a loop until the pace is even.

    `memory`: where global loads find their data, `l1`, `l2` or `dram`. `group`: warps of a
    block on the sub-partition, which wait for each other at barriers; 0: none do. `dearer`:
    how many times its usual cost a kind takes: `spill` (`Chip.spill_factor`), `shared` (wavefronts
    over those without conflicts), `global` (lines over those of coalesced accesses).
    """
    pipes: dict[str, int] = {}
    steps = [_step(code, chip, memory, pipes) for code in loop.code]
    factors = [(dearer or {}).get(kind_of(code), 1.0) for code in loop.code]
    before = (loop.code[-1], *loop.code)
    for step, code, last, factor in zip(steps, loop.code, before, factors, strict=False):
        step.busy, step.latency = step.busy * factor, step.latency + step.busy * (factor - 1)
        step.kept, step.fresh = reads_of(code, last), reads_of(code, None)
    steps[-1].stall = max(steps[-1].stall, chip.branch)
    length = len(steps)
    turns = max(min(_MOST_ISSUES // (length * warps), _MOST_TURNS), 1)
    clocks = _run(steps, warps, turns, len(pipes), group) / turns
    busy = Counter[str]()
    for code, step in zip(loop.code, steps, strict=True):
        busy[chip.cost(code, memory).pipe] += step.busy  # type: ignore[assignment]
    pipe, most = busy.most_common(1)[0]
    return Rate(warps, clocks, length * warps / clocks, pipe, most * warps / clocks)


def _step(code: Instruction, chip: Chip, memory: str, pipes: dict[str, int]) -> _Step:
    cost, control = chip.cost(code, memory), code.control
    return _Step(
        pipes.setdefault(cost.pipe, len(pipes)),
        cost.busy,
        max(control.stall, 1),
        tuple(board for board in range(6) if control.wait >> board & 1),
        control.write if control.write != NO_BARRIER else -1,
        max(cost.latency, 1),
        control.read if control.read != NO_BARRIER else -1,
        max(cost.read, 1),
        class_of(code) == "bar",
    )


def _run(steps: list[_Step], warps: int, turns: int, pipes: int, group: int) -> float:
    """Clocks in which all warps together make `turns` turns each, once they are in their stride."""
    everyone = [_Warp() for _ in range(warps)]
    free = [0.0] * pipes
    banks, last, group = [0.0, 0.0], -1, max(group, 1)
    meeting: dict[int, list[int]] = {}
    queue = [(0.0, 0, number) for number in range(warps)]
    warm = min(_WARM_TURNS, turns)
    begin, end = warm * warps * len(steps), (warm + turns) * warps * len(steps)
    clock, start = -1.0, 0.0
    for issued in range(end):
        if issued == begin:
            start = clock
        clock, number = _next(queue, everyone, steps, free, max(clock, *(b - SLACK for b in banks)))
        warp = everyone[number]
        step = steps[warp.at]
        free[step.pipe] = clock + step.busy
        even, odd = step.kept if number == last else step.fresh
        banks, last = [max(banks[0], clock) + even, max(banks[1], clock) + odd], number
        if step.write >= 0:
            warp.boards[step.write] = max(warp.boards[step.write], clock + step.latency)
        if step.read >= 0:
            warp.boards[step.read] = max(warp.boards[step.read], clock + step.read_after)
        warp.ready = clock + step.stall
        warp.at = (warp.at + 1) % len(steps)
        if step.barrier:
            mates = meeting.setdefault(number // group, [])
            mates.append(number)
            if len(mates) == min(group, warps - number // group * group):
                for mate in meeting.pop(number // group):
                    everyone[mate].ready = clock + step.latency
                    heapq.heappush(queue, (everyone[mate].ready, issued, mate))
        else:
            heapq.heappush(queue, (warp.ready, -issued, number))
    return clock - start


def _next(
    queue: list[tuple[float, int, int]],
    everyone: list[_Warp],
    steps: list[_Step],
    free: list[float],
    clock: float,
) -> tuple[float, int]:
    """The warp that may issue first, and when; of several the one that issued last."""
    while True:
        due, rank, number = heapq.heappop(queue)
        warp = everyone[number]
        step = steps[warp.at]
        earliest = max(warp.ready, free[step.pipe], clock + 1)
        for board in step.wait:
            earliest = max(earliest, warp.boards[board])
        if earliest <= due or not queue or (earliest, rank) <= queue[0][:2]:
            return earliest, number
        heapq.heappush(queue, (earliest, rank, number))
