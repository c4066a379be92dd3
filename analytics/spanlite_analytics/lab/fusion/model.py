"""Predicted times of each way to run a chain, and the choice.

Two layers. A physical one, per way: launches, bytes over bandwidth (as far as enough of them
are under way), waves of blocks and their steps through K. Its few constants are fitted. Then a
correction for what it does not know (how cuBLAS chooses, how the compiler scheduled a tile):
the logarithm of measured over physical, interpolated between the measured shapes of that way by a
Gaussian process over log2 of tokens, hidden and out, and of how unevenly the way's blocks lie on
the SMs: shapes close by may differ in that, and then in time. Away from measured shapes the
correction fades and the physical layer is what remains.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spanlite_analytics.lab.fusion.chain import Shape
from spanlite_analytics.lab.fusion.table import TORCH, Table, Way
from spanlite_analytics.lab.fusion.tiles import SMS, Tile, resources, suits

Floats = NDArray[np.float64]
#: Steps of log2 over which shapes resemble each other: tokens, hidden, out, unevenness; chains.
LENGTHS = np.array([3.0, 1.0, 1.0, 1.0])
#: Where cuBLAS chooses the tile: its usual one.
_USUAL_TILE = Tile(128, 128, 64, 8, 4)
CHAIN_ALIKE = 0.8
#: Standard deviations in the logarithm: what the physical layer misses, and the noise of a time.
SIGMA, NOISE = 0.15, 0.015
#: Logarithms of constants start here: launch ns, TB/s, TFLOP/s of all SMs, ns a step, ns a wave,
#: bytes under way an SM that fill the memory (Little's law).
START = np.log(np.array([2_500.0, 3.9, 500.0, 150.0, 1_500.0, 32_768.0]))
#: How far each may move: standard deviations of a prior.
FREEDOM = np.array([0.7, 0.25, 0.6, 0.8, 0.8, 0.5])
_SHARPNESS = 4.0


def features(way: Way, shape: Floats) -> Floats:
    """(cases, 4): log2 of tokens, hidden, out, and of the fullest SM's blocks over the mean."""
    tile = way.tile or _USUAL_TILE
    blocks = np.ceil(shape[:, 0] / tile.m) * np.ceil(shape[:, 2] / tile.n) * tile.split
    uneven = np.ceil(blocks / SMS) / (blocks / SMS)
    return np.asarray(np.log2(np.c_[shape, uneven]))


def physical(constants: Floats, way: Way, chain: NDArray[np.int64], shape: Floats) -> Floats:
    """ns of each case by the physical layer. shape: (cases, 3)."""
    launch, tera, rate, step, wave, little = (float(x) for x in np.exp(constants))
    tokens, hidden, out = shape.T
    moved = 2.0 * (tokens * hidden + hidden * out + tokens * out)
    outside = launch + _outside(way, tokens, hidden, out, tera)
    if way.tile is None:
        # cuBLAS picks among many tiles, so its waves are seldom ragged.
        compute = 2.0 * tokens * hidden * out / (rate * 1e3) + step * hidden / 256
        return np.asarray(_join(moved / (tera * 1e3), compute) + outside)
    tile = way.tile
    fits = _fits(tile, "rmsnorm" if way.split in ("all", "prologue") else "")
    blocks = np.ceil(tokens / tile.m) * np.ceil(out / tile.n) * tile.split
    steps = np.ceil(hidden / tile.k / tile.split)
    compute = _waves(tile, blocks, steps, fits, rate, step, wave)
    full = np.floor(blocks / (SMS * fits)) * SMS * fits
    each = moved / blocks / (tera * 1e3)
    stage = (tile.m + tile.n) * tile.k * 2 * (tile.stages - 1) / little / SMS
    memory = each * (
        full / (1 - np.exp(-SMS * fits * stage))
        + (blocks - full) / (1 - np.exp(-np.maximum(blocks - full, 1) * stage))
    )
    parts = 0.0 if tile.split == 1 else blocks * tile.m * tile.n * 8 / 3_000 + 1_000
    return np.asarray(_join(memory, compute) + parts + outside)


@lru_cache
def _fits(tile: Tile, norm: str) -> int:
    """Blocks that an SM holds."""
    return max(resources(tile, norm).blocks_per_sm, 1)


def _waves(
    tile: Tile, blocks: Floats, steps: Floats, fits: int, rate: float, step: float, wave: float
) -> Floats:
    """Full waves, then the last: fewer blocks an SM share its tensor cores."""
    work = tile.m * tile.n * tile.k * 2 / (rate * 1e3 / SMS)  # ns a step, alone on an SM
    full = np.floor(blocks / (SMS * fits))
    rest = np.ceil((blocks - full * SMS * fits) / SMS)
    busy = steps * np.maximum(work * fits, step) + wave
    last = np.where(rest > 0, steps * np.maximum(work * rest, step) + wave, 0)
    return np.asarray(full * busy + last)


