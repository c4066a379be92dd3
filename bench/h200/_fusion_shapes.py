"""What the fusion table measures: layers of real models, chains, tiles. Needs no GPU."""

from __future__ import annotations

from dataclasses import dataclass

from bench.h200 import _side_door  # noqa: F401 - lets the lab in

# isort: split
from spanlite_analytics.lab.fusion.tiles import Tile, suits

#: (hidden, out) of linear layers that follow a norm, and where they are from.
LAYERS = {
    (768, 2304): "GPT-2 small, QKV",
    (768, 3072): "BERT base, up",
    (1024, 4096): "GPT-2 medium, up",
    (1536, 8960): "Qwen2 1.5B, up",
    (2048, 5632): "TinyLlama 1.1B, up",
    (2048, 8192): "Llama 3.2 1B, up",
    (3072, 8192): "Llama 3.2 3B, up",
    (3584, 18944): "Qwen2 7B, up",
    (4096, 6144): "Llama 3 8B, QKV",
    (4096, 11008): "Llama 2 7B, up",
    (4096, 14336): "Llama 3 8B, up",
    (5120, 13824): "Llama 2 13B, up",
    (8192, 10240): "Llama 2 70B, QKV",
    (8192, 28672): "Llama 2 70B, up",
}
TOKENS = (1, 8, 32, 64, 128, 256, 512, 1024, 4096)
CHAINS = ("rmsnorm,gemm,bias,silu", "layernorm,gemm,bias,gelu")
SPLITS = ("unfused", "epilogue", "prologue", "all")


#: The one that fused static uses for every shape.
STATIC = Tile(64, 128, 64, 4, 4)
TILES = (
    Tile(16, 32, 256, 4, 4),
    Tile(16, 32, 256, 4, 4, 2),
    Tile(16, 64, 128, 4, 5),
    Tile(16, 64, 128, 4, 5, 2),
    Tile(16, 64, 128, 4, 5, 4),
    Tile(16, 64, 256, 4, 3),
    Tile(16, 64, 256, 4, 3, 2),
    Tile(32, 32, 256, 4, 3),
    Tile(32, 32, 256, 4, 3, 2),
    Tile(32, 64, 128, 4, 4),
    Tile(32, 64, 128, 4, 4, 2),
    Tile(32, 64, 128, 4, 4, 4),
    Tile(64, 32, 128, 4, 5),
    Tile(64, 32, 128, 4, 5, 2),
    Tile(64, 64, 128, 4, 4),
    STATIC,
    Tile(64, 128, 64, 4, 4, 2),
    Tile(64, 128, 64, 4, 4, 4),
    Tile(64, 256, 64, 4, 4),
    Tile(128, 64, 64, 4, 4),
    Tile(128, 128, 64, 4, 4),
    Tile(128, 128, 64, 8, 4),
    Tile(128, 256, 64, 8, 3),
)
#: A prologue alone (bias and activation in a kernel of their own) is measured with these.
PROLOGUE_TILES = tuple(
    tile
    for tile in TILES
    if (tile.m, tile.n, tile.split) in {(16, 64, 2), (32, 64, 2), (128, 128, 1), (128, 256, 1)}
    or tile == STATIC
)


def tiles_for(tokens: int, hidden: int, out: int) -> list[Tile]:
    """Those that are not absurd for a shape: the static one always."""
    return [tile for tile in TILES if tile == STATIC or suits(tile, tokens, hidden, out)]


@dataclass(frozen=True)
class Candidate:
    """A way to run a chain. Without a tile the product is cuBLAS's."""

    split: str
    tile: Tile | None = None

    @property
    def name(self) -> str:
        """Of the split and its tile."""
        return self.split if self.tile is None else f"{self.split} {self.tile.name}"


def candidates(tokens: int, hidden: int, out: int) -> list[Candidate]:
    """All that are measured for a shape: torch's own, unfused, and each split by tile."""
    made = [Candidate("torch"), Candidate("unfused")]
    for tile in tiles_for(tokens, hidden, out):
        made += [Candidate("epilogue", tile), Candidate("all", tile)]
        if tile in PROLOGUE_TILES:
            made.append(Candidate("prologue", tile))
    return made


def shapes(layer: tuple[int, int] | None = None) -> list[tuple[int, int, int, int]]:
    """(chain, tokens, hidden, out): a spread over all first, so that a short run covers it.

    Of one layer: every number of tokens, both chains.
    """
    if layer:
        return [(chain, tokens, *layer) for tokens in TOKENS for chain in range(len(CHAINS))]
    layers = list(LAYERS)
    made = [
        (chain, tokens, hidden, out)
        for index, tokens in enumerate(TOKENS)
        for place, (hidden, out) in enumerate(layers)
        for chain in range(len(CHAINS))
        # The second chain at every other place.
        if chain == 0 or (index + place) % 2 == 0
    ]
    order = sorted(range(len(made)), key=lambda i: (i * 61) % len(made))
    return [made[i] for i in order]
