"""Control-flow graph of a function: successors, where branches come together again, loops."""

from __future__ import annotations

from dataclasses import dataclass

from spanlite_analytics.lab.audit.ptx import Function, Instruction

_ENDS = {"ret", "exit", "trap"}


@dataclass(slots=True)
class Graph:
    """By index of instruction; `len(code)` stands for the end."""

    successors: list[list[int]]
    #: For each instruction that may branch, where all its ways meet again.
    meets: dict[int, int]
    #: First instruction of the basic block that holds the instruction.
    block_of: list[int]

    @property
    def end(self) -> int:
        """The end's index."""
        return len(self.successors)


def graph_of(function: Function) -> Graph:
    """The graph of a function's code."""
    code = function.code
    successors = [_next(i, function) for i in code]
    starts = {0} | {t for i, s in enumerate(successors) if s != [i + 1] for t in (*s, i + 1)}
    starts |= set(function.labels.values())
    block_of, first = [], 0
    for index in range(len(code)):
        first = index if index in starts else first
        block_of.append(first)
    return Graph(successors, _meets(successors), block_of)


def _next(instruction: Instruction, function: Function) -> list[int]:
    after = instruction.index + 1
    if instruction.name == "bra":
        target = function.labels.get(instruction.operands[0], len(function.code))
        return sorted({target, after}) if instruction.guard else [target]
    if instruction.name == "brx":
        names = function.targets.get(instruction.operands[1], [])
        return sorted({function.labels[n] for n in names if n in function.labels})
    if instruction.name in _ENDS:
        return [len(function.code), after] if instruction.guard else [len(function.code)]
    return [after]


def _meets(successors: list[list[int]]) -> dict[int, int]:
    """Immediate post-dominators of the branches (Cooper, Harvey, Kennedy; reverse graph)."""
    end = len(successors)
    before: list[list[int]] = [[] for _ in range(end + 1)]
    for index, after in enumerate(successors):
        for target in after:
            before[target].append(index)
    order, seen, stack = [], {end}, [(end, iter(before[end]))]
    while stack:
        node, rest = stack[-1]
        advance = next((n for n in rest if n not in seen), None)
        if advance is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(advance)
            stack.append((advance, iter(before[advance])))
    rank = {node: place for place, node in enumerate(order)}
    dominator = {end: end}
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            chosen: int | None = None
            for target in successors[node]:
                if target in dominator:
                    chosen = target if chosen is None else _common(chosen, target, dominator, rank)
            if chosen is not None and dominator.get(node) != chosen:
                dominator[node] = chosen
                changed = True
    return {i: dominator.get(i, end) for i, after in enumerate(successors) if len(after) > 1}


def _common(a: int, b: int, dominator: dict[int, int], rank: dict[int, int]) -> int:
    while a != b:
        while rank[a] < rank[b]:
            a = dominator[a]
        while rank[b] < rank[a]:
            b = dominator[b]
    return a


def endless_loops(graph: Graph) -> list[int]:
    """First instructions of the reachable parts from which the end cannot be reached."""
    before: list[list[int]] = [[] for _ in range(graph.end + 1)]
    for index, after in enumerate(graph.successors):
        for target in after:
            before[target].append(index)
    ends, todo = {graph.end}, [graph.end]
    while todo:
        for index in before[todo.pop()]:
            if index not in ends:
                ends.add(index)
                todo.append(index)
    reached, todo = {0}, [0]
    while todo:
        node = todo.pop()
        for target in graph.successors[node] if node < graph.end else ():
            if target not in reached:
                reached.add(target)
                todo.append(target)
    stuck = sorted(reached - ends)
    return [i for i in stuck if i - 1 not in stuck]
