"""Parses SASS as nvdisasm writes it, with lines of source and PTX; rules on SASS alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from spanlite_analytics.lab.audit.findings import Finding
from spanlite_analytics.lab.audit.ptx import NOWHERE, Place

_SECTION = re.compile(r"^\.text\.([\w$.]+):")
_FILE = re.compile(r'//## File "([^"]*)", line (\d+)')
_CODE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_PTX = ".nv_debug_ptx_txt"


@dataclass(frozen=True, slots=True)
class Sass:
    """One machine instruction, and the lines it comes from; `ptx_line` 0: not known."""

    offset: int
    guard: str
    opcode: str
    operands: str
    place: Place
    ptx_line: int

    @property
    def name(self) -> str:
        """The opcode before its first dot."""
        return self.opcode.split(".")[0]

    def __str__(self) -> str:
        return " ".join(part for part in (self.guard, self.opcode, self.operands) if part)


@dataclass(slots=True)
class SassFunction:
    """A function's machine code."""

    name: str
    code: list[Sass] = field(default_factory=list)


def parse_sass(text: str) -> list[SassFunction]:
    """Functions of `nvdisasm -c -g -gp`."""
    functions: list[SassFunction] = []
    place, ptx_line = NOWHERE, 0
    for line in text.splitlines():
        section = _SECTION.match(line)
        if section:
            functions.append(SassFunction(section.group(1)))
            place, ptx_line = NOWHERE, 0
            continue
        located = _FILE.search(line)
        if located:
            file, number = located.group(1), int(located.group(2))
            if file == _PTX:
                ptx_line = number
            else:
                place = Place(file, number)
            continue
        found = _CODE.search(line)
        if found and functions:
            offset, guard, opcode, operands = found.groups()
            functions[-1].code.append(
                Sass(int(offset, 16), guard or "", opcode, operands, place, ptx_line)
            )
    return functions


def lines_by_ptx(functions: list[SassFunction]) -> dict[int, Place]:
    """The source line of each PTX line that left machine code."""
    return {s.ptx_line: s.place for f in functions for s in f.code if s.ptx_line and s.place.line}


def sass_findings(functions: list[SassFunction]) -> Iterator[Finding]:
    """What machine code alone shows: local memory, and scopes."""
    for function in functions:
        local = [s for s in function.code if s.name in ("LDL", "STL")]
        if local:
            stores = sum(s.name == "STL" for s in local)
            first = local[0]
            yield _finding(
                "local-memory",
                function,
                first,
                f"{stores} stores to local memory and {len(local) - stores} loads from it",
            )
        for code in function.code:
            if code.name in ("ATOM", "ATOMG", "RED", "REDG", "MEMBAR") and ".SYS" in code.opcode:
                yield _finding("scope-wide", function, code, "of system scope")


def _finding(rule: str, function: SassFunction, code: Sass, evidence: str) -> Finding:
    return Finding(
        rule, function.name, code.place.file, code.place.line, evidence, code.ptx_line, str(code)
    )


#: Kinds of instruction that a programmer counts on, by opcode.
_KINDS = {
    "LDG": "global loads",
    "STG": "global stores",
    "LDS": "shared loads",
    "STS": "shared stores",
    "LDL": "local loads",
    "STL": "local stores",
    "LD": "generic loads",
    "ST": "generic stores",
    "ATOM": "atomics",
    "ATOMG": "atomics",
    "ATOMS": "atomics",
    "RED": "atomics",
    "REDG": "atomics",
    "BAR": "barriers",
    "SHFL": "shuffles",
    "MEMBAR": "fences",
    "FADD": "float adds and multiplies",
    "FMUL": "float adds and multiplies",
    "FFMA": "fused multiply-adds",
    "DADD": "double adds and multiplies",
    "DMUL": "double adds and multiplies",
    "DFMA": "double fused multiply-adds",
}


@dataclass(frozen=True, slots=True)
class Change:
    """What optimisation made of one kind of instruction at one line."""

    kernel: str
    file: str
    line: int
    kind: str
    before: int
    after: int

    @property
    def what(self) -> str:
        """In a word."""
        if self.after == 0:
            return "removed"
        return "merged" if self.after < self.before else "multiplied"


def changes(plain: list[SassFunction], optimised: list[SassFunction]) -> list[Change]:
    """Line by line, what -O3 removed, merged or multiplied against -O0."""
    before, after = _counted(plain), _counted(optimised)
    made = []
    for key in sorted(set(before) | set(after)):
        if before[key] != after[key]:
            kernel, file, line, kind = key
            made.append(Change(kernel, file, line, kind, before[key], after[key]))
    return made


def _counted(functions: list[SassFunction]) -> Counter[tuple[str, str, int, str]]:
    return Counter(
        (f.name, s.place.file, s.place.line, _KINDS[s.name])
        for f in functions
        for s in f.code
        if s.name in _KINDS
    )
