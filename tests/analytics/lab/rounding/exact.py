"""Rounding by its definition, in rational arithmetic: what the emulator is held against."""

import math
from fractions import Fraction

from spanlite_analytics.lab.rounding.formats import Format


def value_of(bits: int, format_: Format) -> Fraction | float:
    """The number a pattern stands for; a float for infinities and NaN."""
    magnitude = (bits & ((1 << (format_.width - 1)) - 1)) >> format_.padding_bits
    sign = -1 if bits >> (format_.width - 1) else 1
    if format_.has_infinity and magnitude >= format_.infinity_bits:
        return sign * math.inf if magnitude == format_.infinity_bits else math.nan
    if not format_.has_infinity and magnitude == format_.nan_bits:
        return math.nan
    exponent, fraction = divmod(magnitude, 1 << format_.fraction_bits)
    whole = fraction + (1 << format_.fraction_bits if exponent else 0)
    power = max(exponent, 1) - format_.bias - format_.fraction_bits
    return sign * whole * Fraction(2) ** power


def neighbours(value: Fraction, format_: Format) -> tuple[int, int]:
    """Magnitude patterns, without padding, of the two numbers around |value|."""
    low, high = 0, format_.largest_bits + 1
    while high - low > 1:
        middle = (low + high) // 2
        number = value_of(middle << format_.padding_bits, format_)
        low, high = (middle, high) if number <= abs(value) else (low, middle)
    return low, high


def rounded(value: Fraction, format_: Format, mode: str, negative: bool) -> int:
    """The pattern `value` rounds to; `negative` gives the sign of a zero."""
    low, high = neighbours(value, format_)
    below = value_of(low << format_.padding_bits, format_)
    assert isinstance(below, Fraction)
    if low == format_.largest_bits:
        # As if the exponent went on: the next number is one unit further.
        previous = value_of((low - 1) << format_.padding_bits, format_)
        above = below + (below - previous)
    else:
        above = value_of(high << format_.padding_bits, format_)
    rest, gap = abs(value) - below, above - below
    if mode == "rn":
        up = rest * 2 > gap or (rest * 2 == gap and low & 1)
    elif mode == "rna":
        up = rest * 2 >= gap
    else:
        up = rest > 0 and (mode == "rm" if negative else mode == "rp")
    # Beyond the last step: only the modes to nearest, and those that point away, leave the range.
    if low == format_.largest_bits and rest >= gap:
        up = mode in ("rn", "rna") or (mode == "rm" if negative else mode == "rp")
    pattern = (low + 1 if up else low) if low < format_.largest_bits or up else low
    if pattern > format_.largest_bits:
        pattern = format_.infinity_bits
    return pattern << format_.padding_bits | (negative << (format_.width - 1))
