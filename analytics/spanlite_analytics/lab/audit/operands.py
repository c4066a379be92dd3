"""Reads and writes the operands of instructions: registers, constants, symbols, addresses."""

from __future__ import annotations

import re
import struct

import numpy as np

from spanlite_analytics.lab.audit.machine import Machine
from spanlite_analytics.lab.audit.ptx import Function, Variable, type_bytes
from spanlite_analytics.lab.audit.state import WARP
from spanlite_analytics.lab.audit.values import From, Value, mix, of_bits, unknown, wrapped

_TYPE = re.compile(r"^(b|u|s|f|bf|tf)(8|16|32|64|128)(x2)?$")
_HEX_FLOAT = re.compile(r"^0([fFdD])([0-9A-Fa-f]+)$")
_ADDRESS = re.compile(r"^([\w$%.]+)\s*(?:([+-])\s*(-?\w+))?$")
_AXIS = {"x": 0, "y": 1, "z": 2}
REGION_BITS = 40


def type_of(words: tuple[str, ...]) -> str:
    """The last type in an opcode, that of its operands; `b32` where it names none."""
    return next((w for w in reversed(words) if _TYPE.match(w)), "b32")


def is_float(type_: str) -> bool:
    """Whether a type is a floating-point one."""
    return type_[0] == "f" or type_.startswith(("bf", "tf"))


def width_of(type_: str) -> tuple[int, bool]:
    """Bits of a type, and whether it is signed."""
    return type_bytes(type_) * 8, type_.startswith("s")


def literal(text: str) -> int | None:
    """A constant's bits, or None where it is none."""
    hexadecimal = _HEX_FLOAT.match(text)
    if hexadecimal:
        return int(hexadecimal.group(2), 16)
    try:
        return int(text.rstrip("U"), 0)
    except ValueError:
        pass
    if re.match(r"^0[0-7]+U?$", text):
        return int(text.rstrip("U"), 8)
    try:
        return int(struct.unpack("<I", struct.pack("<f", float(text)))[0])
    except (ValueError, OverflowError):
        return None


def read(machine: Machine, function: Function, text: str, type_: str = "s64") -> Value:
    """An operand's value, cut to a type."""
    value = _raw(machine, function, text)
    width, signed = width_of(type_)
    if width >= 64 or type_.startswith("pred"):
        return value
    bits = wrapped(value.bits, width, signed)
    return Value(bits, value.known, value.number, value.origin)


def _raw(machine: Machine, function: Function, text: str) -> Value:
    text = text.strip()
    turned = text.startswith("!")
    text = text.lstrip("!")
    bank = machine.registers[function.name]
    if text in bank:
        value = bank[text]
        return of_turned(value) if turned else value
    if text.startswith("%") or text == "WARP_SZ":
        return special(machine, function, text)
    if text in machine.symbols:
        return machine.constant(machine.symbols[text][1])
    bits = literal(text)
    if bits is not None:
        return machine.constant(wrapped_int(bits))
    return undefined(machine, function, text)


def of_turned(value: Value) -> Value:
    """A predicate's opposite."""
    return Value(value.bits ^ 1, value.known, mix("turn", value.number), value.origin)


