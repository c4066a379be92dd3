"""The floating-point formats of Hopper and Blackwell, by their definitions."""

from __future__ import annotations

from dataclasses import dataclass

from spanlite.errors import UsageError


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format: `1 + exponent + fraction` bits.

    With `has_infinity` the top exponent holds infinities and NaNs, as IEEE 754 has it. Without,
    only the pattern of all ones is NaN and the rest of the top exponent are numbers (E4M3).
    """

    name: str
    exponent_bits: int
    fraction_bits: int
    has_infinity: bool = True
    #: Bits of the container below the fraction: a TF32 number is kept in 32 bits.
    padding_bits: int = 0
    #: What the hardware writes for any NaN.
    nan_bits: int = 0

    @property
    def bias(self) -> int:
        """Of the exponent."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def smallest_exponent(self) -> int:
        """Of normal numbers; subnormal ones have it too."""
        return 1 - self.bias

    @property
    def precision(self) -> int:
        """Significant bits, with the hidden one."""
        return self.fraction_bits + 1

    @property
    def width(self) -> int:
        """Bits of its container."""
        return 1 + self.exponent_bits + self.fraction_bits + self.padding_bits

    @property
    def infinity_bits(self) -> int:
        """Pattern of +infinity, or of the NaN that stands in its place."""
        if not self.has_infinity:
            return self.nan_bits
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @property
    def largest_bits(self) -> int:
        """Pattern of the largest finite number, without padding."""
        if self.has_infinity:
            return self.infinity_bits - 1
        return (1 << (self.exponent_bits + self.fraction_bits)) - 2

    def ulp_exponent(self, exponent: int) -> int:
        """The power of two of one unit in the last place of numbers with this exponent."""
        return max(exponent, self.smallest_exponent) - self.fraction_bits


FP32 = Format("fp32", 8, 23, nan_bits=0x7FFFFFFF)
FP16 = Format("fp16", 5, 10, nan_bits=0x7FFF)
BF16 = Format("bf16", 8, 7, nan_bits=0x7FFF)
TF32 = Format("tf32", 8, 10, padding_bits=13, nan_bits=0x7FFFFFFF)
E4M3 = Format("e4m3", 4, 3, has_infinity=False, nan_bits=0x7F)
E5M2 = Format("e5m2", 5, 2, nan_bits=0x7F)

FORMATS: dict[str, Format] = {f.name: f for f in (FP32, FP16, BF16, TF32, E4M3, E5M2)}


def format_named(name: str) -> Format:
    """A format by its name. Raises UsageError for any other."""
    if name not in FORMATS:
        raise UsageError(f"no such format: {name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[name]
