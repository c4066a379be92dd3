"""Rounds, adds, multiplies and fuses as the hardware does, bit for bit, over numpy arrays.

Every operation is done exactly, or rounded to odd in double precision where the exact result does
not fit, and then rounded once to its format. A result rounded to odd in 53 bits keeps all that a
later rounding to at most 24 bits has to know, in every mode.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spanlite_analytics.lab.rounding.formats import FP32, TF32, Format

Doubles = NDArray[np.float64]
Bits = NDArray[np.uint32]
#: Nearest (ties to even), to zero, down, up, nearest (ties away from zero), stochastic.
Mode = Literal["rn", "rz", "rm", "rp", "rna", "rs"]
MODES: tuple[Mode, ...] = ("rn", "rz", "rm", "rp", "rna", "rs")

_FRACTION = np.int64((1 << 52) - 1)
_HIDDEN = np.int64(1 << 52)
#: Bits of randomness that `cvt.rs` takes for FP16 and BF16.
RANDOM_BITS = 16


def to_bits(
    values: ArrayLike,
    target: Format,
    mode: Mode = "rn",
    *,
    saturate: bool = False,
    ftz: bool = False,
    random: ArrayLike | None = None,
) -> Bits:
    """Round doubles to a format; returns its bit patterns, of the shape of `values`.

    `saturate` is PTX's `.satfinite`: what is too large becomes the largest finite number. `ftz`
    flushes subnormal results to zero. `random` holds RANDOM_BITS bits a value, for mode `rs`.
    """
    given = np.asarray(values, np.float64)
    sign = np.signbit(given)
    whole, exponent = _split(given)
    drop = np.maximum(exponent, target.smallest_exponent) - target.fraction_bits - (exponent - 52)
    drop = np.clip(drop, 0, 62)
    kept = whole >> drop
    rest = whole & ((np.int64(1) << drop) - 1)
    kept = kept + _up(kept, rest, drop, sign, mode, random)
    patterns = _encode(kept, exponent, target)
    if ftz:
        patterns = np.where(patterns < (1 << target.fraction_bits), 0, patterns)
    patterns = _too_large(patterns, sign, np.isinf(given), target, mode, saturate)
    patterns = patterns << target.padding_bits
    patterns = patterns | (sign.astype(np.int64) << (target.width - 1))
    return np.where(np.isnan(given), target.nan_bits, patterns).astype(np.uint32)


def _split(values: Doubles) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Significand of 53 bits and exponent: |value| = significand * 2**(exponent - 52)."""
    bits = values.view(np.int64)
    exponent = (bits >> 52) & 0x7FF
    whole = np.where(exponent == 0, bits & _FRACTION, (bits & _FRACTION) | _HIDDEN)
    return whole, np.maximum(exponent, 1) - 1023


def _up(
    kept: NDArray[np.int64],
    rest: NDArray[np.int64],
    drop: NDArray[np.int64],
    sign: NDArray[np.bool_],
    mode: Mode,
    random: ArrayLike | None,
) -> NDArray[np.int64]:
    """1 where the magnitude is rounded up."""
    half = np.where(drop > 0, np.int64(1) << np.maximum(drop - 1, 0), np.int64(1) << 61)
    if mode == "rn":
        up = (rest > half) | ((rest == half) & (kept & 1 == 1))
    elif mode == "rna":
        up = rest >= half
    elif mode == "rz":
        up = np.zeros_like(sign)
    elif mode == "rs":
        up = _random_up(rest, drop, random)
    else:
        up = (rest != 0) & (sign if mode == "rm" else ~sign)
    made: NDArray[np.int64] = (up & (rest != 0)).astype(np.int64)
    return made


def _random_up(
    rest: NDArray[np.int64], drop: NDArray[np.int64], random: ArrayLike | None
) -> NDArray[np.bool_]:
    """Up where the top bits of what is dropped and the random bits carry together."""
    if random is None:
        raise ValueError("mode rs needs random bits")
    noise = np.asarray(random, np.int64) & ((1 << RANDOM_BITS) - 1)
    top = np.where(
        drop >= RANDOM_BITS,
        rest >> np.maximum(drop - RANDOM_BITS, 0),
        rest << np.maximum(RANDOM_BITS - drop, 0),
    )
    return np.asarray(top + noise >= (1 << RANDOM_BITS))


def _encode(
    kept: NDArray[np.int64], exponent: NDArray[np.int64], target: Format
) -> NDArray[np.int64]:
    """Exponent and fraction as one integer, so that a carry of the rounding goes where it must."""
    biased = np.maximum(exponent, target.smallest_exponent) + target.bias - 1
    return np.where(kept == 0, 0, (biased << target.fraction_bits) + kept)


def _too_large(
    patterns: NDArray[np.int64],
    sign: NDArray[np.bool_],
    infinite: NDArray[np.bool_],
    target: Format,
    mode: Mode,
    saturate: bool,
) -> NDArray[np.int64]:
    """Past the largest finite number: infinity, or that number where the mode points to zero."""
    over = (patterns > target.largest_bits) | infinite
    if saturate:
        return np.where(over, target.largest_bits, patterns)
    stays = {"rz": np.ones_like(sign), "rm": ~sign, "rp": sign}.get(mode, np.zeros_like(sign))
    limit = np.where(stays & ~infinite, target.largest_bits, target.infinity_bits)
    return np.where(over, limit, patterns)


