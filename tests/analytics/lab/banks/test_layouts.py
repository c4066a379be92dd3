import numpy as np
import pytest
from spanlite.errors import UsageError
from spanlite_analytics.lab.banks import Access, Layout, propose, swizzle, wavefronts
from spanlite_analytics.lab.banks.layouts import TileAccess, candidates

LANE = np.arange(32)


@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_a_swizzle_moves_whole_chunks_within_its_span(span: int) -> None:
    places = np.arange(4096)
    moved = swizzle(places, span)
    assert sorted(moved.tolist()) == places.tolist()
    assert (swizzle(moved, span) == places).all()
    assert (moved % 16 == places % 16).all()
    if span:
        assert (moved // span == places // span).all()
        assert (moved != places).any()


def test_the_128_byte_swizzle_by_hand() -> None:
    """Row r of 128 bytes: chunk c lies at chunk c ^ (r % 8)."""
    rows, chunks = np.divmod(np.arange(64), 8)
    expected = rows * 128 + (chunks ^ rows) * 16
    assert swizzle(rows * 128 + chunks * 16, 128).tolist() == expected.tolist()


@pytest.mark.parametrize("span", [32, 64, 128])
def test_core_matrices_of_a_swizzled_tile_are_free(span: int) -> None:
    for chunk in range(span // 16):
        place = swizzle(LANE % 8 * span + LANE // 8 * 8 * span + chunk * 16, span)
        assert wavefronts(Access("ldmatrix", 16), place) == 4


@pytest.mark.parametrize("row_bytes", [64, 128, 256, 272, 36])
def test_a_layout_keeps_every_byte(row_bytes: int) -> None:
    row, byte = np.divmod(np.arange(16 * row_bytes), row_bytes)
    for layout in candidates(row_bytes, 4):
        assert len(np.unique(layout.address(row, byte))) == len(row), layout.name


def column(width: int) -> TileAccess:
    return TileAccess("column", Access("load", width), LANE[None], np.zeros((1, 32), np.int64))


def test_a_transpose_is_mended_by_one_word() -> None:
    """32 x 32 floats, read by columns: the textbook's answer."""
    found = propose(32, 128, [column(4)])
    assert (found[0].layout, found[0].conflicts, found[0].extra_bytes) == (Layout(132), 0, 128)
    # A swizzle moves chunks of four words, so four lanes still meet in each bank.
    swizzles = {p.layout.swizzle_bytes: p.conflicts for p in found if not p.extra_bytes}
    assert swizzles[128] == 3


def test_ranked_by_conflicts_then_bytes() -> None:
    found = propose(64, 256, [TileAccess("rows", Access("ldmatrix", 16), *rows())])
    keys = [(p.conflicts, p.extra_bytes) for p in found]
    assert keys == sorted(keys)
    assert found[0].layout == Layout(256, xor_rows=8)
    assert found[0].extra_bytes == 0
    assert not found[0].for_tma
    assert {p.layout for p in found if p.for_tma} == {Layout(256)}


def rows() -> tuple[np.ndarray, np.ndarray]:
    return (LANE % 8)[None], (LANE // 8 * 16)[None]


def test_misaligned_layouts_are_left_out() -> None:
    wide = TileAccess("column", Access("load", 8), LANE[None], np.zeros((1, 32), np.int64))
    assert all(p.layout.pitch_bytes % 8 == 0 for p in propose(32, 36, [wide]))


def test_no_such_swizzle() -> None:
    with pytest.raises(UsageError, match="not 48"):
        swizzle(LANE, 48)
