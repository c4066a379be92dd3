"""The emulator against rational arithmetic, numpy and ml_dtypes (where these are right)."""

import math
import sys
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite_analytics.lab.rounding.emulator import (
    add,
    convert,
    fused,
    multiply,
    to_bits,
    to_doubles,
)
from spanlite_analytics.lab.rounding.formats import (
    BF16,
    E4M3,
    E5M2,
    FORMATS,
    FP16,
    FP32,
    TF32,
    Format,
)

sys.path.append(str(Path(__file__).parent))
from exact import rounded, value_of

NARROW = {
    "fp16": (FP16, np.float16),
    "bf16": (BF16, ml_dtypes.bfloat16),
    "e4m3": (E4M3, ml_dtypes.float8_e4m3fn),
    "e5m2": (E5M2, ml_dtypes.float8_e5m2),
}
SINGLES = st.integers(0, 2**32 - 1)
FORMAT = st.sampled_from(list(FORMATS.values()))
MODE = st.sampled_from(["rn", "rz", "rm", "rp", "rna"])


def random_singles(count: int) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 2**32, count, dtype=np.uint32)


def same(got: np.ndarray, wanted: np.ndarray, format_: Format) -> bool:
    """Equal patterns; any NaN equals any NaN."""
    both = np.isnan(to_doubles(got, format_)) & np.isnan(to_doubles(wanted, format_))
    return bool(((got == wanted) | both).all())


@pytest.mark.parametrize("name", NARROW)
def test_every_pattern_has_its_value(name: str) -> None:
    format_, type_ = NARROW[name]
    patterns = np.arange(1 << format_.width, dtype=np.uint32)
    stored = patterns.astype(np.uint16 if format_.width == 16 else np.uint8).view(type_)
    with np.errstate(invalid="ignore"):
        values = stored.astype(np.float64)
    np.testing.assert_array_equal(to_doubles(patterns, format_), values)
    wide = to_bits(to_doubles(patterns, format_), FP32)
    assert same(wide, stored.astype(np.float32).view(np.uint32), FP32)
    assert same(convert(wide, FP32, format_), patterns, format_)


@pytest.mark.parametrize("name", NARROW)
def test_nearest_agrees_with_numpy_and_ml_dtypes(name: str) -> None:
    format_, type_ = NARROW[name]
    given_ = random_singles(200_000)
    # Half of them within the range of the narrowest format, where rounding matters most.
    given_[::2] = (given_[::2] & 0x80FFFFFF) | 0x3E000000 | (given_[::2] & 0x01000000)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = given_.view(np.float32).astype(type_)
    wanted = stored.view(np.uint16 if format_.width == 16 else np.uint8).astype(np.uint32)
    assert same(convert(given_, FP32, format_), wanted, format_)


@given(SINGLES, FORMAT, MODE)
@settings(max_examples=200)
def test_conversion_by_definition(bits: int, target: Format, mode: str) -> None:
    value = value_of(bits, FP32)
    got = int(convert(np.array([bits], np.uint32), FP32, target, mode)[0])
    sign = bits >> 31 << (target.width - 1)
    if isinstance(value, Fraction):
        assert got == rounded(value, target, mode, bool(bits >> 31))
    elif math.isnan(value):
        low = target is TF32 and mode == "rna" and bits & 0x7FFFFFFF < 0x7F802000
        assert got == (sign | 0x7F800000 if low else target.nan_bits)
    elif target is E4M3:
        assert got == sign | target.nan_bits
    else:
        assert got == sign | target.infinity_bits << target.padding_bits


@given(FORMAT.filter(lambda f: f is not TF32), st.sampled_from(["rn", "rz", "rm", "rp"]), st.data())
@settings(max_examples=250)
def test_arithmetic_by_definition(format_: Format, mode: str, data: st.DataObject) -> None:
    pattern = st.integers(0, (1 << format_.width) - 1)
    bits = [data.draw(pattern) for _ in range(3)]
    if data.draw(st.booleans()):  # exponents that lie close, so that sums cancel and round
        low = (1 << format_.fraction_bits) - 1 | 1 << (format_.width - 1)
        bits = [(b & low) | (bits[0] & ~low) for b in bits]
    a, b, c = (value_of(x, format_) for x in bits)
    if not all(isinstance(v, Fraction) for v in (a, b, c)):
        return
    arrays = [np.array([x], np.uint32) for x in bits]
    for got, exact, signs in (
        (add(arrays[0], arrays[1], format_, mode), a + b, (bits[0], bits[1])),
        (multiply(arrays[0], arrays[1], format_, mode), a * b, None),
        (
            fused(*arrays, format_, mode),
            a * b + c,
            (bits[0] ^ bits[1], bits[2]),
        ),
    ):
        top = format_.width - 1
        if exact:
            negative = exact < 0
        elif signs is None:
            negative = bool((bits[0] ^ bits[1]) >> top & 1)
        else:
            one, two = (s >> top & 1 for s in signs)
            negative = bool(one) if one == two else mode == "rm"
        assert int(got[0]) == rounded(exact, format_, mode, negative)


