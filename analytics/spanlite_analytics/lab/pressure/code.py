"""Machine code with what the compiler wrote into it for the scheduler, and the live registers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from spanlite_analytics.lab.audit.ptx import NOWHERE, Place
from spanlite_analytics.lab.audit.sass import parse_sass
from spanlite_analytics.lab.toolchain import disassemble, run_tool

_SECTION = re.compile(r"^\.text\.([\w$.]+):")
_LABEL = re.compile(r"^(\.L_[\w]+):")
_CODE = re.compile(
    r"/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;\s*/\* 0x([0-9a-f]+) \*/"
)
_ENCODING = re.compile(r"^\s+/\* 0x([0-9a-f]{16}) \*/")
_TARGET = re.compile(r"`\((\.L_\w+)\)")
_LIVE = re.compile(r"/\*([0-9a-f]{4,})\*/.*//\s*\|\s*(\d*)\s*\|")
#: Where the scheduler's bits begin in the upper half of an instruction.
_CONTROL_SHIFT = 41
NO_BARRIER = 7


@dataclass(frozen=True, slots=True)
class Control:
    """What the compiler tells the scheduler; scoreboards are numbered 0 to 5."""

    #: Clocks until the warp may issue its next instruction.
    stall: int
    #: Scoreboard that is set until the result is there; NO_BARRIER: none.
    write: int
    #: Scoreboard that is set until the operands have been read.
    read: int
    #: Scoreboards, one bit each, that must be clear before this instruction.
    wait: int

    @classmethod
    def of(cls, upper: int) -> Control:
        """From the upper 64 bits of an instruction of compute capability 7.0 or later."""
        bits = upper >> _CONTROL_SHIFT
        return cls(bits & 15, bits >> 5 & 7, bits >> 8 & 7, bits >> 11 & 63)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction; `live` general registers hold values there."""

    offset: int
    guard: str
    opcode: str
    operands: str
    control: Control
    target: int | None = None
    live: int = 0
    place: Place = NOWHERE

    @property
    def name(self) -> str:
        """The opcode before its first dot."""
        return self.opcode.split(".")[0]

    @property
    def modifiers(self) -> list[str]:
        """The rest of the opcode."""
        return self.opcode.split(".")[1:]

    def __str__(self) -> str:
        return " ".join(part for part in (self.guard, self.opcode, self.operands) if part)


@dataclass(slots=True)
class Routine:
    """A function's machine code in order."""

    name: str
    code: list[Instruction]

    @property
    def peak(self) -> Instruction:
        """The first instruction at which the most registers are alive."""
        return max(self.code, key=lambda i: (i.live, -i.offset))

    def spills(self) -> tuple[int, int]:
        """Stores to local memory, and loads from it."""
        names = [i.name for i in self.code]
        return names.count("STL"), names.count("LDL")


def read_code(cubin: bytes, pattern: str = "", lines: bool = True) -> list[Routine]:
    """The functions of a cubin whose name holds `pattern`, with lines and live registers.

    `lines` False leaves out both: one run of the disassembler instead of three. Raises
    InputError where the disassembler refuses the cubin, ServiceError where it is missing.
    """
    text = run_tool("nvdisasm", ("-c", "-hex", "{in}"), cubin, ".cubin").words
    found = [r for r in parse_code(text) if pattern.lower() in r.name.lower() and r.code]
    if lines:
        places = {
            (function.name, s.offset): s.place
            for function in parse_sass(disassemble(cubin))
            for s in function.code
        }
        words = ("-c", "-plr", "-lrm", "count", "{in}")
        live = parse_live(run_tool("nvdisasm", words, cubin, ".cubin").words)
        for routine in found:
            routine.code = [_placed(i, routine.name, places, live) for i in routine.code]
    return found


def _placed(
    code: Instruction,
    function: str,
    places: dict[tuple[str, int], Place],
    live: dict[tuple[str, int], int],
) -> Instruction:
    key = (function, code.offset)
    return Instruction(
        code.offset,
        code.guard,
        code.opcode,
        code.operands,
        code.control,
        code.target,
        live.get(key, 0),
        places.get(key, NOWHERE),
    )


def parse_code(text: str) -> list[Routine]:
    """What `nvdisasm -c -hex` prints."""
    return [_routine(name, lines) for name, lines in _sections(text)]


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", list[str]()
    for line in text.splitlines():
        section = _SECTION.match(line)
        if section:
            if name:
                yield name, lines
            name, lines = section.group(1), []
        elif line.startswith("//-----") and name:
            yield name, lines
            name = ""
        elif name:
            lines.append(line)
    if name:
        yield name, lines


def _routine(name: str, lines: list[str]) -> Routine:
    labels: dict[str, int] = {}
    waiting: list[str] = []
    parts: list[tuple[re.Match[str], int]] = []
    pending: re.Match[str] | None = None
    for line in lines:
        label = _LABEL.match(line)
        if label:
            waiting.append(label.group(1))
            continue
        found = _CODE.search(line)
        if found:
            labels.update(dict.fromkeys(waiting, int(found.group(1), 16)))
            waiting, pending = [], found
        elif pending is not None and (upper := _ENCODING.match(line)):
            parts.append((pending, int(upper.group(1), 16)))
            pending = None
    return Routine(name, [_instruction(found, upper, labels) for found, upper in parts])


def _instruction(found: re.Match[str], upper: int, labels: dict[str, int]) -> Instruction:
    offset, guard, opcode, operands, _ = found.groups()
    target = _TARGET.search(operands)
    return Instruction(
        int(offset, 16),
        guard or "",
        opcode,
        operands,
        Control.of(upper),
        labels.get(target.group(1)) if target else None,
    )


def parse_live(text: str) -> dict[tuple[str, int], int]:
    """Live general registers by function and offset: `nvdisasm -c -plr -lrm count`."""
    made: dict[tuple[str, int], int] = {}
    name = ""
    for line in text.splitlines():
        section = _SECTION.match(line)
        if section:
            name = section.group(1)
            continue
        found = _LIVE.search(line)
        if found:
            made[name, int(found.group(1), 16)] = int(found.group(2) or 0)
    return made
