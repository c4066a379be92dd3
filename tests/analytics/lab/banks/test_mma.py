import numpy as np
import pytest
from spanlite.errors import UsageError
from spanlite_analytics.lab.banks.mma import LAYOUTS, TYPES, Tile, fill, findings, loads, tiles


def bytes_read(tile: Tile, load: str) -> set[tuple[int, int]]:
    """(row, byte) of all that one way of loading reads."""
    (one,) = [access for access in loads(tile) if access.name == load]
    lanes = one.access.matrices * 8 if one.access.is_matrix else 32
    row, byte = one.row[:, :lanes].ravel(), one.byte[:, :lanes].ravel()
    width = one.access.width_bytes
    return {(int(r), int(b) + i) for r, b in zip(row, byte, strict=True) for i in range(width)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("type_", TYPES)
def test_a_fragment_is_read_once_and_whole(type_: str, layout: str) -> None:
    size = TYPES[type_]
    for tile in tiles(64, 64, 128 // size, type_, layout):
        # 16 rows of A or 8 of B (f64: 8), over all of k.
        outer = 16 if tile.operand == "A" and size < 8 else 8
        rows, row_bytes = (outer, tile.k * size) if tile.along_k else (tile.k, outer * size)
        whole = {(r, b) for r in range(rows) for b in range(row_bytes)}
        assert bytes_read(tile, "direct") == whole
        (direct,) = [a for a in loads(tile) if a.name == "direct"]
        assert direct.row.size * direct.access.width_bytes == len(whole), "read twice"


def test_ldmatrix_reads_what_the_fragment_needs() -> None:
    for layout in LAYOUTS:
        a, b = tiles(64, 64, 64, "f16", layout)
        for tile, name in ((a, "ldmatrix"), (b, "ldmatrix")):
            name = name if tile.along_k else "ldmatrix.trans"
            assert bytes_read(tile, "direct") <= bytes_read(tile, name)


def test_fill_writes_each_row_once() -> None:
    tile = Tile("A", 64, 64, "f16", True)
    one = fill(tile)
    places = set(zip(one.row.ravel().tolist(), one.byte.ravel().tolist(), strict=True))
    assert places == {(r, c * 16) for r in range(32) for c in range(8)}


def test_sensitivity() -> None:
    found = findings([(128, 128, 64), (128, 128, 32)], ["f16"], ["row.col"])
    degree = {(f.k, f.operand, f.load): f.degree for f in found}
    # A chunk of each 128-byte row lies in the same banks, of each 64-byte row in every other.
    assert degree[64, "A", "ldmatrix"] == 8
    assert degree[32, "A", "ldmatrix"] == 4
    assert degree[64, "B", "direct"] == 8
    for one in found:
        best = one.proposals[0]
        assert (best.conflicts, best.extra_bytes, best.for_tma) == (0, 0, True), one


def test_wgmma_takes_no_padding() -> None:
    for one in findings([(64, 64, 64)], ["f16", "e4m3"], LAYOUTS):
        if one.load == "wgmma":
            assert all(p.extra_bytes == 0 and p.layout.swizzle_bytes for p in one.proposals)


@pytest.mark.parametrize(
    ("shape", "type_", "layout", "message"),
    [
        ((64, 64, 8), "f16", "row.col", "multiple of 16 x 8 x 16"),
        ((64, 64, 64), "f12", "row.col", "no such type 'f12'"),
        ((64, 64, 64), "f16", "row", "no such layout 'row'"),
    ],
)
def test_no_such_tile(shape: tuple[int, int, int], type_: str, layout: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tiles(*shape, type_, layout)


def test_every_tile_has_a_way_and_a_layout() -> None:
    for one in findings([(16, 16, 32)], list(TYPES), ["row.col", "col.row"]):
        assert one.ideal >= 1 and np.isfinite(one.degree)
