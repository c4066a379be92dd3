"""Where a tile's rows lie in shared memory, and which layout conflicts least.

A layout is a pitch (bytes from row to row) and a swizzle: 16-byte chunks change places by an
exclusive or. The swizzles of TMA and `wgmma` work on the address: in a span of 32, 64 or 128
bytes, bits 4.. take bits 7.. in. A kernel that computes its own addresses can as well take in
the row's number, which works for rows longer than 128 bytes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from spanlite.errors import UsageError

from spanlite_analytics.lab.banks.model import Access, ideal_wavefronts, wavefronts

Ints = NDArray[np.int64]
#: Bytes of the swizzle's span; 0: none.
SWIZZLES = (0, 32, 64, 128)
CHUNK_BYTES = 16
#: A padding beyond the banks' period brings nothing new.
PERIOD_BYTES = 128


def swizzle(addresses: ArrayLike, span_bytes: int) -> Ints:
    """Where a byte lies under the 32-, 64- or 128-byte swizzle; its own inverse. 0: as it is.

    Addresses count from a base that is aligned to 8 spans (1,024 bytes for 128).
    """
    if span_bytes not in SWIZZLES:
        raise UsageError(f"a swizzle spans 0, 32, 64 or 128 bytes, not {span_bytes}")
    given = np.asarray(addresses, np.int64)
    mask = span_bytes - CHUNK_BYTES if span_bytes else 0
    return given ^ (given >> 3 & mask)


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows `pitch_bytes` apart; within them a swizzle of TMA's, or `xor_rows`, but not both.

    `xor_rows`: a power of two; the chunk's number takes in `row % xor_rows`. 1: nothing.
    """

    pitch_bytes: int
    swizzle_bytes: int = 0
    xor_rows: int = 1

    def address(self, row: ArrayLike, byte: ArrayLike) -> Ints:
        """Of a byte in a row."""
        rows = np.asarray(row, np.int64)
        moved = np.asarray(byte, np.int64) ^ rows % self.xor_rows * CHUNK_BYTES
        return swizzle(rows * self.pitch_bytes + moved, self.swizzle_bytes)

    @property
    def is_plain(self) -> bool:
        """Whether each byte lies where its row and place say."""
        return not self.swizzle_bytes and self.xor_rows == 1

    @property
    def name(self) -> str:
        """For people."""
        suffix = f", {self.swizzle_bytes}-byte swizzle" if self.swizzle_bytes else ""
        suffix += f", chunk ^ row % {self.xor_rows}" if self.xor_rows > 1 else ""
        return f"pitch {self.pitch_bytes} B{suffix}"


@dataclass(frozen=True, slots=True)
class TileAccess:
    """Instructions on a tile: `row` and `byte` have shape (instructions, 32)."""

    name: str
    access: Access
    row: Ints
    byte: Ints

    def cost(self, layout: Layout) -> tuple[int, int]:
        """Wavefronts of all instructions, and how many there would be without conflicts."""
        addresses = layout.address(self.row, self.byte)
        total = int(wavefronts(self.access, addresses).sum())
        return total, int(ideal_wavefronts(self.access, addresses).sum())


@dataclass(frozen=True, slots=True)
class Proposal:
    """A layout, the wavefronts of all accesses in it, and the shared memory it adds."""

    layout: Layout
    wavefronts: int
    ideal: int
    extra_bytes: int
    #: Of each access by its name.
    by_access: dict[str, tuple[int, int]]
    #: TMA fills it and wgmma reads it as it is: they know no padding.
    for_tma: bool

    @property
    def conflicts(self) -> int:
        """Wavefronts beyond the ideal."""
        return self.wavefronts - self.ideal


def candidates(row_bytes: int, align_bytes: int) -> list[Layout]:
    """No change; swizzles that fit the row; each padding that can make a difference."""
    made = [Layout(row_bytes, span) for span in SWIZZLES if span == 0 or row_bytes % span == 0]
    made += [
        Layout(row_bytes, xor_rows=rows)
        for rows in (2, 4, 8)
        if row_bytes % (CHUNK_BYTES * rows) == 0
    ]
    paddings = range(align_bytes - row_bytes % align_bytes, PERIOD_BYTES, align_bytes)
    return made + [Layout(row_bytes + extra) for extra in paddings]


def propose(rows: int, row_bytes: int, accesses: Sequence[TileAccess]) -> list[Proposal]:
    """All candidates, the fewest conflicts first, then the least shared memory.

    Layouts in which an access would be misaligned are left out.
    """
    align = max(4, *(access.access.width_bytes for access in accesses))
    layouts = candidates(row_bytes, align)
    found = [_proposal(rows, row_bytes, layout, accesses) for layout in layouts]
    usable = [one for one in found if one is not None]
    return sorted(usable, key=lambda p: (p.conflicts, p.extra_bytes, not p.for_tma))


def _proposal(
    rows: int, row_bytes: int, layout: Layout, accesses: Sequence[TileAccess]
) -> Proposal | None:
    if any((layout.address(a.row, a.byte) % a.access.width_bytes).any() for a in accesses):
        return None
    by_access = {a.name: a.cost(layout) for a in accesses}
    totals = [sum(column) for column in zip(*by_access.values(), strict=True)]
    extra = rows * (layout.pitch_bytes - row_bytes)
    # TMA's box is as wide as its swizzle; a wider row is several boxes beside each other.
    for_tma = extra == 0 and layout.xor_rows == 1 and layout.swizzle_bytes in (0, row_bytes)
    return Proposal(layout, totals[0], totals[1], extra, by_access, for_tma)