def test_single_precision_agrees_with_the_processor() -> None:
    a, b = random_singles(400_000).reshape(2, -1)
    b[::2] = (b[::2] & 0x807FFFFF) | (a[::2] & 0x7F800000)
    with np.errstate(all="ignore"):
        total = (a.view(np.float32) + b.view(np.float32)).view(np.uint32)
        product = (a.view(np.float32) * b.view(np.float32)).view(np.uint32)
    assert same(add(a, b), total, FP32)
    assert same(multiply(a, b), product, FP32)


def test_fusing_rounds_once() -> None:
    near_one = np.array([1.0 + 2.0**-23], np.float32).view(np.uint32)
    minus = np.array([-1.0 - 2.0**-22], np.float32).view(np.uint32)
    exact = to_doubles(fused(near_one, near_one, minus), FP32)[0]
    twice = to_doubles(add(multiply(near_one, near_one), minus), FP32)[0]
    assert exact == 2.0**-46 and twice == 0.0


def test_what_is_lost_far_below_still_decides() -> None:
    """1 + 2**-100 rounds up to the next number in rp, and 1 - 2**-100 down in rz."""
    one, tiny = (np.array([v], np.float32).view(np.uint32) for v in (1.0, 2.0**-100))
    minus = tiny | np.uint32(1 << 31)
    assert to_doubles(add(one, tiny, FP32, "rp"), FP32)[0] == 1 + 2.0**-23
    assert to_doubles(add(one, minus, FP32, "rz"), FP32)[0] == 1 - 2.0**-24
    assert to_doubles(add(one, minus, FP32, "rn"), FP32)[0] == 1.0


@pytest.mark.parametrize(("target", "largest"), [(E4M3, 448.0), (E5M2, 57344.0), (FP16, 65504.0)])
def test_saturation(target: Format, largest: float) -> None:
    values = np.array([1e30, -1e30, np.inf, largest])
    got = to_doubles(to_bits(values, target, saturate=True), target)
    assert got.tolist() == [largest, -largest, largest, largest]


def test_flush_to_zero_keeps_the_sign() -> None:
    tiny = np.array([1, 1 | 1 << 31], np.uint32)
    zero = np.zeros(2, np.uint32)
    assert add(tiny, tiny, FP32, ftz=True).tolist() == [0, 1 << 31]
    assert multiply(tiny, zero, FP32, ftz=True).tolist() == [0, 1 << 31]


def test_sat_clamps_and_drops_nan() -> None:
    values = np.array([2.5, -1.0, 0.5, np.nan], np.float32).view(np.uint32)
    one = np.full(4, 1.0, np.float32).view(np.uint32)
    got = to_doubles(multiply(values, one, FP32, sat=True), FP32)
    assert got.tolist() == [1.0, 0.0, 0.5, 0.0]


def test_stochastic_rounding_is_unbiased() -> None:
    noise = np.arange(1 << 16, dtype=np.uint32)
    values = np.full(noise.shape, 1.0 + 0.25 * 2.0**-10)
    got = to_doubles(to_bits(values, FP16, "rs", random=noise), FP16)
    assert set(got.tolist()) == {1.0, 1.0 + 2.0**-10}
    assert got.mean() == values[0]


def test_nans_that_an_h200_makes_into_infinities() -> None:
    """`cvt.rna.tf32.f32`, as bench/h200/tables/lab_rounding.json has it; other modes keep them."""
    nans = np.array([0x7F801FA9, 0x7F800EF0, 0xFF801887, 0xFF800E25, 0x7F800D0D], np.uint32)
    infinities = [0x7F800000, 0x7F800000, 0xFF800000, 0xFF800000, 0x7F800000]
    assert convert(nans, FP32, TF32, "rna").tolist() == infinities
    for mode in ("rn", "rz"):
        assert (convert(nans, FP32, TF32, mode) == TF32.nan_bits).all()
    above = [0x7F802000, 0xFFC00000, 0x7FFFFFFF]
    assert (convert(above, FP32, TF32, "rna") == TF32.nan_bits).all()
    finite = [0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x80000000, 0x3F801000]
    wanted = [0x7F800000, 0x7F800000, 0xFF800000, 0x80000000, 0x3F802000]
    assert convert(finite, FP32, TF32, "rna").tolist() == wanted
