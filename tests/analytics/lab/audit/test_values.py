"""Known values follow PTX's integer arithmetic; unknown ones keep their identity."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from spanlite_analytics.lab.audit.values import (
    From,
    compare,
    integer,
    mix,
    of_bits,
    unknown,
    wrapped,
)

WORDS = st.integers(-(2**31), 2**31 - 1)


def ints(*values: int) -> list[np.ndarray]:
    return [np.array([v], np.int64) for v in values]


@given(WORDS, WORDS, st.integers(0, 255))
def test_lop3_is_its_table(a: int, b: int, table: int) -> None:
    c = a ^ (b << 1)
    got = integer("lop3", ("lop3", "b32"), 32, False, ints(a, b, c, table))
    assert got is not None
    for bit in range(32):
        row = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)
        assert int(got[0]) >> bit & 1 == table >> row & 1


@given(WORDS, WORDS)
def test_division_goes_to_zero(a: int, b: int) -> None:
    got = integer("div", ("div", "s32"), 32, True, ints(a, b))
    left = integer("rem", ("rem", "s32"), 32, True, ints(a, b))
    assert got is not None and left is not None
    if b:
        assert int(got[0]) * b + int(left[0]) == a
        assert abs(int(left[0])) < abs(b)


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([8, 16, 32]))
def test_wrapping(value: int, width: int) -> None:
    signed = int(wrapped(np.array([value]), width, True)[0])
    plain = int(wrapped(np.array([value]), width, False)[0])
    assert plain == value % 2**width
    assert (signed - value) % 2**width == 0 and -(2 ** (width - 1)) <= signed < 2 ** (width - 1)


def test_coins_agree() -> None:
    """However a comparison with a constant is said, the same coin decides it."""
    value = unknown(mix("load", np.arange(64, dtype=np.uint64)), From.MEMORY)
    zero, one = (of_bits(np.full(64, n, np.int64)) for n in (0, 1))
    above = compare("gt", value, zero).bits
    assert 0 < above.sum() < 64
    assert (compare("le", value, zero).bits == 1 - above).all()
    assert (compare("lt", value, one).bits == 1 - above).all()
    assert (compare("lt", zero, value).bits == above).all()
    assert (compare("eq", value, value).bits == 1).all()
