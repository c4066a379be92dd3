"""Words for a terminal."""

from __future__ import annotations


def shortened(name: str, width: int) -> str:
    """`name` in at most `width` characters, its end replaced by an ellipsis."""
    return name if len(name) <= width else name[: width - 1] + "…"