def _outside(way: Way, tokens: Floats, hidden: Floats, out: Floats, tera: float) -> Floats:
    """The kernels before and after the product: a launch each, and their bytes."""
    ns = np.zeros_like(tokens)
    if way.split in ("unfused", "epilogue", TORCH):
        ns = ns + 1_800 + _stream(4 * tokens * hidden, tera)
    if way.split in ("unfused", "prologue", TORCH):
        ns = ns + 1_500 + _stream(4 * tokens * out, tera)
    return ns


def outside_ns(shape: Shape, tera: float = 3.9) -> tuple[float, float]:
    """ns of a norm's kernel, and of one for bias and activation."""
    tokens, hidden, out = (np.array([float(n)]) for n in (shape.tokens, shape.hidden, shape.out))
    both = float(_outside(Way("unfused"), tokens, hidden, out, tera)[0])
    norm = float(_outside(Way("epilogue"), tokens, hidden, out, tera)[0])
    return norm, both - norm


def _stream(moved: Floats, tera: float) -> Floats:
    """What fits in the L2 is read from there."""
    share = np.clip(40e6 / np.maximum(moved, 1), 0, 1)
    return np.asarray(moved / (tera * 1e3) * (1 - 0.6 * share))


def _join(one: Floats, other: Floats) -> Floats:
    """Nearly the larger: they overlap, but not quite."""
    top = np.maximum(one, other)
    low = np.minimum(one, other) / np.maximum(top, 1e-9)
    return np.asarray(top * (1 + low**_SHARPNESS) ** (1 / _SHARPNESS))


def fit(table: Table) -> Floats:
    """(ways, 6) constants from the table; needs SciPy (the extra `lab`)."""
    from scipy.optimize import least_squares

    found = []
    for number, way in enumerate(table.ways):
        there = ~np.isnan(table.time_ns[:, number])
        chain, shape = table.chain[there], table.shape[there].astype(np.float64)
        logs = np.log(table.time_ns[there, number])

        def misses(
            constants: Floats, way: Way = way, chain: Any = chain, shape: Any = shape, y: Any = logs
        ) -> Floats:
            gap = (np.log(physical(constants, way, chain, shape)) - y) / SIGMA
            return np.concatenate([gap, (constants - START) / FREEDOM])

        found.append(least_squares(misses, START, loss="soft_l1", xtol=1e-4, max_nfev=40).x)
    return np.array(found)


@dataclass(frozen=True, slots=True)
class Model:
    """Constants, and the measured table that corrects them."""

    constants: Floats
    table: Table

    def predict(self, chain: NDArray[np.int64], shape: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """ns and its standard deviation in the logarithm, both (cases, ways)."""
        wide = shape.astype(np.float64)
        times, spread = [], []
        for number, way in enumerate(self.table.ways):
            base = physical(self.constants[number], way, chain, wide)
            gap, sigma = self._correction(number, way, chain, features(way, wide))
            times.append(base * np.exp(gap))
            spread.append(sigma)
        return np.array(times).T, np.array(spread).T

    def _correction(
        self, number: int, way: Way, chain: NDArray[np.int64], logs: Floats
    ) -> tuple[Floats, Floats]:
        table = self.table
        there = ~np.isnan(table.time_ns[:, number])
        if not there.any():
            return np.zeros(len(chain)), np.full(len(chain), SIGMA)
        shape = table.shape[there].astype(np.float64)
        known = features(way, shape)
        base = physical(self.constants[number], way, table.chain[there], shape)
        y = np.log(table.time_ns[there, number] / base)
        inner = _alike(known, known, table.chain[there], table.chain[there])
        cross = _alike(logs, known, chain, table.chain[there])
        noise = (NOISE / SIGMA) ** 2
        solved = np.linalg.solve(inner + noise * np.eye(len(known)), np.c_[y, cross.T])
        left = np.maximum(1 - (cross * solved[:, 1:].T).sum(1), 0)
        return cross @ solved[:, 0], SIGMA * np.sqrt(left) + NOISE


def _alike(one: Floats, other: Floats, chain: NDArray[Any], others: NDArray[Any]) -> Floats:
    """Covariance of shapes, in units of SIGMA squared: Matern 3/2 in each of log2's steps."""
    steps = np.abs(one[:, None, :] - other[None, :, :]) / LENGTHS * np.sqrt(3)
    near = np.prod((1 + steps) * np.exp(-steps), axis=2)
    return np.asarray(near * np.where(chain[:, None] == others[None, :], 1.0, CHAIN_ALIKE))


def choose(times: Floats, ways: tuple[Way, ...], allowed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The allowed way of least time in each case; torch's own operators are no choice."""
    ours = np.array([way.split != TORCH for way in ways])
    return np.asarray(np.argmin(np.where(ours & allowed, times, np.inf), axis=1))


def allowed(ways: tuple[Way, ...], shape: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(cases, ways): whether a way's tile suits the shape."""
    return np.array(
        [
            [way.tile is None or suits(way.tile, *map(int, case)) for way in ways]
            for case in shape.tolist()
        ]
    )
