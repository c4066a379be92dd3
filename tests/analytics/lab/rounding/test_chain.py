"""Orders of summation, and errors in ulp."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite.errors import UsageError
from spanlite_analytics.lab.rounding.chain import Chain, accumulate, dot, report, ulp_errors
from spanlite_analytics.lab.rounding.emulator import to_bits, to_doubles
from spanlite_analytics.lab.rounding.formats import BF16, FP16, FP32

ORDERS = ("sequential", "pairwise", "warp", "split:4")


@pytest.mark.parametrize("order", ORDERS)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=100))
def test_whole_numbers_sum_exactly_in_any_order(order: str, terms: list[int]) -> None:
    bits = to_bits(np.array([terms], np.float64), FP32)
    assert to_doubles(accumulate(bits, FP32, order), FP32).tolist() == [sum(terms)]


def test_sequential_is_the_processors_loop() -> None:
    terms = np.random.default_rng(3).normal(size=(4, 300)).astype(np.float32)
    total = np.zeros(4, np.float32)
    for place in range(terms.shape[1]):
        total = total + terms[:, place]
    got = accumulate(terms.view(np.uint32), FP32, "sequential")
    assert got.tolist() == total.view(np.uint32).tolist()


def test_warp_is_strided_lanes_then_shuffles() -> None:
    terms = np.random.default_rng(4).normal(size=256).astype(np.float32)
    lanes = np.zeros(32, np.float32)
    for first in range(0, 256, 32):
        lanes = lanes + terms[first : first + 32]
    for offset in (16, 8, 4, 2, 1):
        lanes[:offset] += lanes[offset : 2 * offset]
    assert int(accumulate(terms.view(np.uint32), FP32, "warp")) == int(lanes.view(np.uint32)[0])


def test_half_precision_sums_get_stuck() -> None:
    """2,048 + 1 is 2,048 in FP16: a sequential sum of ones stops there, a tree does not."""
    ones = to_bits(np.ones(4096), FP16)
    assert to_doubles(accumulate(ones, FP16, "sequential"), FP16) == 2048
    assert to_doubles(accumulate(ones, FP16, "pairwise"), FP16) == 4096


def test_products_of_halves_are_exact_in_single() -> None:
    a, b = (to_bits(np.random.default_rng(s).normal(size=(5, 1)), FP16) for s in (1, 2))
    got = to_doubles(dot(a, b, FP16, FP32, "sequential"), FP32)
    assert got.tolist() == (to_doubles(a, FP16) * to_doubles(b, FP16))[:, 0].tolist()


def test_ulp_of_a_result() -> None:
    exact = [Fraction(1), Fraction(1), Fraction(3, 4)]
    got = np.array([1.0, 1 + 2.0**-7, 0.75 + 2.0**-9])
    assert ulp_errors(got, exact, BF16).tolist() == [0, 1, 0.5]


def test_report_bounds() -> None:
    steps = report(Chain(FP16, FP32, BF16, "warp"), 64, samples=8)
    assert [s.format for s in steps] == ["fp32", "fp32", "bf16"]
    # One rounding to nearest is never more than half a unit away from what went in.
    assert steps[2].max_ulp <= 0.5
    assert steps[2].max_ulp_so_far <= 0.5 + steps[1].max_ulp_so_far


def test_unknown_order() -> None:
    with pytest.raises(UsageError, match="split:K"):
        accumulate(np.zeros((1, 2), np.uint32), FP32, "random")
