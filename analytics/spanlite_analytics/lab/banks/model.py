"""How many wavefronts one shared-memory instruction of a warp takes.

Shared memory has 32 banks; successive 4-byte words lie in successive banks. In one wavefront
each bank serves one word, to any number of lanes. What goes into one wavefront at all:

- up to 4 bytes a lane: the whole warp;
- 8 bytes: half a warp, so two wavefronts at least; 16 bytes: a quarter, so four;
- 8 and 16 bytes loaded where each lane pairs with a neighbour (lane ^ 1, or lane ^ 2) of the same
  address: twice as many lanes, since their data is packed on the way back;
- `ldmatrix` and `stmatrix`: the eight 16-byte rows of one 8x8 matrix.

A wavefront more than these is a conflict. The profiler's `l1tex__data_bank_conflicts` counts
just those; its `wavefronts` counts them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from spanlite.errors import UsageError

Ints = NDArray[np.int64]
LANES = 32
BANKS = 32
WORD_BYTES = 4
WIDTHS = (1, 2, 4, 8, 16)
#: Lanes whose rows make one 8x8 matrix.
MATRIX_LANES = 8
MATRIX_ROW_BYTES = 16

Kind = Literal["load", "store", "ldmatrix", "stmatrix"]
KINDS: tuple[Kind, ...] = ("load", "store", "ldmatrix", "stmatrix")


@dataclass(frozen=True, slots=True)
class Rules:
    """What NVIDIA's documents leave open. The defaults are what an H200 does.

    `python -m bench.lab_banks` compares them with its counters.
    """

    #: Whether 16-byte loads are packed for each half warp by itself, not for both or none.
    pack_by_half: bool = False
    #: Whether stores are packed like loads.
    pack_stores: bool = False


DEFAULT_RULES = Rules()


@dataclass(frozen=True, slots=True)
class Access:
    """What the lanes of a warp do in one instruction.

    `width_bytes`: of each lane; for the matrix instructions always 16, a row of a matrix.
    `matrices`: 1, 2 or 4 of a matrix instruction; its lanes 0-7 give the rows of the first
    matrix, 8-15 those of the second, and so on.
    """

    kind: Kind
    width_bytes: int = 4
    matrices: int = 4

    def __post_init__(self) -> None:
        if self.width_bytes not in WIDTHS:
            raise UsageError(f"a lane accesses 1, 2, 4, 8 or 16 bytes, not {self.width_bytes}")
        if self.is_matrix and (self.matrices not in (1, 2, 4) or self.width_bytes != 16):
            raise UsageError("a matrix instruction moves 1, 2 or 4 matrices with rows of 16 bytes")

    @property
    def is_matrix(self) -> bool:
        """Whether it is `ldmatrix` or `stmatrix`."""
        return self.kind in ("ldmatrix", "stmatrix")

    @property
    def name(self) -> str:
        """Such as `load 8 B` or `ldmatrix.x4`."""
        if self.is_matrix:
            return f"{self.kind}.x{self.matrices}"
        return f"{self.kind} {self.width_bytes} B"


def wavefronts(
    access: Access,
    addresses: ArrayLike,
    active: ArrayLike = True,
    rules: Rules = DEFAULT_RULES,
) -> Ints:
    """Wavefronts of each instruction.

    `addresses`: bytes, shape (..., 32), a multiple of the width. `active`: which lanes take
    part, broadcast against it. Returns shape (...); 0 where no lane takes part.
    Raises UsageError for addresses that the hardware would refuse.
    """
    each = _each_phase(access, *_checked(access, addresses, active), rules)
    return np.asarray(each.sum(axis=-1), np.int64)


def ideal_wavefronts(
    access: Access,
    addresses: ArrayLike,
    active: ArrayLike = True,
    rules: Rules = DEFAULT_RULES,
) -> Ints:
    """Wavefronts if no two lanes met in a bank: one for each phase with an active lane."""
    each = _each_phase(access, *_checked(access, addresses, active), rules)
    return np.asarray((each > 0).sum(axis=-1), np.int64)


def bank_words(access: Access, addresses: ArrayLike, active: ArrayLike = True) -> Ints:
    """Distinct words in each bank and phase: shape (..., phases, 32)."""
    given, on = _checked(access, addresses, active)
    lanes = _lanes_of_a_phase(access)
    shape = (*given.shape[:-1], LANES // lanes, lanes)
    return _distinct_words(access, given.reshape(shape), on.reshape(shape))


def _checked(
    access: Access, addresses: ArrayLike, active: ArrayLike
) -> tuple[Ints, NDArray[np.bool_]]:
    given, on = np.broadcast_arrays(np.asarray(addresses, np.int64), np.asarray(active, np.bool_))
    if given.ndim == 0 or given.shape[-1] != LANES:
        raise UsageError(
            f"a warp has {LANES} addresses, not {given.shape[-1] if given.ndim else 1}"
        )
    if access.is_matrix:
        on = on & (np.arange(LANES) < access.matrices * MATRIX_LANES)
    used = given[on]
    if used.size and (used.min() < 0 or (used % access.width_bytes).any()):
        wrong = next(a for a in used.tolist() if a < 0 or a % access.width_bytes)
        raise UsageError(f"address {wrong} is not a multiple of {access.width_bytes} bytes")
    return given, on


def _lanes_of_a_phase(access: Access) -> int:
    return min(LANES, LANES * WORD_BYTES // access.width_bytes)


def _each_phase(access: Access, given: Ints, on: NDArray[np.bool_], rules: Rules) -> Ints:
    """Wavefronts of each phase, shape (..., phases)."""
    lanes = _lanes_of_a_phase(access)
    apart = _phases(access, given, on, lanes)
    packing = access.kind == "load" or (access.kind == "store" and rules.pack_stores)
    if not packing or lanes == LANES:
        return apart
    joined = _phases(access, given, on, 2 * lanes)
    scopes = joined.shape[-1] if rules.pack_by_half else 1
    packs = np.repeat(_packs(given, on, scopes), joined.shape[-1] // scopes, axis=-1)
    pairs = apart.reshape(*joined.shape, 2)
    one = np.stack([joined, np.zeros_like(joined)], axis=-1)
    return np.where(packs[..., None], one, pairs).reshape(apart.shape)


def _phases(access: Access, given: Ints, on: NDArray[np.bool_], lanes: int) -> Ints:
    shape = (*given.shape[:-1], LANES // lanes, lanes)
    words = _distinct_words(access, given.reshape(shape), on.reshape(shape))
    return np.asarray(words.max(axis=-1), np.int64)


def _packs(given: Ints, on: NDArray[np.bool_], scopes: int) -> NDArray[np.bool_]:
    """Whether each active lane has the address of its neighbour, if that is active.

    For each of the equal parts of the warp: shape (..., scopes).
    """
    found = np.zeros((*given.shape[:-1], scopes), np.bool_)
    for distance in (1, 2):
        other = np.arange(LANES) ^ distance
        same = (given == given[..., other]) | ~on | ~on[..., other]
        found |= same.reshape(*given.shape[:-1], scopes, -1).all(axis=-1)
    return found


def _distinct_words(access: Access, given: Ints, on: NDArray[np.bool_]) -> Ints:
    """Of each phase (the last axis is its lanes), the distinct words in each bank."""
    words = np.maximum(access.width_bytes // WORD_BYTES, 1)
    touched = given[..., None] // WORD_BYTES + np.arange(words)
    flat = touched.reshape(*given.shape[:-1], -1)
    flat = np.where(np.repeat(on, words, axis=-1), flat, -1)
    flat = np.sort(flat, axis=-1)
    new = np.ones(flat.shape, np.bool_)
    new[..., 1:] = flat[..., 1:] != flat[..., :-1]
    new &= flat >= 0
    bank = np.where(new, flat % BANKS, BANKS)
    # One count for each phase and bank; what is no new word goes to a bank of its own.
    phases = bank.size // bank.shape[-1]
    place = bank.reshape(phases, -1) + np.arange(phases)[:, None] * (BANKS + 1)
    counts = np.bincount(place.ravel(), minlength=phases * (BANKS + 1))
    return counts.reshape(*given.shape[:-1], BANKS + 1)[..., :BANKS]
