"""Numbers as people read them."""

from __future__ import annotations

_TIMES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def _three_digits(value: float) -> str:
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{digits}f}"


def time_words(ns: float) -> str:
    """`412 ns`, `12.3 us`, `3.21 ms`, `1.24 s`."""
    for unit, word in _TIMES:
        if abs(ns) >= unit:
            return f"{_three_digits(ns / unit)} {word}"
    return f"{ns:.0f} ns"


def size_words(count: float) -> str:
    """`512 B`, `1.50 MiB`."""
    for unit, word in _SIZES:
        if abs(count) >= unit:
            return f"{_three_digits(count / unit)} {word}"
    return f"{count:.0f} B"


def plural(count: int, word: str) -> str:
    """`1 kernel`, `1,204 kernels`."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def kind_plural(count: int, kind: str, before: str = "") -> str:
    """A kind of span in words, `before` between number and kind: `2 more runtime calls`."""
    word = kind.replace("_", " ")
    ending = "" if count == 1 else "es" if word.endswith("launch") else "s"
    return f"{count:,} {before}{word}{ending}"
