"""The advice: what each split of a chain would take, what it took, and which to choose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from spanlite_analytics.lab.fusion.chain import Chain, Kernel, Shape, kernels_of
from spanlite_analytics.lab.fusion.model import Model, allowed, outside_ns
from spanlite_analytics.lab.fusion.table import TORCH, Table, Way, measured
from spanlite_analytics.lab.fusion.tiles import Resources, Tile, resources

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Option:
    """The best tile of a split, or another way worth showing.

    `measured_ns` is None where that shape was not measured. `spread`: standard deviation of the
    prediction's logarithm.
    """

    label: str
    way: Way
    predicted_ns: float
    spread: float
    measured_ns: float | None
    kernels: list[Kernel]
    resources: Resources | None
    modelled: Resources | None
    blocks: int | None

    @property
    def time_ns(self) -> float:
        """Measured where it was, else predicted."""
        return self.predicted_ns if self.measured_ns is None else self.measured_ns


@dataclass(frozen=True, slots=True)
class Advice:
    """Options, the best first; the chosen one; notes on what the table does not cover."""

    chain: Chain
    shape: Shape
    options: list[Option]
    chosen: Option
    notes: list[str]


@lru_cache
def default_model() -> Model:
    """The constants and the table that come with the package."""
    table = measured()
    return Model(np.array(table.about["constants"]), table)


def advise(chain: Chain, shape: Shape, model: Model | None = None) -> Advice:
    """Predict every way, and choose. Raises UsageError for a shape that no tile suits."""
    model = model or default_model()
    table, notes = model.table, []
    number, words = _nearest_chain(chain, table)
    if words:
        notes.append(words)
    case = np.array([[shape.tokens, shape.hidden, shape.out]])
    predicted, spread = model.predict(np.array([number]), case)
    fits = allowed(table.ways, case)[0]
    place = table.find(number, shape) if table.chains[number] == chain.name else None
    took = table.time_ns[place] if place is not None else np.full(len(table.ways), np.nan)
    less = _left_out(chain, shape)
    options = []
    for split in (*chain.splits, TORCH):
        ways = [i for i, way in enumerate(table.ways) if _stands_for(way, split, chain) and fits[i]]
        if not ways:
            continue
        times = np.where(np.isnan(took[ways]), predicted[0, ways], took[ways])
        best = ways[int(np.argmin(times))]
        label = "torch's operators" if split == TORCH else split
        options.append(
            _option(
                label, split, best, (predicted[0], spread[0], took), less, model, (chain, shape)
            )
        )
    static = [
        i
        for i, way in enumerate(table.ways)
        if way == Way("all", table.static) and len(chain.splits) > 2
    ]
    options += [
        _option(
            "all, one tile for every shape",
            "all",
            i,
            (predicted[0], spread[0], took),
            less,
            model,
            (chain, shape),
        )
        for i in static
    ]
    ours = [option for option in options if option.way.split != TORCH]
    chosen = min(ours, key=lambda option: option.time_ns)
    options.sort(key=lambda option: option.time_ns)
    if place is None:
        notes.append(_distance(table, shape))
    return Advice(chain, shape, options, chosen, notes)


def _option(
    label: str,
    split: str,
    number: int,
    times: tuple[Floats, Floats, Floats],
    less: dict[str, float],
    model: Model,
    what: tuple[Chain, Shape],
) -> Option:
    way, (predicted, spread, took), (chain, shape) = model.table.ways[number], times, what
    shown = Way(split, way.tile)
    norm = chain.norm if split in ("prologue", "all") else ""
    compiled = modelled = blocks = None
    if way.tile is not None:
        known = model.table.compiled.get((way.name, _nearest_chain(chain, model.table)[0]))
        modelled = resources(way.tile, norm)
        compiled = resources(way.tile, norm, known) if known else None
        blocks = way.tile.blocks(shape.tokens, shape.out)
    kernels = kernels_of(chain, shape, "unfused" if split == TORCH else split, _columns(way.tile))
    return Option(
        label,
        shown,
        max(float(predicted[number]) - less.get(way.split, 0.0), 500.0),
        float(spread[number]),
        None if np.isnan(took[number]) else float(took[number]),
        kernels,
        compiled,
        modelled,
        blocks,
    )


def _columns(tile: Tile | None) -> int | None:
    return tile.n if tile else None


def _stands_for(way: Way, split: str, chain: Chain) -> bool:
    """Without bias and activation a fused prologue is all there is: the ways of `all`."""
    if split == "prologue" and "all" not in chain.splits:
        return way.split == "all"
    return way.split == split


def _nearest_chain(chain: Chain, table: Table) -> tuple[int, str]:
    """The measured chain that is this one, or is most like it, and what to say of that."""
    if chain.name in table.chains:
        return table.chains.index(chain.name), ""
    like = [Chain.parse(name) for name in table.chains]
    scores = [2 * (one.norm == chain.norm) + (one.activation == chain.activation) for one in like]
    best = int(np.argmax(scores))
    return best, f"{chain.name} was not measured; times are those of {table.chains[best]}, adapted"


def _left_out(chain: Chain, shape: Shape) -> dict[str, float]:
    """ns that a way of the measured chains spends on kernels that this chain has not."""
    norm, last = outside_ns(shape)
    less: dict[str, float] = {}
    if not chain.norm:
        less |= {"unfused": norm, "epilogue": norm, TORCH: norm}
    if not (chain.bias or chain.activation):
        less["unfused"] = less.get("unfused", 0.0) + last
        less[TORCH] = less.get(TORCH, 0.0) + last
    return less


def _distance(table: Table, shape: Shape) -> str:
    """How far the nearest measured shape is, in a sentence."""
    case = np.log2([shape.tokens, shape.hidden, shape.out])
    steps = np.abs(np.log2(table.shape) - case)
    nearest = int(np.argmin(steps.sum(1)))
    tokens, hidden, out = table.shape[nearest].tolist()
    low, high = table.shape.min(0), table.shape.max(0)
    outside = bool(((2**case < low - 0.5) | (2**case > high + 0.5)).any())
    words = f"predicted; the nearest measured shape is {tokens} x {hidden} -> {out}"
    return words + ("; this one lies outside the measured range" if outside else "")
