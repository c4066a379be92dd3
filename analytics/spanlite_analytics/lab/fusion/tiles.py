"""Tiles of the fused kernel: shared memory, registers and occupancy.

The kernel is `bench/h200/_fusion_kernels.py`: a Triton loop over K whose stages lie in shared
memory, accumulators in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from spanlite.occupancy import SmLimits, limits_of

from spanlite_analytics.lab.occupancy import Launch, on

_BYTES = 2
#: Rows from which Hopper's `wgmma` does the product (warp group of four warps, 64 rows).
WGMMA_ROWS = 64
#: Addresses, loop, predicates: what a kernel takes beside its numbers.
_BASE_REGISTERS = 40
MOST_REGISTERS = 255
#: Of the rows, a thread: what the first pass keeps under way.
_PASS_ELEMENTS = 64
#: Sums that a fused norm forms of a row.
SUMS = {"rmsnorm": 1, "layernorm": 2}
#: Of an H200.
SMS = 132


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, columns and depth of a block's tile; warps; stages of the pipeline; parts of K."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    split: int = 1

    @property
    def name(self) -> str:
        """Such as 64x128x64 w4 s4 k1."""
        return f"{self.m}x{self.n}x{self.k} w{self.warps} s{self.stages} k{self.split}"

    def blocks(self, tokens: int, out: int) -> int:
        """Of the launch."""
        return -(-tokens // self.m) * -(-out // self.n) * self.split


def suits(tile: Tile, tokens: int, hidden: int, out: int) -> bool:
    """Whether a tile is worth a thought for a shape: neither mostly empty nor far too small."""
    low = 16 if tokens <= 16 else 32 if tokens <= 32 else 64
    if tokens > 256:
        low = 64 if tile.n >= 128 else 128
    high = 16 if tokens <= 16 else 64 if tokens <= 64 else 128
    whole = hidden % tile.k == 0
    crowded = tile.split > 1 and tile.blocks(tokens, out) // tile.split > 2 * SMS
    return whole and not crowded and low <= tile.m <= high


@dataclass(frozen=True, slots=True)
class Resources:
    """Of a block, and how many an SM holds."""

    shared_bytes: int
    registers: int
    blocks_per_sm: int
    limiters: str


def shared_bytes(tile: Tile) -> int:
    """The stages of both operands. `wgmma` reads while the next stage is filled: one more."""
    buffers = tile.stages if tile.m >= WGMMA_ROWS else tile.stages - 1
    return buffers * (tile.m + tile.n) * tile.k * _BYTES


def registers(tile: Tile, norm: str = "") -> int:
    """A thread's accumulators, and a 64-bit address for each 16 bytes that it copies a stage.

    With a norm the pass over the rows before the product may need more: of each of the 64
    elements that a thread has under way half a register, and one for each sum.
    """
    threads = 32 * tile.warps
    addresses = (tile.m + tile.n) * tile.k * _BYTES / 16 / threads
    product = _BASE_REGISTERS + tile.m * tile.n / threads + 2 * addresses
    first = _BASE_REGISTERS + _PASS_ELEMENTS * (0.5 + SUMS[norm]) if norm else 0
    most = int(max(product, first))
    return min(-(-most // 8) * 8, MOST_REGISTERS)


def resources(
    tile: Tile,
    norm: str = "",
    compiled: tuple[int, int] | None = None,
    sm: SmLimits | None = None,
) -> Resources:
    """By the model, or of a compiled kernel (registers, bytes of shared memory)."""
    regs, shared = compiled or (registers(tile, norm), shared_bytes(tile))
    limits = sm or limits_of("9.0")
    got = on(limits, Launch(32 * tile.warps, regs, dynamic_shared_bytes=shared))
    row = got.row()
    return Resources(shared, regs, int(row["blocks"]), str(row["limiters"]))
