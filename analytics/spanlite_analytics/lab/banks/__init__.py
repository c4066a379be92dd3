"""Shared-memory bank conflicts: how many wavefronts a warp's access takes, and better layouts."""

from spanlite_analytics.lab.banks.layouts import Layout, Proposal, propose, swizzle
from spanlite_analytics.lab.banks.model import Access, ideal_wavefronts, wavefronts

__all__ = [
    "Access",
    "Layout",
    "Proposal",
    "ideal_wavefronts",
    "propose",
    "swizzle",
    "wavefronts",
]
