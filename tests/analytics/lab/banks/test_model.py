from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite.errors import UsageError
from spanlite_analytics.lab.banks import Access, ideal_wavefronts, wavefronts
from spanlite_analytics.lab.banks.model import Rules, bank_words

LANE = np.arange(32)


@pytest.mark.parametrize(
    ("stride", "expected"), [(0, 1), (1, 1), (2, 2), (3, 1), (4, 4), (16, 16), (32, 32), (33, 1)]
)
def test_word_strides(stride: int, expected: int) -> None:
    """The programming guide's own examples: 1 and 3 words free, 2 words two-way."""
    assert wavefronts(Access("load"), LANE * 4 * stride) == expected
    assert wavefronts(Access("store"), LANE * 4 * stride) == expected


def test_wide_accesses_take_the_warp_in_parts() -> None:
    assert wavefronts(Access("load", 8), LANE * 8) == 2
    assert wavefronts(Access("load", 16), LANE * 16) == 4
    # As profiled with 128 bytes from lane to lane: 32 wavefronts, 28 of them conflicts.
    assert wavefronts(Access("load", 16), LANE * 128) == 32
    assert ideal_wavefronts(Access("load", 16), LANE * 128) == 4
    assert wavefronts(Access("load", 8), LANE * 16) == 4


def test_wide_loads_of_pairs_are_packed() -> None:
    for pairs in (LANE // 2, LANE // 4 * 2 + LANE % 2, LANE * 0):
        assert wavefronts(Access("load", 8), pairs * 8) == 1
        assert wavefronts(Access("load", 16), pairs * 16) == 2
        assert wavefronts(Access("store", 8), pairs * 8) == 2
    almost = np.where(LANE == 1, 40, LANE & ~1)
    assert wavefronts(Access("load", 8), almost * 8) > 1


def test_what_is_left_open() -> None:
    halves = np.where(LANE < 16, LANE // 2, LANE) * 16
    assert wavefronts(Access("load", 16), halves) == 4
    assert wavefronts(Access("load", 16), halves, rules=Rules(pack_by_half=True)) == 3
    assert ideal_wavefronts(Access("load", 16), halves, rules=Rules(pack_by_half=True)) == 3
    stores = Rules(pack_stores=True)
    assert wavefronts(Access("store", 8), LANE // 2 * 8, rules=stores) == 1
    assert wavefronts(Access("stmatrix", 16), LANE // 2 * 16, rules=stores) == 4


def test_words_that_lanes_share_are_served_once() -> None:
    assert wavefronts(Access("load"), LANE % 4 * 4) == 1
    assert wavefronts(Access("load", 2), LANE * 2) == 1
    assert wavefronts(Access("load", 1), LANE) == 1


def test_inactive_lanes_cost_nothing() -> None:
    stride = LANE * 128
    assert wavefronts(Access("load"), stride, LANE < 5) == 5
    assert wavefronts(Access("load"), stride, LANE < 0) == 0
    assert ideal_wavefronts(Access("load", 16), LANE * 16, LANE < 8) == 1
    # What an inactive lane would address does not matter, even if it is misaligned.
    assert wavefronts(Access("load"), np.where(LANE == 3, -7, LANE * 4), LANE != 3) == 1


def test_matrices() -> None:
    row, matrix = LANE % 8, LANE // 8
    assert wavefronts(Access("ldmatrix", 16), row * 16 + matrix * 128) == 4
    assert wavefronts(Access("ldmatrix", 16), row * 128 + matrix * 16) == 32
    assert wavefronts(Access("ldmatrix", 16), row * 144 + matrix * 16) == 4
    assert wavefronts(Access("ldmatrix", 16, 1), row * 128) == 8
    assert wavefronts(Access("stmatrix", 16, 2), row * 64 + matrix % 2 * 16) == 8


def test_many_instructions_at_once() -> None:
    strides = np.arange(1, 9)[:, None] * LANE * 4
    assert wavefronts(Access("load"), strides).tolist() == [1, 2, 1, 4, 1, 2, 1, 8]
    assert wavefronts(Access("load"), strides[None, :, None]).shape == (1, 8, 1)


def test_bank_words() -> None:
    words = bank_words(Access("load"), LANE * 8)
    assert words.shape == (1, 32)
    assert words[0].tolist() == [2, 0] * 16


def test_what_the_hardware_refuses() -> None:
    with pytest.raises(UsageError, match="address 4 is not a multiple of 8"):
        wavefronts(Access("load", 8), LANE * 4)
    with pytest.raises(UsageError, match="a warp has 32 addresses"):
        wavefronts(Access("load"), np.arange(31) * 4)
    with pytest.raises(UsageError, match="1, 2, 4, 8 or 16 bytes"):
        Access("load", 3)
    with pytest.raises(UsageError, match="1, 2 or 4 matrices"):
        Access("ldmatrix", 16, 3)


def by_sets(kind: str, width: int, addresses: list[int], active: list[bool]) -> int:
    """The rules once more, plainly, with sets."""

    def phase(lanes: range) -> int:
        banks = defaultdict(set)
        for lane in lanes:
            if active[lane]:
                for byte in range(addresses[lane], addresses[lane] + width):
                    banks[byte // 4 % 32].add(byte // 4)
        return max((len(words) for words in banks.values()), default=0)

    size = min(32, 128 // width)
    on = [lane for lane in range(32) if active[lane]]
    for distance in (1, 2):
        pairs = [(lane, lane ^ distance) for lane in on if active[lane ^ distance]]
        if kind == "load" and width > 4 and all(addresses[a] == addresses[b] for a, b in pairs):
            size = min(32, 256 // width)
    return sum(phase(range(start, start + size)) for start in range(0, 32, size))


@given(
    kind=st.sampled_from(["load", "store"]),
    width=st.sampled_from([1, 2, 4, 8, 16]),
    places=st.lists(st.integers(0, 200), min_size=32, max_size=32),
    pairs=st.booleans(),
    mask=st.integers(0, 2**32 - 1),
)
def test_same_as_sets(kind: str, width: int, places: list[int], pairs: bool, mask: int) -> None:
    if pairs:
        places = [places[lane & ~1] for lane in range(32)]
    addresses = [place * width for place in places]
    active = [bool(mask >> lane & 1) for lane in range(32)]
    access = Access(kind, width)  # type: ignore[arg-type]
    got = int(wavefronts(access, addresses, active))
    assert got == by_sets(kind, width, addresses, active)
    assert int(ideal_wavefronts(access, addresses, active)) <= got
