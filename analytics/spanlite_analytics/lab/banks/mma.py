"""How the operands of a matrix multiplication are read from a tile in shared memory.

`mma.sync` spreads an operand over the lanes in one way for every type, counted in bytes: lane
`4 g + t` holds 4 bytes (8 for f64) of row `g` at byte `4 t`; further registers lie 8 rows or
16 bytes on. `ldmatrix` brings the same with one 16-byte row a lane. `wgmma` reads 8 rows of 16
bytes at a time by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spanlite.errors import UsageError

from spanlite_analytics.lab.banks.layouts import Layout, Proposal, TileAccess, propose
from spanlite_analytics.lab.banks.model import LANES, Access

Ints = NDArray[np.int64]
#: Bytes of an element.
TYPES = {"f64": 8, "tf32": 4, "f32": 4, "f16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1, "s8": 1}
LAYOUTS = ("row.col", "row.row", "col.col", "col.row")
#: One instruction covers so many bytes along k, whatever the type: k16 of f16, k8 of tf32.
STEP_BYTES = 32
CHUNK_BYTES = 16
_LANE = np.arange(LANES)
_G, _T = _LANE // 4, _LANE % 4


@dataclass(frozen=True, slots=True)
class Tile:
    """An operand in shared memory: `outer` is m of A or n of B.

    `along_k`: whether k is contiguous (A row, B col); else m or n is.
    """

    operand: str
    outer: int
    k: int
    type: str
    along_k: bool

    @property
    def rows(self) -> int:
        """Rows in shared memory."""
        return self.outer if self.along_k else self.k

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, unpadded."""
        return (self.k if self.along_k else self.outer) * TYPES[self.type]


def tiles(m: int, n: int, k: int, type_: str, layout: str) -> tuple[Tile, Tile]:
    """A and B of a block's tile. Raises UsageError where `mma` has no such thing."""
    if type_ not in TYPES:
        raise UsageError(f"no such type '{type_}'; there are {', '.join(TYPES)}")
    if layout not in LAYOUTS:
        raise UsageError(f"no such layout '{layout}'; there are {', '.join(LAYOUTS)}")
    if m < 16 or n < 8 or m % 16 or n % 8 or k * TYPES[type_] % STEP_BYTES or k < 1:
        step = STEP_BYTES // TYPES[type_]
        raise UsageError(f"a tile of {type_} is a multiple of 16 x 8 x {step}, not {m}x{n}x{k}")
    a, b = layout.split(".")
    return Tile("A", m, k, type_, a == "row"), Tile("B", n, k, type_, b == "col")


def loads(tile: Tile) -> list[TileAccess]:
    """The ways to read the operand that its type and order allow."""
    size = TYPES[tile.type]
    found = [_direct(tile)]
    if tile.along_k and size < 8:
        found.append(_ldmatrix(tile))
    if not tile.along_k and size == 2 and tile.outer % 16 == 0:
        found.append(_ldmatrix_trans(tile))
    if size <= 2 and tile.row_bytes % CHUNK_BYTES == 0 and tile.rows % 8 == 0:
        found.append(_wgmma(tile))
    return found