def to_doubles(patterns: ArrayLike, source: Format) -> Doubles:
    """The exact values of bit patterns."""
    given = np.asarray(patterns, np.int64)
    sign = np.where(given >> (source.width - 1) & 1, -1.0, 1.0)
    magnitude = (given >> source.padding_bits) & (
        (1 << (source.width - 1 - source.padding_bits)) - 1
    )
    fraction = magnitude & ((1 << source.fraction_bits) - 1)
    biased = magnitude >> source.fraction_bits
    whole = np.where(biased == 0, fraction, fraction | (1 << source.fraction_bits))
    power = np.maximum(biased, 1) - source.bias - source.fraction_bits
    values = np.ldexp(whole.astype(np.float64), power.astype(np.int32))
    if source.has_infinity:
        values = np.where(magnitude == source.infinity_bits, np.inf, values)
        values = np.where(magnitude > source.infinity_bits, np.nan, values)
    else:
        values = np.where(magnitude == source.nan_bits, np.nan, values)
    return np.asarray(sign * values)


def convert(
    patterns: ArrayLike,
    source: Format,
    target: Format,
    mode: Mode = "rn",
    *,
    saturate: bool = False,
    ftz: bool = False,
    random: ArrayLike | None = None,
) -> Bits:
    """`cvt`: patterns of one format to another; `ftz` flushes subnormal inputs of FP32.

    A NaN gives the target's one NaN, but for `cvt.rna.tf32.f32`: where all bits that TF32 keeps
    of its fraction are zero, the result is an infinity of its sign.
    """
    values = to_doubles(patterns, source)
    if ftz and source is FP32:
        values = flushed(values, source)
    rounded = to_bits(values, target, mode, saturate=saturate, random=random)
    if mode == "rna" and source is FP32 and target is TF32 and not saturate:
        return _low_nans_cut(np.asarray(patterns, np.uint32), rounded)
    return rounded


def _low_nans_cut(given: Bits, rounded: Bits) -> Bits:
    """`cvt.rna.tf32.f32` cuts the low bits of a NaN off, so an H200 makes some into infinities."""
    cut = given & ~np.uint32((1 << TF32.padding_bits) - 1)
    infinite = (cut & np.uint32(0x7FFFFFFF)) == TF32.infinity_bits << TF32.padding_bits
    return np.where(infinite, cut, rounded)


def flushed(values: Doubles, source: Format) -> Doubles:
    """Subnormal numbers of a format as zeros of their sign."""
    tiny = np.abs(values) < 2.0**source.smallest_exponent
    return np.where(tiny, np.copysign(0.0, values), values)


def _odd(rounded: Doubles, error: Doubles) -> Doubles:
    """Round to odd: the neighbour with an odd last bit, where anything was lost."""
    bits = rounded.view(np.int64)
    toward_zero = np.signbit(error) != np.signbit(rounded)
    lost = (error != 0) & np.isfinite(rounded)
    # Just past zero to the smaller magnitude when the error points there; then the last bit set.
    smaller = np.where(toward_zero, bits - 1, bits)
    return np.where(lost, smaller | 1, bits).view(np.float64)


def exact_sum(a: Doubles, b: Doubles) -> Doubles:
    """a + b, rounded to odd in 53 bits (Knuth's TwoSum gives what was lost)."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = a + b
        part = total - a
        error = (a - (total - part)) + (b - part)
        return _odd(total, np.where(np.isfinite(total), error, 0.0))


def _signed_zero(
    values: Doubles, mode: Mode, exact: NDArray[np.bool_], like: NDArray[np.bool_]
) -> Doubles:
    """A sum that is exactly zero is -0 when rounding down, unless both terms were +0 (`like`)."""
    if mode != "rm":
        return values
    return np.where((values == 0) & exact & like, -0.0, values)


def add(
    a: ArrayLike,
    b: ArrayLike,
    format_: Format = FP32,
    mode: Mode = "rn",
    *,
    ftz: bool = False,
    sat: bool = False,
) -> Bits:
    """`add{.rnd}{.ftz}{.sat}`: bit patterns in, bit patterns out."""
    x, y = _inputs(format_, ftz, a, b)
    total = exact_sum(x, y)
    opposite = np.signbit(x) != np.signbit(y)
    return _output(
        _signed_zero(total, mode, np.ones_like(opposite), opposite), format_, mode, ftz, sat
    )


def multiply(
    a: ArrayLike,
    b: ArrayLike,
    format_: Format = FP32,
    mode: Mode = "rn",
    *,
    ftz: bool = False,
    sat: bool = False,
) -> Bits:
    """`mul{.rnd}{.ftz}{.sat}`: the product of two numbers of 24 bits is exact in doubles."""
    x, y = _inputs(format_, ftz, a, b)
    with np.errstate(invalid="ignore"):
        return _output(x * y, format_, mode, ftz, sat)


def fused(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    format_: Format = FP32,
    mode: Mode = "rn",
    *,
    ftz: bool = False,
    sat: bool = False,
) -> Bits:
    """`fma{.rnd}{.ftz}{.sat}`: a * b + c with one rounding."""
    x, y, z = _inputs(format_, ftz, a, b, c)
    with np.errstate(invalid="ignore"):
        product = x * y
    total = exact_sum(product, z)
    opposite = np.signbit(product) != np.signbit(z)
    return _output(
        _signed_zero(total, mode, np.ones_like(opposite), opposite), format_, mode, ftz, sat
    )


def _inputs(format_: Format, ftz: bool, *patterns: ArrayLike) -> list[Doubles]:
    values = [to_doubles(p, format_) for p in patterns]
    return [flushed(v, format_) for v in values] if ftz else values


def _output(values: Doubles, format_: Format, mode: Mode, ftz: bool, sat: bool) -> Bits:
    if sat:
        # PTX: the result is clamped to [0, 1], and NaN becomes +0.
        values = np.where(np.isnan(values), 0.0, np.clip(values, 0.0, 1.0)) + 0.0
    return to_bits(values, format_, mode, ftz=ftz)
