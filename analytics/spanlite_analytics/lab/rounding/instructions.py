"""Type and rounding of floating-point instructions in PTX and SASS; where precision narrows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spanlite_analytics.lab.audit.ptx import Instruction, Module
from spanlite_analytics.lab.audit.sass import Sass, SassFunction

_MODES = {"rn", "rz", "rm", "rp", "rna", "rs", "rni", "rzi", "rmi", "rpi"}
_FLOATS = {
    "f64": "fp64",
    "f32": "fp32",
    "f32x2": "fp32",
    "f16": "fp16",
    "f16x2": "fp16",
    "bf16": "bf16",
    "bf16x2": "bf16",
    "tf32": "tf32",
    "e4m3": "e4m3",
    "e4m3x2": "e4m3",
    "e5m2": "e5m2",
    "e5m2x2": "e5m2",
}
#: Significant bits by format, to tell what narrows.
PRECISION = {"fp64": 53, "fp32": 24, "fp16": 11, "tf32": 11, "bf16": 8, "e4m3": 4, "e5m2": 3}
#: Arithmetic that rounds to nearest where it names no mode.
_ARITHMETIC = {"add", "sub", "mul", "fma", "mad", "div", "sqrt", "rcp"}
_MATRIX = {"mma", "wgmma", "wmma", "tcgen05"}


@dataclass(frozen=True, slots=True)
class Rounding:
    """How one instruction rounds. `mode` is empty where it is exact or not specified."""

    kernel: str
    file: str
    line: int
    opcode: str
    source: str
    target: str
    mode: str
    ftz: bool
    saturates: bool
    note: str

    @property
    def narrows(self) -> bool:
        """Whether the result has fewer significant bits than what went in."""
        return PRECISION.get(self.target, 99) < PRECISION.get(self.source, 0)


def of_module(module: Module) -> list[Rounding]:
    """Each floating-point instruction of a PTX module's kernels and functions."""
    return [
        found
        for function in module.functions
        for instruction in function.code
        if (found := _of_ptx(function.name, instruction)) is not None
    ]


def _of_ptx(kernel: str, instruction: Instruction) -> Rounding | None:
    types = [_FLOATS[w] for w in instruction.words if w in _FLOATS]
    if not types or instruction.name in ("ld", "st", "mov", "setp", "selp", "atom", "red", "ldu"):
        return None
    mode = next((w for w in instruction.words if w in _MODES), "")
    source, target = _ends(instruction, types)
    note = ""
    if instruction.has("approx", "full"):
        note = "approximation, not rounded correctly"
    elif instruction.name in _MATRIX:
        note = "sums in the accumulator's format; order and inner rounding are the hardware's"
    elif instruction.name in _ARITHMETIC and not mode:
        mode, note = "rn", "no mode named: to nearest, and may be fused with a neighbour"
    elif mode == "rs":
        note = "stochastic: needs sm_100a or later"
    return Rounding(
        kernel,
        instruction.place.file,
        instruction.place.line,
        instruction.opcode,
        source,
        target,
        mode,
        instruction.has("ftz"),
        instruction.has("sat", "satfinite"),
        note,
    )


def _ends(instruction: Instruction, types: list[str]) -> tuple[str, str]:
    """Formats in and out. `cvt` and matrix instructions name the result first."""
    if instruction.name == "cvt":
        integer = next(
            (w for w in reversed(instruction.words) if w[:1] in "usb" and w[1:].isdigit()), ""
        )
        if len(types) == 1 and integer:
            words = instruction.words
            to_integer = words.index(integer) < max(words.index(w) for w in words if w in _FLOATS)
            return (types[0], integer) if to_integer else (integer, types[0])
        return types[-1], types[0]
    if instruction.name in _MATRIX:
        return (types[1] if len(types) > 1 else types[0]), types[0]
    return types[-1], types[0]


_SASS_MODE = re.compile(r"\.(RN|RZ|RM|RP|TRUNC|FLOOR|CEIL|RS)\b")
_SASS_ARITHMETIC = {
    "FADD": "fp32",
    "FMUL": "fp32",
    "FFMA": "fp32",
    "FADD2": "fp32",
    "FMUL2": "fp32",
    "FFMA2": "fp32",
    "DADD": "fp64",
    "DMUL": "fp64",
    "DFMA": "fp64",
    "HADD2": "fp16",
    "HMUL2": "fp16",
    "HFMA2": "fp16",
}
_SASS_WORDS = {"TRUNC": "rz", "FLOOR": "rm", "CEIL": "rp"}
_SASS_FLOATS = {
    "F64": "fp64",
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "BF16_V2": "bf16",
    "TF32": "tf32",
    "E4M3": "e4m3",
    "E5M2": "e5m2",
}


def of_sass(functions: Iterable[SassFunction]) -> list[Rounding]:
    """Each floating-point instruction of machine code."""
    return [
        found
        for function in functions
        for code in function.code
        if (found := _of_sass(function.name, code)) is not None
    ]


def _of_sass(kernel: str, code: Sass) -> Rounding | None:
    words = code.opcode.split(".")
    floats = [_SASS_FLOATS[w] for w in words if w in _SASS_FLOATS]
    name, note = words[0], ""
    if name in _SASS_ARITHMETIC:
        source = target = floats[0] if floats and name.startswith("H") else _SASS_ARITHMETIC[name]
    elif name in ("F2F", "F2FP") and floats:
        target, source = floats[0], floats[1] if len(floats) > 1 else "fp32"
    elif name in ("F2I", "I2F", "I2FP", "FRND"):
        source, target = ("fp32", "integer") if name == "F2I" else ("integer", "fp32")
        if name == "FRND":
            source, target = "fp32", "fp32"
    elif name in ("HMMA", "HGMMA", "QGMMA", "DMMA", "QMMA"):
        target, source = (
            (floats[0] if floats else "fp32"),
            (floats[1] if len(floats) > 1 else "fp16"),
        )
        note = "matrix instruction: order and inner rounding are the hardware's"
    elif name == "MUFU":
        source, target, note = "fp32", "fp32", "approximation, not rounded correctly"
    else:
        return None
    found = _SASS_MODE.search(code.opcode)
    mode = (
        _SASS_WORDS.get(found.group(1), found.group(1).lower()) if found else ("" if note else "rn")
    )
    ftz, saturates = "FTZ" in words, "SAT" in words or "SATFINITE" in words
    return Rounding(
        kernel,
        code.place.file,
        code.place.line,
        code.opcode,
        source,
        target,
        mode,
        ftz,
        saturates,
        note,
    )


@dataclass(frozen=True, slots=True)
class Group:
    """Instructions of one kernel that round the same way."""

    kernel: str
    opcode: str
    source: str
    target: str
    mode: str
    ftz: bool
    saturates: bool
    count: int
    note: str


def grouped(found: Iterable[Rounding]) -> list[Group]:
    """By kernel and opcode, most frequent first."""
    counts = Counter(
        (r.kernel, r.opcode, r.source, r.target, r.mode, r.ftz, r.saturates, r.note) for r in found
    )
    return [
        Group(kernel, opcode, source, target, mode, ftz, saturates, count, note)
        for (kernel, opcode, source, target, mode, ftz, saturates, note), count in sorted(
            counts.items(), key=lambda item: (item[0][0], -item[1], item[0][1])
        )
    ]


def narrowing(found: Iterable[Rounding]) -> Iterator[Rounding]:
    """Where precision narrows, in the order of the code."""
    return (r for r in found if r.narrows)
