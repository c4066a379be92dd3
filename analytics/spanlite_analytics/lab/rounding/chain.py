"""Sums in the orders that kernels use, and what each step of a chain of formats costs in ulp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spanlite.errors import UsageError

from spanlite_analytics.lab.rounding.emulator import (
    Bits,
    Doubles,
    Mode,
    add,
    fused,
    multiply,
    to_bits,
    to_doubles,
)
from spanlite_analytics.lab.rounding.formats import Format

WARP = 32


def _sequential(terms: Bits, format_: Format) -> Bits:
    total = terms[..., 0]
    for place in range(1, terms.shape[-1]):
        total = add(total, terms[..., place], format_)
    return total


def _pairwise(terms: Bits, format_: Format) -> Bits:
    while terms.shape[-1] > 1:
        even = terms.shape[-1] // 2 * 2
        pairs = add(terms[..., 0:even:2], terms[..., 1:even:2], format_)
        terms = np.concatenate([pairs, terms[..., even:]], axis=-1)
    return terms[..., 0]


def _warp(terms: Bits, format_: Format) -> Bits:
    """32 lanes stride over the terms; then shuffles by 16, 8, 4, 2, 1."""
    lanes = _sequential(_strided(terms, WARP, format_), format_)
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = add(lanes[..., :half], lanes[..., half:], format_)
    return lanes[..., 0]


def _strided(terms: Bits, lanes: int, format_: Format) -> Bits:
    """Lane l has terms l, l + lanes, ...; missing ones are -0, which changes no sum."""
    turns = -(-terms.shape[-1] // lanes)
    padded = np.full((*terms.shape[:-1], turns * lanes), 1 << (format_.width - 1), np.uint32)
    padded[..., : terms.shape[-1]] = terms
    return np.moveaxis(padded.reshape(*terms.shape[:-1], turns, lanes), -2, -1)


#: Orders of summation by name: terms along the last axis to their sum, in a format.
ORDERS: dict[str, Callable[[Bits, Format], Bits]] = {
    "sequential": _sequential,
    "pairwise": _pairwise,
    "warp": _warp,
}


def accumulate(terms: Bits, format_: Format, order: str) -> Bits:
    """Sum bit patterns along the last axis, each addition rounded to nearest.

    `order`: sequential, pairwise, warp (32 lanes stride, then shuffles), or split:K (K sequential
    parts, added in sequence). Raises UsageError for another.
    """
    if order.startswith("split:") and order[6:].isdigit() and int(order[6:]) > 0:
        parts = np.array_split(terms, int(order[6:]), axis=-1)
        sums = [_sequential(p, format_) for p in parts if p.shape[-1]]
        return _sequential(np.stack(sums, axis=-1), format_)
    if order not in ORDERS:
        raise UsageError(f"no such order: {order!r}; there are {', '.join(ORDERS)} and split:K")
    return ORDERS[order](terms, format_)


def dot(a: Bits, b: Bits, inputs: Format, sums: Format, order: str) -> Bits:
    """Dot products along the last axis: products rounded to `sums`; in sequence they are fused."""
    x, y = (to_bits(to_doubles(p, inputs), sums) for p in (a, b))
    if order == "sequential":
        total = multiply(x[..., 0], y[..., 0], sums)
        for place in range(1, x.shape[-1]):
            total = fused(x[..., place], y[..., place], total, sums)
        return total
    return accumulate(multiply(x, y, sums), sums, order)


def ulp_errors(got: Doubles, exact: Sequence[Fraction], format_: Format) -> NDArray[np.float64]:
    """|got - exact| in units of the last place that `exact` has in the format."""
    errors = []
    for value, truth in zip(got, exact, strict=True):
        if not math.isfinite(value):
            errors.append(math.inf)
            continue
        unit = Fraction(2) ** format_.ulp_exponent(_exponent(truth))
        errors.append(float(abs(Fraction(float(value)) - truth) / unit))
    return np.array(errors)


def _exponent(value: Fraction) -> int:
    """floor(log2(|value|)), exact; a very small number for zero."""
    if value == 0:
        return -100_000
    top, bottom = abs(value.numerator), value.denominator
    guess = top.bit_length() - bottom.bit_length()
    power = Fraction(2) ** guess
    return guess if abs(value) >= power else guess - 1


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of a chain adds to the error, and the error so far; in ulp of `format`."""

    name: str
    format: str
    mean_ulp: float
    max_ulp: float
    mean_ulp_so_far: float
    max_ulp_so_far: float


@dataclass(frozen=True, slots=True)
class Chain:
    """Formats of inputs, sums and result, the order of sums, the mode of the last rounding."""

    inputs: Format
    sums: Format
    result: Format
    order: str = "sequential"
    mode: Mode = "rn"


def report(chain: Chain, length: int, samples: int = 64, seed: int = 1) -> list[Step]:
    """Error per step of dot products of `length` random numbers, over `samples` of them.

    The numbers are normal, of mean 0.5 and deviation 1, in single precision. Each step is judged
    against exact rational arithmetic on its own inputs, and against the exact whole.
    """
    random = np.random.default_rng(seed)
    a, b = (random.normal(0.5, 1, (samples, length)).astype(np.float32) for _ in range(2))
    exact = [_exact_dot(x, y) for x, y in zip(a, b, strict=True)]
    given = [to_bits(v, chain.inputs) for v in (a, b)]
    rounded = [to_doubles(p, chain.inputs) for p in given]
    after_inputs = [_exact_dot(x, y) for x, y in zip(*rounded, strict=True)]
    summed = dot(given[0], given[1], chain.inputs, chain.sums, chain.order)
    sums = to_doubles(summed, chain.sums)
    result = to_doubles(to_bits(sums, chain.result, chain.mode), chain.result)
    steps = []
    stages: list[tuple[str, Format, NDArray[np.float64], NDArray[np.float64]]] = [
        (
            "inputs rounded",
            chain.inputs,
            _ulps(after_inputs, exact, chain.sums),
            _ulps(after_inputs, exact, chain.result),
        ),
        (
            f"summed, {chain.order}",
            chain.sums,
            ulp_errors(sums, after_inputs, chain.sums),
            ulp_errors(sums, exact, chain.result),
        ),
        (
            f"result rounded, {chain.mode}",
            chain.result,
            ulp_errors(
                result,
                [Fraction(float(s)) if math.isfinite(s) else Fraction(0) for s in sums],
                chain.result,
            ),
            ulp_errors(result, exact, chain.result),
        ),
    ]
    for name, format_, own, so_far in stages:
        unit = chain.sums.name if name == "inputs rounded" else format_.name
        steps.append(Step(name, unit, own.mean(), own.max(), so_far.mean(), so_far.max()))
    return steps


def _exact_dot(a: NDArray[Any], b: NDArray[Any]) -> Fraction:
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    return sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(0))


def _ulps(
    got: Sequence[Fraction], exact: Sequence[Fraction], format_: Format
) -> NDArray[np.float64]:
    pairs = zip(got, exact, strict=True)
    return np.array(
        [float(abs(g - e) / Fraction(2) ** format_.ulp_exponent(_exponent(e))) for g, e in pairs]
    )
