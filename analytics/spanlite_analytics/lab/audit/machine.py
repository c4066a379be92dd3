"""Runs one block of a kernel over made-up values, all threads at once; the rules look on.

A block that diverges along warps goes on as several contexts, each with its own stack of masks, so
that producers and consumers meet at named barriers as they would on the hardware.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from spanlite_analytics.lab.audit.barriers import Barriers
from spanlite_analytics.lab.audit.flow import Graph, graph_of
from spanlite_analytics.lab.audit.ptx import Function, Instruction, Module, Variable
from spanlite_analytics.lab.audit.shared import SharedMemory
from spanlite_analytics.lab.audit.state import (
    REGION_BITS,
    WARP,
    Context,
    Join,
    Level,
    OutOfStepsError,
    Scenario,
    Watcher,
)
from spanlite_analytics.lab.audit.values import From, Ints, Mask, Numbers, Value, of_bits

#: Turns of a loop: one that counts known things is run whole, one that the input ends is not.
KNOWN_TURNS, OPEN_TURNS = 1100, 18


@dataclass(slots=True)
class Machine:
    """The state of a run."""

    module: Module
    entry: Function
    scenario: Scenario
    watchers: list[Watcher]
    execute: Callable[[Machine, Context, Level, Instruction, Mask], None]
    report: Callable[[str, Instruction, str], None]
    steps_left: int = 20_000
    registers: dict[str, dict[str, Value]] = field(default_factory=lambda: defaultdict(dict))
    #: Parameter space, by function, variable and offset.
    parameters: dict[tuple[str, str, int], Value] = field(default_factory=dict)
    #: Where a call's return value is kept: (caller, its variable) to (callee, its variable).
    returned: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    #: What a register was packed from, by function and register.
    parts: dict[tuple[str, str], tuple[Numbers, list[Value]]] = field(default_factory=dict)
    symbols: dict[str, tuple[str, int]] = field(default_factory=dict)
    shared_bytes: int = 0
    counter: int = 0
    contexts: list[Context] = field(default_factory=list)
    graphs: dict[str, Graph] = field(default_factory=dict)
    turns: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    #: Uniform branches on the input, and the ways they went.
    ways: dict[tuple[str, int], set[bool]] = field(default_factory=lambda: defaultdict(set))
    threads: int = 0
    exited: Mask = field(init=False)
    everyone: Mask = field(init=False)
    thread: tuple[Value, Value, Value] = field(init=False)
    lane: Value = field(init=False)
    barriers: Barriers = field(init=False)
    #: Stores seen, by region of global memory.
    versions: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    #: Lanes that a ballot named, by the number of its result.
    votes: dict[int, Ints] = field(default_factory=dict)
    shared: SharedMemory = field(init=False)
    #: 64-bit parameters that are numbers, not pointers; found when first asked for.
    counts: set[tuple[str, int]] | None = None

    def __post_init__(self) -> None:
        x, y, z = self.scenario.block
        self.threads = x * y * z
        ids = np.arange(self.threads, dtype=np.int64)
        self.exited = np.zeros(self.threads, np.bool_)
        self.everyone = np.ones(self.threads, np.bool_)
        parts = (ids % x, ids // x % y, ids // (x * y))
        self.thread = (
            of_bits(parts[0], From.THREAD),
            of_bits(parts[1], From.THREAD),
            of_bits(parts[2], From.THREAD),
        )
        self.lane = of_bits(ids % WARP, From.THREAD)
        self.barriers = Barriers(self.threads)
        self._place_variables()
        self.shared = SharedMemory(self.shared_bytes)

    def _place_variables(self) -> None:
        functions = [f for f in self.module.functions if f is self.entry or not f.is_entry]
        listed = [*self.module.variables, *(v for f in functions for v in f.variables)]
        region = 1000
        for variable in listed:
            if variable.space == "shared":
                self._place_shared(variable)
            elif variable.space == "local":
                self.symbols[variable.name] = ("local", 0)
            elif variable.space in ("global", "const"):
                region += 1
                self.symbols[variable.name] = (variable.space, region << REGION_BITS)

    def _place_shared(self, variable: Variable) -> None:
        if variable.name in self.symbols:
            return
        align = max(variable.align, 1)
        at = -(-self.shared_bytes // align) * align
        self.symbols[variable.name] = ("shared", at)
        # A dynamic array has no size here: it gets room enough for any.
        self.shared_bytes = at + (variable.size_bytes or 65536)

    # -- values -------------------------------------------------------------------------------

    def constant(self, value: int) -> Value:
        """The same known value in each thread."""
        return of_bits(np.full(self.threads, value, np.int64))

    def fresh(self) -> np.uint64:
        """A number that nothing else has."""
        self.counter += 1
        return np.uint64(self.counter * 7919 + self.scenario.seed * 1_000_003)

    def write(self, function: str, register: str, value: Value, mask: Mask) -> None:
        """Set a register in the threads of `mask`."""
        if register == "_":
            return
        bank = self.registers[function]
        old = bank.get(register)
        bank[register] = value if old is None or mask.all() else value.where(mask, old)

    # -- control ------------------------------------------------------------------------------

    def graph(self, function: Function) -> Graph:
        """The function's graph, made once."""
        if function.name not in self.graphs:
            self.graphs[function.name] = graph_of(function)
        return self.graphs[function.name]

    def run(self) -> None:
        """Run to the end of the block, or of the steps."""
        level = Level(self.entry, 0, len(self.entry.code), self.everyone.copy())
        self.contexts = [Context([level])]
        try:
            while self.contexts:
                ready = next((c for c in self.contexts if not c.blocked), None)
                if ready is None:
                    if not self._release():
                        return
                else:
                    self._run_context(ready)
        except OutOfStepsError:
            return

    def _run_context(self, context: Context) -> None:
        while not context.blocked:
            if not context.stack:
                self._finish(context)
                return
            level = context.stack[-1]
            level.mask = level.mask & ~self.exited
            if not level.mask.any() or level.at == level.until:
                self._pop(context)
                continue
            self._step(context, level)

    def _pop(self, context: Context) -> None:
        context.stack.pop()

    def _finish(self, context: Context) -> None:
        self.contexts.remove(context)
        join = context.join
        if join is None:
            return
        join.waiting -= 1
        if join.waiting == 0:
            join.parent.blocked = False

    def _step(self, context: Context, level: Level) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise OutOfStepsError
        instruction = level.function.code[level.at]
        mask = level.mask
        if instruction.name in ("bra", "brx"):
            self._branch(context, level, instruction)
            return
        if instruction.guard:
            guard = self.guard(level.function, instruction)
            mask = mask & guard
        level.at += 1
        if not mask.any():
            return
        for watcher in self.watchers:
            watcher.step(self, instruction, mask)
        self.execute(self, context, level, instruction, mask)

    def guard(self, function: Function, instruction: Instruction) -> Mask:
        """Which threads an instruction's guard lets through."""
        value = self.registers[function.name].get(instruction.guard)
        if value is None:
            return self.everyone
        return np.asarray((value.bits != 0) ^ instruction.negated)

    def leave(self, context: Context, level: Level, mask: Mask, whole: bool) -> None:
        """`ret` and `exit`: out of the function, or out of the kernel."""
        if whole or level.function is self.entry:
            self.exited = self.exited | mask
            self.after_exit()
            return
        base = next((i for i, s in reversed(list(enumerate(context.stack))) if s.is_call), 0)
        for entry in context.stack[base:]:
            entry.mask = entry.mask & ~mask

    def after_exit(self) -> None:
        """Barriers may be waiting for those that have just left."""
        for warps, waiting in self.barriers.complete(self.live_warps()):
            self._pass_barrier(warps, waiting)

    def live_warps(self) -> Mask:
        """Warps of which some thread is still there."""
        return self.by_warp(~self.exited)

    def by_warp(self, mask: Mask) -> Mask:
        """Whether any thread of each warp is in `mask`."""
        padded = np.zeros(-(-self.threads // WARP) * WARP, np.bool_)
        padded[: self.threads] = mask
        return np.asarray(padded.reshape(-1, WARP).any(axis=1))

    def wait(self, context: Context, instruction: Instruction, id_: int, count: int | None) -> None:
        """`bar.sync`: the context waits until the others are there."""
        mask = context.stack[-1].mask
        context.blocked = True
        self._arrive(instruction, id_, count, mask, context)

    def arrive(self, instruction: Instruction, id_: int, count: int | None, mask: Mask) -> None:
        """`bar.arrive`: the context goes on."""
        self._arrive(instruction, id_, count, mask, None)

    def _arrive(
        self, instruction: Instruction, id_: int, count: int | None, mask: Mask, who: Context | None
    ) -> None:
        self.barriers.arrive(instruction, id_, count, self.by_warp(mask), who)
        for warps, waiting in self.barriers.complete(self.live_warps()):
            self._pass_barrier(warps, waiting)

    def _pass_barrier(self, warps: Mask, waiting: list[Context]) -> None:
        for watcher in self.watchers:
            watcher.barrier(self, warps)
        for context in waiting:
            context.blocked = False

    def _release(self) -> bool:
        """Nobody can go on: let those go who wait at the end of a branch, else report."""
        joins = {id(c.join): c.join for c in self.contexts if c.join}
        for join in joins.values():
            if self._go_ahead(join):
                return True
        stuck = self.barriers.stuck()
        for instruction in stuck:
            self.report(
                "divergent-barrier",
                instruction,
                "some threads wait here, and the others never come: they have gone another way",
            )
        for warps, waiting in self.barriers.release():
            self._pass_barrier(warps, waiting)
        return bool(stuck)

    def _go_ahead(self, join: Join) -> bool:
        there = np.zeros(self.threads, np.bool_)
        for context in self.contexts:
            if context.join is join:
                there |= context.stack[0].mask
        parent = join.parent
        done = join.done & ~there & ~self.exited
        if not done.any():
            return False
        stack = [Level(s.function, s.at, s.until, s.mask & done, s.is_call) for s in parent.stack]
        for entry in parent.stack:
            entry.mask = entry.mask & ~done
        join.done = join.done & ~done
        if parent.join:
            parent.join.waiting += 1
        self.contexts.append(Context(stack, parent.join))
        return True

    # -- branches -----------------------------------------------------------------------------

    def _branch(self, context: Context, level: Level, instruction: Instruction) -> None:
        if instruction.name == "brx":
            self._many_ways(level, instruction)
            return
        target = level.function.labels.get(instruction.operands[0], len(level.function.code))
        if not instruction.guard:
            level.at = target
            return
        taken = self._outcome(level, instruction, target)
        self.part(context, level, instruction.index, {target: taken, level.at + 1: ~taken})

    def _many_ways(self, level: Level, instruction: Instruction) -> None:
        """`brx.idx`: one of the targets, by turns."""
        names = level.function.targets.get(instruction.operands[1], [])
        turn = self.turns[(level.function.name, instruction.index)]
        self.turns[(level.function.name, instruction.index)] += 1
        labels = level.function.labels
        chosen = [labels[n] for n in names if n in labels]
        end = len(level.function.code)
        level.at = chosen[(turn + self.scenario.seed) % len(chosen)] if chosen else end

    def _outcome(self, level: Level, instruction: Instruction, target: int) -> Mask:
        key = (level.function.name, instruction.index)
        value = self.registers[level.function.name].get(instruction.guard, self.constant(0))
        taken = (value.bits != 0) ^ instruction.negated
        inside = value.number[level.mask]
        uniform = bool((inside == inside[0]).all())
        open_ = value.origin & (From.PARAMETER | From.MEMORY | From.ATOMIC | From.BLOCK)
        self.turns[key] += 1
        if uniform and open_:
            if key in self.scenario.turned and self.turns[key] == 1:
                taken = ~taken
            self.ways[key].add(bool(taken[level.mask][0]))
        if self.turns[key] > (OPEN_TURNS if open_ else KNOWN_TURNS):
            if target <= instruction.index:
                return np.zeros_like(taken)
            if level.at + 1 <= instruction.index:
                return np.ones_like(taken)
            if self._leads_back(level.function, instruction.index + 1, instruction.index):
                return np.ones_like(taken)
        return np.asarray(taken)

    def _leads_back(self, function: Function, start: int, index: int) -> bool:
        """Whether the way straight on comes back here before anything else."""
        graph, at = self.graph(function), start
        for _ in range(400):
            if at >= graph.end or len(graph.successors[at]) != 1:
                return False
            at = graph.successors[at][0]
            if at <= index:
                return True
        return False

    def part(self, context: Context, level: Level, index: int, ways: dict[int, Mask]) -> None:
        """The threads of `level` go different ways, and meet again where the graph says."""
        there = {at: mask & level.mask for at, mask in ways.items()}
        there = {at: mask for at, mask in there.items() if mask.any()}
        if len(there) == 1:
            level.at = next(iter(there))
            return
        meet = self.graph(level.function).meets.get(index, len(level.function.code))
        arms = [(at, mask) for at, mask in there.items() if at != meet]
        masks = list(there.values())
        aligned = not (self.by_warp(masks[0]) & self.by_warp(masks[1])).any()
        level.at = meet
        if aligned and len(masks) == 2:
            self._fork(context, level, meet, arms)
            return
        if level.until == meet and not level.is_call and len(context.stack) > 1:
            context.stack.pop()
        for at, mask in sorted(arms, key=lambda arm: -arm[0]):
            context.stack.append(Level(level.function, at, meet, mask))

    def _fork(
        self, context: Context, level: Level, meet: int, arms: list[tuple[int, Mask]]
    ) -> None:
        join = Join(context, len(arms), level.mask.copy())
        context.blocked = True
        for at, mask in arms:
            self.contexts.append(Context([Level(level.function, at, meet, mask)], join))