def wrapped_int(value: int) -> int:
    """As a signed 64-bit number; 32-bit constants with the top bit set stay positive here."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def undefined(machine: Machine, function: Function, text: str) -> Value:
    """A register that nothing has written: the same in all threads."""
    number = mix(f"{function.name}.{text}", np.zeros(machine.threads, np.uint64))
    return unknown(number, From.NOTHING)


def special(machine: Machine, function: Function, text: str) -> Value:
    """`%tid.x` and its like."""
    name, _, axis = text.lstrip("%").partition(".")
    scenario = machine.scenario
    at = _AXIS.get(axis, 0)
    if name == "tid":
        return machine.thread[at]
    if name == "ntid":
        return machine.constant(scenario.block[at])
    if name == "laneid":
        return machine.lane
    if name == "warpid":
        return of_bits(np.arange(machine.threads, dtype=np.int64) // WARP, From.THREAD)
    if name.startswith("lanemask"):
        return of_bits(_lane_mask(machine, name.removeprefix("lanemask_")), From.THREAD)
    if name == "ctaid":
        value = machine.constant(scenario.block_index if at == 0 else min(1, scenario.grid - 1))
        return Value(value.bits, value.known, value.number, From.BLOCK)
    if name == "nctaid":
        value = machine.constant(scenario.grid)
        return Value(value.bits, value.known, value.number, From.PARAMETER)
    if text == "WARP_SZ":
        return machine.constant(WARP)
    if name in ("clock", "clock64", "globaltimer"):
        fresh = np.full(machine.threads, machine.fresh(), np.uint64)
        return unknown(mix(name, machine.lane.number, fresh), From.MEMORY)
    return undefined(machine, function, text)


def _lane_mask(machine: Machine, which: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    lane = machine.lane.bits
    one = np.int64(1) << lane
    below = one - 1
    masks = {
        "eq": one,
        "lt": below,
        "le": below | one,
        "gt": ~(below | one) & 0xFFFFFFFF,
        "ge": ~below & 0xFFFFFFFF,
    }
    return masks.get(which, one)


def vector(text: str) -> list[str]:
    """The registers of `{a, b}`, or the one."""
    if text.startswith("{"):
        return [part.strip() for part in text.strip("{}").split(",")]
    return [text]


def split_address(text: str) -> tuple[str, int]:
    """`[base+offset]` in its parts."""
    inner = text.strip().removeprefix("[").removesuffix("]").strip()
    inner = inner.split(",")[0].strip()
    found = _ADDRESS.match(inner)
    if not found:
        return inner, 0
    base, sign, offset = found.groups()
    distance = int(offset, 0) if offset else 0
    return base, -distance if sign == "-" else distance


def address(machine: Machine, function: Function, text: str) -> Value:
    """The address that `[base+offset]` means."""
    base, offset = split_address(text)
    value = _raw(machine, function, base)
    if offset == 0:
        return value
    moved = value.bits + offset
    if value.known.all():
        return of_bits(moved, value.origin)
    number = mix("offset", value.number, np.full_like(value.number, np.uint64(offset % 2**64)))
    known = of_bits(moved, value.origin)
    return known.where(value.known, unknown(number, value.origin))


def parameter(
    machine: Machine, function: Function, name: str, offset: int, type_: str
) -> Value | None:
    """A parameter: made up for an entry, else what the caller gave."""
    owner, variable = machine.returned.get((function.name, name), (function.name, name))
    given = machine.parameters.get((owner, variable, offset))
    if given is not None or function is not machine.entry:
        return given
    declared = next((p for p in function.parameters if p.name == name), None)
    if declared is None:
        return None
    made = made_up(machine, function, declared, offset, type_)
    machine.parameters[(owner, variable, offset)] = made
    return made


def made_up(
    machine: Machine, function: Function, declared: Variable, offset: int, type_: str
) -> Value:
    """A pointer gets a region of its own, an integer the scenario's number."""
    place = function.parameters.index(declared)
    number = mix(f"parameter {place} {offset}", np.zeros(machine.threads, np.uint64))
    if is_float(type_) or type_bytes(type_) > 8:
        return unknown(number, From.PARAMETER)
    if type_bytes(type_) == 8 and (declared.name, offset) not in counts(machine, function):
        bits = (place * 64 + offset // 8 + 1) << REGION_BITS
    else:
        bits = machine.scenario.integer
    value = machine.constant(bits)
    return Value(value.bits, value.known, value.number, From.PARAMETER)


def counts(machine: Machine, function: Function) -> set[tuple[str, int]]:
    """64-bit parameters that are compared or multiplied: they are numbers, not pointers."""
    if machine.counts is None:
        machine.counts = _find_counts(function)
    return machine.counts


def _find_counts(function: Function) -> set[tuple[str, int]]:
    loaded: dict[str, tuple[str, int]] = {}
    found: set[tuple[str, int]] = set()
    for instruction in function.code:
        if instruction.name == "ld" and instruction.has("param"):
            loaded[instruction.operands[0]] = split_address(instruction.operands[1])
        elif instruction.name in (
            "setp",
            "mul",
            "mad",
            "shl",
            "shr",
            "cvt",
            "div",
            "rem",
            "min",
            "max",
        ):
            found |= {loaded[o] for o in instruction.operands[1:] if o in loaded}
    return found
