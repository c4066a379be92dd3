"""Where to split a chain of norm, matrix product, bias and activation into kernels."""

from spanlite_analytics.lab.fusion.chain import SPLITS, Chain, Kernel, Shape, kernels_of
from spanlite_analytics.lab.fusion.tiles import Resources, Tile, resources

__all__ = [
    "SPLITS",
    "Chain",
    "Kernel",
    "Resources",
    "Shape",
    "Tile",
    "kernels_of",
    "resources",
]
