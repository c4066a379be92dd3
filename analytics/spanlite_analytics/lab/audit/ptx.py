"""Parses PTX: functions, their instructions with the source lines, labels and variables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from spanlite.errors import InputError


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a source file. Where code was inlined, the line of the kernel that called it."""

    file: str
    line: int


NOWHERE = Place("", 0)


@dataclass(slots=True)
class Instruction:
    """`@guard opcode operands;`, its place in the function, in the PTX and in the source."""

    index: int
    text: str
    guard: str
    negated: bool
    opcode: str
    operands: list[str]
    ptx_line: int
    place: Place
    words: tuple[str, ...] = field(init=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.words = tuple(self.opcode.split("."))
        self.name = self.words[0]

    def has(self, *words: str) -> bool:
        """Whether the opcode holds any of these words after its name."""
        return any(word in self.words[1:] for word in words)


@dataclass(frozen=True, slots=True)
class Variable:
    """A `.shared`, `.local`, `.global`, `.const` or `.param` variable."""

    name: str
    space: str
    type: str
    align: int
    size_bytes: int
    is_pointer: bool = False


@dataclass(slots=True)
class Function:
    """An entry or a device function."""

    name: str
    is_entry: bool
    parameters: list[Variable]
    returned: list[Variable]
    variables: list[Variable] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    #: Lists of labels that a `brx.idx` may go to.
    targets: dict[str, list[str]] = field(default_factory=dict)
    block: tuple[int, int, int] | None = None


@dataclass
class Module:
    """A PTX text."""

    functions: list[Function]
    variables: list[Variable]
    target: str
    lines: list[str]

    @property
    def entries(self) -> list[Function]:
        """The kernels."""
        return [f for f in self.functions if f.is_entry and f.code]

    @cached_property
    def by_name(self) -> dict[str, Function]:
        """Functions with a body."""
        return {f.name: f for f in self.functions if f.code}


_COMMENT = re.compile(r"//.*|/\*.*?\*/")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*inlined_at\s+(\d+)\s+(\d+))?")
_HEAD = re.compile(r"\.(entry|func)\b\s*(\([^)]*\))?\s*([\w$.]+)\s*(\(.*?\))?", re.DOTALL)
_VARIABLE = re.compile(
    r"\.(shared|local|global|const|param)\b(.*?)\.(b8|u8|s8|b16|u16|s16|f16|b32|u32|s32|f32|b64|u64|"
    r"s64|f64|b128|pred|texref|samplerref|surfref)\s+(?:\.ptr\b([^%\w]*(?:\.\w+\s*\d*\s*)*))?"
    r"([\w$%.]+)((?:\[\d*\])*)"
)
_LABEL = re.compile(r"^([\w$%.]+):(?!:)")
_BLOCK = re.compile(r"\.(?:reqntid|maxntid)\s+([\d,\s]+)")
_BITS = re.compile(r"(\d+)$")
_REGISTERS = re.compile(r"^\.(reg|pragma|loc|file|section|noreturn|alias|callprototype)\b")


