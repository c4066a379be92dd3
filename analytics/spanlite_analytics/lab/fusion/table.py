"""What was measured: the time of each way to run a chain, by shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spanlite_analytics.lab.fusion.chain import Shape
from spanlite_analytics.lab.fusion.tiles import Tile

TORCH = "torch"
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Way:
    """A split, and the tile of its Triton kernel; None: the product is cuBLAS's.

    The split `torch` is torch's own operators, for comparison.
    """

    split: str
    tile: Tile | None = None

    @property
    def name(self) -> str:
        """Of the split and its tile."""
        return self.split if self.tile is None else f"{self.split} {self.tile.name}"


@dataclass(frozen=True, slots=True)
class Table:
    """Times in ns, (cases, ways), NaN where a way was not run.

    `shape`: (cases, 3) tokens, hidden, out. `chain`: the number of each case's chain.
    `compiled`: registers and bytes of shared memory by (way, chain), spills left out.
    """

    about: dict[str, Any]
    chains: tuple[str, ...]
    ways: tuple[Way, ...]
    static: Tile
    chain: NDArray[np.int64]
    shape: NDArray[np.int64]
    time_ns: Floats
    compiled: Mapping[tuple[str, int], tuple[int, int]]

    def __len__(self) -> int:
        return len(self.chain)

    def find(self, chain: int, shape: Shape) -> int | None:
        """The case of that chain and shape."""
        wanted = (shape.tokens, shape.hidden, shape.out)
        found = np.flatnonzero((self.shape == wanted).all(1) & (self.chain == chain))
        return int(found[0]) if found.size else None

    def rows(self, keep: NDArray[np.bool_]) -> Table:
        """Of the cases that `keep` marks."""
        return Table(
            self.about,
            self.chains,
            self.ways,
            self.static,
            self.chain[keep],
            self.shape[keep],
            self.time_ns[keep],
            self.compiled,
        )

    def place(self, split: str, tile: Tile | None = None) -> int:
        """Of a way among `ways`. Raises KeyError."""
        for number, way in enumerate(self.ways):
            if way == Way(split, tile):
                return number
        raise KeyError(split)


def from_columns(columns: Mapping[str, NDArray[Any]], about: dict[str, Any]) -> Table:
    """From the columns of bench/h200/tables/lab_fusion.npz."""
    tiles = [Tile(**fields) for fields in about["tiles"]]
    names = ("chain", "tokens", "hidden", "out")
    cases = np.stack([columns[name].astype(np.int64) for name in names], 1)
    keys = np.stack([columns["split"], columns["tile"]], 1).astype(np.int64)
    unique, case_of = np.unique(cases, axis=0, return_inverse=True)
    kinds, way_of = np.unique(keys, axis=0, return_inverse=True)
    ways = tuple(
        Way(about["splits"][split], tiles[tile] if tile >= 0 else None)
        for split, tile in kinds.tolist()
    )
    times = np.full((len(unique), len(ways)), np.nan)
    times[case_of.ravel(), way_of.ravel()] = columns["time_ns"]
    compiled = {
        (ways[way].name, chain): (registers, shared)
        for way, chain, registers, shared in zip(
            way_of.ravel().tolist(),
            columns["chain"].tolist(),
            columns["registers"].tolist(),
            columns["shared_bytes"].tolist(),
            strict=True,
        )
        if registers >= 0
    }
    chain, shape = unique[:, 0].copy(), unique[:, 1:].copy()
    static = tiles[about["static"]]
    return Table(about, tuple(about["chains"]), ways, static, chain, shape, times, compiled)


def to_json(table: Table) -> dict[str, Any]:
    """What the package carries; times in whole tens of ns."""
    return {
        "about": table.about,
        "chain": table.chain.tolist(),
        "shape": table.shape.tolist(),
        "ways": [
            [way.split, table.about["tiles"].index(_fields(way.tile)) if way.tile else -1]
            for way in table.ways
        ],
        "time_10ns": [
            [None if np.isnan(value) else round(value / 10) for value in row]
            for row in table.time_ns.tolist()
        ],
        "compiled": [[name, chain, *got] for (name, chain), got in sorted(table.compiled.items())],
    }


def _fields(tile: Tile) -> dict[str, int]:
    return {name: getattr(tile, name) for name in ("m", "n", "k", "warps", "stages", "split")}


def from_json(found: Mapping[str, Any]) -> Table:
    """The inverse of `to_json`, but for the rounding."""
    about = dict(found["about"])
    tiles = [Tile(**fields) for fields in about["tiles"]]
    ways = tuple(Way(split, tiles[t] if t >= 0 else None) for split, t in found["ways"])
    times = np.array(found["time_10ns"], dtype=np.float64) * 10  # null becomes NaN
    compiled = {(name, chain): (regs, shared) for name, chain, regs, shared in found["compiled"]}
    return Table(
        about,
        tuple(about["chains"]),
        ways,
        tiles[about["static"]],
        np.array(found["chain"], dtype=np.int64),
        np.array(found["shape"], dtype=np.int64),
        times,
        compiled,
    )


@lru_cache
def measured() -> Table:
    """The table that comes with the package."""
    path = files("spanlite_analytics.lab.fusion").joinpath("h200.json")
    return from_json(json.loads(path.read_text()))