def fill(tile: Tile) -> TileAccess:
    """Writing the tile row after row, 16 bytes a lane, as `cp.async` and vector stores do."""
    width = CHUNK_BYTES if tile.row_bytes % CHUNK_BYTES == 0 else 4
    row_pieces = tile.row_bytes // width
    # Layouts repeat after 8 rows (some paddings after 32), so that the first rows tell it all.
    pieces = min(tile.rows, 32) * row_pieces
    place = np.arange(-(-pieces // LANES) * LANES).reshape(-1, LANES) % (tile.rows * row_pieces)
    return TileAccess(
        "fill", Access("store", width), place // row_pieces, place % row_pieces * width
    )


def _stack(parts: Iterable[tuple[Any, Any]]) -> tuple[Ints, Ints]:
    rows, places = zip(*(np.broadcast_arrays(r, b) for r, b in parts), strict=True)
    return np.stack(rows), np.stack(places)


def _direct(tile: Tile) -> TileAccess:
    """Each register loaded by itself; across the order, each element."""
    size = TYPES[tile.type]
    width = min(size, 8) if not tile.along_k else max(size, 4)
    return TileAccess("direct", Access("load", width), *_stack(_direct_places(tile, size)))


def _direct_places(tile: Tile, size: int) -> Iterator[tuple[Any, Any]]:
    lane_bytes = max(size, 4)
    for start in range(0, tile.k * size, STEP_BYTES):
        for outer, byte in _registers(tile.operand, lane_bytes):
            along = start + byte + _T * lane_bytes
            if tile.along_k:
                yield _G + outer, along
            else:
                for element in range(lane_bytes // size):
                    yield along // size + element, (_G + outer) * size


def _registers(operand: str, lane_bytes: int) -> list[tuple[int, int]]:
    """(rows on, bytes on) of each register."""
    if lane_bytes == 8:
        return [(0, 0)]
    return [(o, b) for b in (0, CHUNK_BYTES) for o in ((0, 8) if operand == "A" else (0,))]


def _ldmatrix(tile: Tile) -> TileAccess:
    if tile.operand == "A":
        row, byte = _LANE % 16, _LANE // 16 * CHUNK_BYTES
    else:
        wide = tile.outer % 16 == 0
        row = _LANE % 8 + (_LANE // 16 * 8 if wide else 0)
        byte = _LANE // 8 % 2 * CHUNK_BYTES
    starts = range(0, tile.k * TYPES[tile.type], STEP_BYTES)
    matrices = 4 if tile.operand == "A" or tile.outer % 16 == 0 else 2
    places = _stack((row, byte + start) for start in starts)
    return TileAccess("ldmatrix", Access("ldmatrix", CHUNK_BYTES, matrices), *places)


def _ldmatrix_trans(tile: Tile) -> TileAccess:
    if tile.operand == "A":
        row, byte = _LANE % 8 + _LANE // 16 * 8, _LANE // 8 % 2 * CHUNK_BYTES
    else:
        row, byte = _LANE % 16, _LANE // 16 * CHUNK_BYTES
    places = _stack((row + start, byte) for start in range(0, tile.k, 16))
    return TileAccess("ldmatrix.trans", Access("ldmatrix", CHUNK_BYTES), *places)


def _wgmma(tile: Tile) -> TileAccess:
    """Core matrices: 8 rows of 16 bytes, one after the other along the row."""
    cores = min(tile.row_bytes // CHUNK_BYTES, 4)
    matrices = 4 if cores == 4 else 2
    row, byte = _LANE % 8, _LANE // 8 % matrices * CHUNK_BYTES
    starts = range(0, tile.row_bytes, matrices * CHUNK_BYTES)
    places = _stack((row, (byte + start) % tile.row_bytes) for start in starts)
    return TileAccess("wgmma", Access("ldmatrix", CHUNK_BYTES, matrices), *places)


@dataclass(frozen=True, slots=True)
class Finding:
    """One way to read one operand of a tile: what it costs unpadded, and the best layouts."""

    m: int
    n: int
    k: int
    type: str
    layout: str
    operand: str
    load: str
    row_bytes: int
    #: Wavefronts an instruction, and without conflicts.
    wavefronts: float
    ideal: float
    proposals: tuple[Proposal, ...]

    @property
    def degree(self) -> float:
        """How many times the ideal it takes: 1 is free of conflicts."""
        return self.wavefronts / self.ideal


def findings(
    shapes: Sequence[tuple[int, int, int]], types: Sequence[str], layouts: Sequence[str]
) -> list[Finding]:
    """Sensitivity over (m, n, k, type, layout): each operand, each way to read it.

    The proposals count reading and filling the tile.
    """
    return [
        _finding((m, n, k), layout, tile, load)
        for m, n, k in shapes
        for type_ in types
        for layout in layouts
        for tile in tiles(m, n, k, type_, layout)
        for load in loads(tile)
    ]


def _finding(shape: tuple[int, int, int], layout: str, tile: Tile, load: TileAccess) -> Finding:
    found = propose(tile.rows, tile.row_bytes, [load, fill(tile)])
    if load.name == "wgmma":
        found = [p for p in found if p.for_tma and p.layout.swizzle_bytes]
    total, ideal = load.cost(Layout(tile.row_bytes))
    count = len(load.row)
    return Finding(
        *shape,
        tile.type,
        layout,
        tile.operand,
        load.name,
        tile.row_bytes,
        total / count,
        ideal / count,
        tuple(found),
    )