def type_bytes(type_: str) -> int:
    """Bytes of a PTX type: `f32` is 4. A predicate counts 1."""
    found = _BITS.search(type_)
    return max(1, int(found.group(1)) // 8) if found else 1


def variables_of(text: str) -> list[Variable]:
    """All variables that a statement or a parameter list declares."""
    made = []
    for space, words, type_, pointer, name, dimensions in _VARIABLE.findall(text):
        count = 1
        for size in re.findall(r"\[(\d*)\]", dimensions):
            count *= int(size or 0)
        align = re.search(r"\.align\s+(\d+)", words)
        size_bytes = type_bytes(type_) * count
        alignment = int(align.group(1)) if align else type_bytes(type_)
        is_pointer = bool(pointer) or ".ptr" in words
        made.append(Variable(name, space, type_, alignment, size_bytes, is_pointer))
    return made


def split_operands(text: str) -> list[str]:
    """Splits at commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def parse(text: str, name: str = "PTX") -> Module:
    """Read a PTX text. Raises InputError where it is none."""
    if ".version" not in text or ".target" not in text:
        raise InputError(f"{name}: is not PTX: it lacks .version or .target")
    lines = text.replace("\0", "\n").split("\n")
    return _Parser(lines, name).parse()


class _Parser:
    """Goes through the lines once. PTX ends statements with `;`, which may come lines later."""

    def __init__(self, lines: list[str], name: str) -> None:
        self.lines = lines
        self.files = {int(n): path for line in lines for n, path in _FILE.findall(line)}
        target = next((m for line in lines if (m := re.search(r"\.target\s+(\w+)", line))), None)
        self.module = Module([], [], target.group(1) if target else "", lines)
        self.function: Function | None = None
        self.place = NOWHERE
        self.depth = 0
        self.pending = ""
        self.pending_line = 0

    def parse(self) -> Module:
        for number, raw in enumerate(self.lines, 1):
            line = _COMMENT.sub("", raw).strip()
            if line:
                self._line(line, number)
        return self.module

    def _line(self, line: str, number: int) -> None:
        if line.startswith((".loc ", ".loc\t")):
            self._locate(line)
        elif line.startswith((".file", ".version", ".target", ".address_size")):
            return
        elif self.function is None:
            self._outside(line, number)
        else:
            self._inside(line, number)

    def _locate(self, line: str) -> None:
        found = _LOC.search(line)
        if found:
            file, at, outer_file, outer_at = found.groups()
            self.place = Place(self.files.get(int(outer_file or file), ""), int(outer_at or at))

    def _outside(self, line: str, number: int) -> None:
        self.pending += line + "\n"
        if line.startswith(".section"):
            self.pending = ""
        if "{" in line and re.search(r"\.(entry|func)\b", self.pending):
            self._open(self.pending.split("{")[0])
            self.pending = ""
            rest = line.split("{", 1)[1].strip()
            if rest:
                self._inside(rest, number)
        elif line.endswith(";"):
            if not re.search(r"\.(entry|func)\b", self.pending):
                self.module.variables += variables_of(self.pending)
            self.pending = ""
        elif line == "}":
            self.pending = ""

    def _open(self, head: str) -> None:
        found = _HEAD.search(head)
        if found is None:
            return
        kind, returned, name, _ = found.groups()
        parameters = variables_of(head[found.start(3) :])
        block = _BLOCK.search(head)
        sizes = [int(n) for n in block.group(1).replace(",", " ").split()] if block else []
        self.function = Function(
            name,
            kind == "entry",
            parameters,
            variables_of(returned or ""),
            block=(*sizes, 1, 1)[:3] if sizes else None,  # type: ignore[arg-type]
        )
        self.place, self.depth = NOWHERE, 1
        self.module.functions.append(self.function)

    def _inside(self, line: str, number: int) -> None:
        """One line of a body: labels, braces, and statements up to their semicolon."""
        while line:
            if not self.pending:
                label = _LABEL.match(line)
                if label and self.function:
                    line = self._label(label.group(1), line[label.end() :].strip(), number)
                    continue
                if line[0] in "{}":
                    self._brace(line[0])
                    if self.function is None:
                        return
                    line = line[1:].strip()
                    continue
                self.pending_line = number
            statement, semicolon, line = line.partition(";")
            self.pending += (" " if self.pending else "") + statement.strip()
            line = line.strip()
            if semicolon:
                done, self.pending = self.pending, ""
                self._statement(done, self.pending_line)

    def _brace(self, letter: str) -> None:
        self.depth += 1 if letter == "{" else -1
        if self.depth == 0:
            self.function = None

    def _label(self, name: str, rest: str, number: int) -> str:
        assert self.function is not None
        if rest.startswith(".branchtargets"):
            listed, _, rest = rest.partition(";")
            self.function.targets[name] = split_operands(listed.removeprefix(".branchtargets"))
            return rest.strip()
        self.function.labels[name] = len(self.function.code)
        return rest

    def _statement(self, text: str, number: int) -> None:
        function = self.function
        assert function is not None
        if not text or _REGISTERS.match(text):
            return
        if text.startswith("."):
            function.variables += variables_of(text)
            return
        guard, negated = "", False
        if text.startswith("@"):
            word, _, text = text.partition(" ")
            negated, guard = word[1] == "!", word.lstrip("@!")
            text = text.strip()
        opcode, _, rest = text.partition(" ") if "\t" not in text else _at_blank(text)
        function.code.append(
            Instruction(
                len(function.code),
                " ".join(text.split()),
                guard,
                negated,
                opcode,
                split_operands(rest.strip()),
                number,
                self.place,
            )
        )


def _at_blank(text: str) -> tuple[str, str, str]:
    parts = text.split(None, 1)
    return parts[0], " ", parts[1] if len(parts) > 1 else ""
