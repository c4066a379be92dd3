"""What a register holds in each thread of a block, as far as it can be known.

A value that the code computes from thread ids and constants is known exactly. One that comes from
memory is not; it gets a number of its own, made from where it came from, and what is computed from
it gets a number made from its inputs' (value numbering). Equal numbers mean equal values, so the
rules can tell that a value is the same in a whole warp, or that a shuffle brought back what was
there, without knowing it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Numbers = NDArray[np.uint64]
Mask = NDArray[np.bool_]

_P = np.uint64(0x9E3779B97F4A7C15)
_Q = np.uint64(0xBF58476D1CE4E5B9)
_S29, _S32 = np.uint64(29), np.uint64(32)


class From(IntFlag):
    """What a value depends on."""

    NOTHING = 0
    THREAD = 1
    BLOCK = 2
    PARAMETER = 4
    MEMORY = 8
    ATOMIC = 16


@dataclass(slots=True, frozen=True)
class Value:
    """A register: per thread its bits (where `known`), its value number, and its origins."""

    bits: Ints
    known: Mask
    number: Numbers
    origin: From

    def where(self, mask: Mask, old: Value) -> Value:
        """This value in the threads of `mask`, `old` in the others."""
        return Value(
            np.where(mask, self.bits, old.bits),
            np.where(mask, self.known, old.known),
            np.where(mask, self.number, old.number),
            self.origin | old.origin,
        )


@lru_cache(maxsize=4096)
def tag(name: str) -> np.uint64:
    """A number for a word; the same in every run."""
    return np.uint64(zlib.crc32(name.encode()) * 0x100000001 + 0x51ED)


def mix(name: str, *numbers: Numbers) -> Numbers:
    """A number made from others, in order."""
    made = np.full_like(numbers[0], tag(name))
    for number in numbers:
        made = (made ^ number) * _P
        made ^= made >> _S29
        made *= _Q
        made ^= made >> _S32
    return made


def of_bits(bits: Ints, origin: From = From.NOTHING) -> Value:
    """A known value; its number follows from its bits."""
    number = mix("bits", bits.view(np.uint64))
    return Value(bits, np.ones(bits.shape, np.bool_), number, origin)


def unknown(number: Numbers, origin: From) -> Value:
    """A value known by its number alone; its bits are made up from it, small and positive."""
    bits = ((number >> np.uint64(33)) & np.uint64(0xFF)).view(np.int64)
    return Value(bits, np.zeros(number.shape, np.bool_), number, origin)


def blend(bits: Ints, number: Numbers, known: Mask, origin: From) -> Value:
    """Known in the threads of `known`; elsewhere it goes by `number`."""
    if known.all():
        return of_bits(bits, origin)
    made_up = unknown(number, origin)
    if not known.any():
        return made_up
    return of_bits(bits, origin).where(known, made_up)


def wrapped(bits: Ints, width: int, signed: bool) -> Ints:
    """Cut to `width` bits, then extended by sign or by zeros."""
    if width >= 64:
        return bits
    cut = bits & ((1 << width) - 1)
    if signed:
        half = 1 << (width - 1)
        return (cut ^ half) - half
    return cut


def _shift(bits: Ints, amount: Ints, width: int) -> tuple[Ints, Mask]:
    amount = amount & 0xFFFFFFFF
    return np.minimum(amount, 63), amount >= width


def _shl(a: Ints, b: Ints, width: int) -> Ints:
    by, out = _shift(a, b, width)
    return np.where(out, 0, a << by)


def _shr(a: Ints, b: Ints, width: int, signed: bool) -> Ints:
    by, out = _shift(a, b, width)
    if signed:
        return np.where(out, a >> 63, a >> by)
    moved = (a.view(np.uint64) >> by.view(np.uint64)).view(np.int64)
    return np.where(out, 0, moved)


def _divide(a: Ints, b: Ints) -> Ints:
    """Towards zero, as PTX does; by zero gives all ones."""
    safe = np.where(b == 0, 1, b)
    quotient = np.abs(a) // np.abs(safe) * np.sign(a) * np.sign(safe)
    return np.where(b == 0, -1, quotient)


def _high(a: Ints, b: Ints, width: int) -> Ints:
    if width <= 32:
        return (a * b) >> width
    product = a.astype(object) * b.astype(object)
    return np.array([int(p) >> 64 for p in product], dtype=np.int64)


def _popc(a: Ints, width: int) -> Ints:
    return np.bitwise_count(wrapped(a, width, False)).astype(np.int64)


def _bfind(a: Ints, width: int) -> Ints:
    cut = wrapped(a, width, False).view(np.uint64)
    return np.array([int(v).bit_length() - 1 for v in cut], dtype=np.int64)


def _brev(a: Ints, width: int) -> Ints:
    cut = wrapped(a, width, False).view(np.uint64)
    return np.array([int(f"{int(v):0{width}b}"[::-1], 2) for v in cut], np.uint64).view(np.int64)


def _field(a: Ints, at: Ints, length: Ints) -> Ints:
    size = np.minimum(length & 0xFF, 63)
    moved = (a.view(np.uint64) >> np.minimum(at & 0xFF, 63).view(np.uint64)).view(np.int64)
    return moved & ((np.int64(1) << size) - 1)


_BINARY: dict[str, Callable[[Ints, Ints], Ints]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "min": np.minimum,
    "max": np.maximum,
    "div": _divide,
    "rem": lambda a, b: np.where(b == 0, a, a - _divide(a, b) * b),
}
COMMUTATIVE = {"add", "mul", "min", "max", "and", "or", "xor"}
_COMPARE: dict[str, Callable[[Ints, Ints], Mask]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
#: How a comparison is said by another one: (the other, operands swapped, result turned).
_CANONICAL = {
    "eq": ("eq", False, False),
    "ne": ("eq", False, True),
    "lt": ("lt", False, False),
    "ge": ("lt", False, True),
    "gt": ("lt", True, False),
    "le": ("lt", True, True),
}


def integer(
    name: str, words: tuple[str, ...], width: int, signed: bool, a: list[Ints]
) -> Ints | None:
    """An integer instruction on known bits; None where this one is not modelled."""
    if name in _BINARY and len(a) == 2:
        return _BINARY[name](a[0], a[1])
    if name in ("mul", "mad", "mul24", "mad24"):
        high = "hi" in words
        product = _high(a[0], a[1], width) if high else a[0] * a[1]
        return product + a[2] if len(a) > 2 else product
    if name == "shl":
        return _shl(a[0], a[1], width)
    if name == "shr":
        return _shr(a[0], a[1], width, signed)
    if name == "bfe":
        return _field(a[0], a[1], a[2])
    if name == "not":
        return ~a[0]
    if name in ("neg", "abs"):
        return -a[0] if name == "neg" else np.abs(a[0])
    if name == "popc":
        return _popc(a[0], width)
    if name == "bfind":
        return _bfind(a[0], width)
    if name == "clz":
        return width - 1 - _bfind(a[0], width)
    if name == "brev":
        return _brev(a[0], width)
    if name == "lop3":
        return _lop3(a)
    if name == "shf":
        return _funnel(words, a)
    return None


def _lop3(a: list[Ints]) -> Ints:
    table, made = int(a[3][0]), np.zeros_like(a[0])
    for row in range(8):
        if table >> row & 1:
            parts = [x if row >> (2 - place) & 1 else ~x for place, x in enumerate(a[:3])]
            made |= parts[0] & parts[1] & parts[2]
    return made


def _funnel(words: tuple[str, ...], a: list[Ints]) -> Ints:
    both = (a[0] & 0xFFFFFFFF) | (a[1] << 32)
    by = a[2] & 31 if "wrap" in words else np.minimum(a[2] & 0xFFFFFFFF, 32)
    if "l" in words:
        return _shr(both, 32 - by, 64, False)
    return _shr(both, by, 64, False)


_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def _against_constant(name: str, a: Value, b: Value) -> tuple[str, Value, Value]:
    """x > 0 and x < 1 toss one coin: the constant goes to the right, and < and >= are left."""
    if a.known.all() and not b.known.all():
        name, a, b = _SWAPPED[name], b, a
    if b.known.all() and not a.known.all() and name in ("gt", "le"):
        return ("ge" if name == "gt" else "lt"), a, of_bits(b.bits + 1, b.origin)
    return name, a, b


def compare(name: str, a: Value, b: Value, is_float: bool = False) -> Value:
    """A comparison. Where it is not known, a coin is tossed: one for the same operands."""
    plain = name.removesuffix("u") if name.endswith("u") and name[:-1] in _CANONICAL else name
    plain = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(plain, plain)
    if not is_float and plain in _SWAPPED:
        plain, a, b = _against_constant(plain, a, b)
    known = a.known & b.known
    other, swapped, turned = _CANONICAL.get(plain, ("eq", False, False))
    left, right = (b, a) if swapped else (a, b)
    if other == "eq":
        left_n = np.minimum(left.number, right.number)
        right_n = np.maximum(left.number, right.number)
    else:
        left_n, right_n = left.number, right.number
    number = mix(other, left_n, right_n)
    coin = (number >> np.uint64(40)) & np.uint64(1)
    # The same value on both sides is no toss-up.
    coin = np.where(left_n == right_n, np.uint64(other == "eq"), coin)
    guess = coin.astype(np.bool_) ^ turned
    result = np.where(known, _COMPARE[plain](a.bits, b.bits), guess) if plain in _COMPARE else guess
    made = of_bits(result.astype(np.int64), a.origin | b.origin)
    number = np.where(known, made.number, mix("turned" if turned else "straight", number))
    return Value(made.bits, known, number, made.origin)
