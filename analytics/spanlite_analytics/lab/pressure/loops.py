"""Loops of a function, and what they are made of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from spanlite_analytics.lab.pressure.code import Instruction, Routine
from spanlite_analytics.lab.pressure.pipes import flops_of, kind_of


@dataclass(frozen=True, slots=True)
class Loop:
    """Instructions from a loop's first to its branch back. `depth` 1: within no other."""

    code: tuple[Instruction, ...]
    depth: int
    innermost: bool

    @property
    def start(self) -> int:
        """Offset of the first instruction."""
        return self.code[0].offset

    @property
    def end(self) -> int:
        """Offset of the branch back."""
        return self.code[-1].offset

    @property
    def flops(self) -> int:
        """Floating-point operations of a thread in a turn; tensor cores' too."""
        return sum(flops_of(i) for i in self.code)

    @property
    def live(self) -> int:
        """Most registers alive at once within."""
        return max(i.live for i in self.code)

    @property
    def lines(self) -> tuple[str, int, int]:
        """The file that most of it comes from, and its first and last line there."""
        files = Counter(i.place.file for i in self.code if i.place.line)
        if not files:
            return "", 0, 0
        file = files.most_common(1)[0][0]
        numbers = [i.place.line for i in self.code if i.place.file == file and i.place.line]
        return file, min(numbers), max(numbers)

    def mix(self) -> dict[str, int]:
        """Instructions by kind, the most first."""
        return dict(Counter(kind_of(i) for i in self.code).most_common())

    def unknown_branches(self) -> int:
        """Branches within that some warps take: the model runs what lies between them."""
        return sum(i.target is not None and i.name == "BRA" for i in self.code[:-1])


def loops_of(routine: Routine) -> list[Loop]:
    """Loops in the order of the code. One with several branches back is one loop."""
    ends: dict[int, int] = {}
    exits = [code.offset for code in routine.code if code.name == "EXIT" and not code.guard]
    for code in routine.code:
        # An endless loop onto itself is the padding behind a function; a branch over its exit
        # comes back from what was put out of line.
        start = code.offset if code.target is None or code.name != "BRA" else code.target
        if start < code.offset and not any(start <= place <= code.offset for place in exits):
            ends[start] = max(code.offset, ends.get(start, 0))
    spans = sorted(ends.items())
    made = []
    for start, end in spans:
        depth = sum(s <= start and end <= e for s, e in spans)
        inner = not any(start <= s and e <= end for s, e in spans if (s, e) != (start, end))
        body = tuple(i for i in routine.code if start <= i.offset <= end)
        made.append(Loop(body, depth, inner))
    return made


def main_loop(routine: Routine) -> Loop | None:
    """The innermost loop in which most is likely to happen: the deepest, then the longest.

    None where the function has no loop.
    """
    inner = [loop for loop in loops_of(routine) if loop.innermost]
    return max(inner, key=lambda loop: (loop.depth, len(loop.code)), default=None)


def whole(routine: Routine) -> Loop:
    """The straight way through a function without loops, as if it were repeated."""
    code = routine.code
    last = next((n for n, i in enumerate(code) if i.name == "EXIT" and not i.guard), len(code) - 1)
    return Loop(tuple(code[: last + 1]), 0, True)
