"""Chains, traffic and tiles, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite.errors import UsageError
from spanlite_analytics.lab.fusion import SPLITS, Chain, Shape, Tile, kernels_of, resources
from spanlite_analytics.lab.fusion.tiles import registers, shared_bytes, suits

FULL = Chain("rmsnorm", True, "silu")
SHAPE = Shape(16, 64, 96)


@pytest.mark.parametrize(
    ("text", "chain", "splits"),
    [
        ("rmsnorm,gemm,bias,silu", FULL, SPLITS),
        ("LayerNorm, GEMM, bias, GELU", Chain("layernorm", True, "gelu"), SPLITS),
        ("gemm,bias", Chain("", True, ""), ("unfused", "epilogue")),
        ("rmsnorm,gemm", Chain("rmsnorm"), ("unfused", "prologue")),
        ("gemm", Chain(), ("unfused", "epilogue")),
    ],
)
def test_parse(text: str, chain: Chain, splits: tuple[str, ...]) -> None:
    assert Chain.parse(text) == chain
    assert Chain.parse(chain.name) == chain
    assert chain.splits == splits


@pytest.mark.parametrize("text", ["", "gemm,rmsnorm", "gemm,silu,bias", "bias", "gemm,gemm", "x"])
def test_parse_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="must be"):
        Chain.parse(text)


def test_kernels_of_each_split() -> None:
    x, w, y = 2 * 16 * 64, 2 * 64 * 96, 2 * 16 * 96
    names = {split: [k.what for k in kernels_of(FULL, SHAPE, split)] for split in SPLITS}
    assert names == {
        "unfused": ["rmsnorm", "gemm", "bias+silu"],
        "epilogue": ["rmsnorm", "gemm+bias+silu"],
        "prologue": ["rmsnorm+gemm", "bias+silu"],
        "all": ["rmsnorm+gemm+bias+silu"],
    }
    norm, gemm, last = kernels_of(FULL, SHAPE, "unfused")
    assert (norm.read_bytes, norm.write_bytes) == (x + 128, x)
    assert (gemm.read_bytes, gemm.write_bytes, gemm.flops) == (x + w, y, 2 * 16 * 64 * 96)
    assert (last.read_bytes, last.write_bytes) == (y + 4 * 96, y)
    (whole,) = kernels_of(FULL, SHAPE, "all", tile_n=32)
    assert (whole.read_bytes, whole.write_bytes) == (x + w + 4 * 96, y)
    # Three columns of tiles; two of them form the sums of squares again: 2 FLOPs an element.
    assert whole.again_flops == 2 * 2 * 16 * 64


@given(st.integers(1, 4096), st.integers(1, 64), st.integers(1, 64))
def test_fusing_never_adds_bytes(tokens: int, hidden: int, out: int) -> None:
    shape = Shape(tokens, hidden * 16, out * 16)

    def moved(split: str) -> float:
        return sum(k.read_bytes + k.write_bytes for k in kernels_of(FULL, shape, split))

    assert moved("all") < min(moved("epilogue"), moved("prologue"))
    assert max(moved("epilogue"), moved("prologue")) < moved("unfused")


def test_tiles() -> None:
    tile = Tile(128, 256, 64, 8, 3)
    assert shared_bytes(tile) == 3 * (128 + 256) * 64 * 2
    got = resources(tile)
    assert (got.blocks_per_sm, got.shared_bytes) == (1, shared_bytes(tile))
    # 256 x 128 sums of 256 threads are 128 registers each: two blocks would need all there are.
    assert got.registers > 128
    # One sum of each element under way, or two.
    assert [registers(tile, norm) for norm in ("", "rmsnorm", "layernorm")] == [192, 192, 200]
    small = resources(Tile(16, 32, 64, 4, 4))
    assert small.blocks_per_sm > 4
    known = resources(tile, "rmsnorm", compiled=(64, 20_000))
    assert (known.registers, known.shared_bytes, known.blocks_per_sm) == (64, 20_000, 4)


def test_blocks_and_what_suits() -> None:
    tile = Tile(64, 128, 64, 4, 4, 2)
    assert tile.blocks(100, 1000) == 2 * 8 * 2
    assert suits(tile, 64, 4096, 4096)
    assert not suits(tile, 8, 4096, 4096)
    assert not suits(tile, 64, 4096, 1 << 17)  # the grid is large enough without a split of K
    assert not suits(Tile(16, 32, 256, 4, 4), 8, 1600, 4096)
    assert math.isclose(Shape(2, 3, 4).flops, 48)
