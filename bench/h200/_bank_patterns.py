"""The shared-memory accesses that are measured: 32 byte addresses and the active lanes each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

LANE = np.arange(32)
ALL = 0xFFFF_FFFF
#: Instructions in the order of their number in the table.
OPERATIONS = (
    "load 4 B",
    "load 8 B",
    "load 16 B",
    "store 4 B",
    "store 8 B",
    "store 16 B",
    "ldmatrix.x1",
    "ldmatrix.x2",
    "ldmatrix.x4",
    "stmatrix.x4",
)
WIDTH = {"load 4 B": 4, "load 8 B": 8, "store 4 B": 4, "store 8 B": 8}
#: What a kernel may address; its static shared memory.
SHARED_BYTES = 48 * 1024


@dataclass(frozen=True)
class Pattern:
    """One access. `family` says what it is meant to show."""

    family: str
    operation: str
    addresses: np.ndarray
    active: int = ALL


def swizzled(addresses: np.ndarray, span: int) -> np.ndarray:
    """TMA's 32-, 64- and 128-byte swizzles."""
    return addresses ^ ((addresses >> 3) & (span - 16))


def _strides() -> Iterator[Pattern]:
    for store, step in (("load", 1), ("store", 3)):
        for width, counts in ((4, (*range(34), 64, 65)), (8, (*range(18), 33)), (16, range(18))):
            for stride in counts[::step]:
                yield Pattern("stride", f"{store} {width} B", LANE * stride * width)


def _planes(draw: np.random.Generator) -> Iterator[Pattern]:
    """(lane % a) * s + (lane / a) * t."""
    for index in range(48):
        width = (4, 8, 16)[index % 3]
        kind = "store" if index % 4 == 3 else "load"
        a = int(draw.choice([2, 4, 8, 16]))
        s, t = (int(v) * width for v in draw.integers(0, 1200 // width, 2))
        yield Pattern("plane", f"{kind} {width} B", LANE % a * s + LANE // a * t)


def _pairs() -> Iterator[Pattern]:
    """Lanes that share an address: where wide loads are packed, and where not."""
    half = LANE < 16
    shapes = {
        "lane/2": LANE // 2,
        "lane/4": LANE // 4,
        "lane&~2": LANE & ~2,
        "lane%16": LANE % 16,
        "lane%2": LANE % 2,
        "pairs in the first half": np.where(half, LANE // 2, LANE),
        "pairs in the second half": np.where(half, LANE, LANE // 2),
        "lane^1 then lane^2": np.where(half, LANE & ~1, LANE & ~2),
        "all but one pair": np.where(LANE == 1, 40, LANE & ~1),
    }
    for name, places in shapes.items():
        for operation, width in (("load 8 B", 8), ("load 16 B", 16), ("store 8 B", 8)):
            yield Pattern(f"shared: {name}", operation, places * width)
    for stride in (3, 16, 32):
        yield Pattern("shared: lane/2, apart", "load 8 B", LANE // 2 * stride * 8)
        yield Pattern("shared: lane/2, apart", "load 16 B", LANE // 2 * stride * 16)


def _partial(draw: np.random.Generator) -> Iterator[Pattern]:
    """Some lanes only."""
    masks = [0x1, 0xFFFF, 0xFFFF0000, 0x55555555, 0xFF, 0x00FF00FF, 0x0F0F0F0F]
    masks += [int(m) for m in draw.integers(1, 1 << 32, 5)]
    for mask in masks:
        for operation, width in (("load 4 B", 4), ("load 8 B", 8), ("load 16 B", 16)):
            stride = int(draw.choice([1, 2, 4]))
            yield Pattern("some lanes", operation, LANE * stride * width, mask)


def _random(draw: np.random.Generator) -> Iterator[Pattern]:
    for index in range(30):
        operation = OPERATIONS[index % 6]
        width = WIDTH.get(operation, 16)
        span = int(draw.choice([64, 256, SHARED_BYTES // width]))
        yield Pattern("random", operation, draw.integers(0, span, 32) * width)


def _matrices() -> Iterator[Pattern]:
    """Rows of 8x8 matrices of a tile: lane % 8 is the row, lane / 8 the matrix."""
    row, matrix = LANE % 8, LANE // 8
    for pitch in (16, 32, 48, 64, 80, 112, 128, 144, 192, 256, 272, 512):
        yield Pattern("matrix rows", "ldmatrix.x4", row * pitch + matrix * 16)
    for pitch in (32, 64, 128, 144):
        yield Pattern("matrix rows", "stmatrix.x4", row * pitch + matrix * 16)
        yield Pattern("matrix rows", "ldmatrix.x2", row * pitch + matrix % 2 * 16)
        yield Pattern("matrix rows", "ldmatrix.x1", row * pitch)
    yield Pattern("matrix rows: one row for all", "ldmatrix.x4", LANE * 0)
    yield Pattern("matrix rows: pairs", "ldmatrix.x4", LANE // 2 * 128)
    for span in (32, 64, 128):
        tile = row * span + matrix * 8 * span
        for chunk in range(0, span // 16, 2):
            place = swizzled(tile + chunk * 16, span)
            yield Pattern(f"{span}-byte swizzle", "ldmatrix.x4", place)
            yield Pattern(f"{span}-byte swizzle", "stmatrix.x4", place)
        whole = swizzled(LANE // (span // 16) * span + LANE % (span // 16) * 16, span)
        yield Pattern(f"{span}-byte swizzle", "load 16 B", whole)
        yield Pattern(f"{span}-byte swizzle", "store 16 B", whole)
        column = swizzled(LANE * span, span)
        yield Pattern(f"{span}-byte swizzle", "load 4 B", column)
        yield Pattern(f"{span}-byte swizzle", "load 16 B", column)


def patterns(seed: int) -> list[Pattern]:
    """All of them, shuffled: a prefix is a fair sample where time runs out."""
    draw = np.random.default_rng(seed)
    made = [
        *_strides(),
        *_planes(draw),
        *_pairs(),
        *_partial(draw),
        *_random(draw),
        *_matrices(),
    ]
    for one in made:
        assert one.addresses.min() >= 0 and one.addresses.max() + 16 <= SHARED_BYTES, one
    return [made[i] for i in draw.permutation(len(made))]
