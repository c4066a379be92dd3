"""What custom metrics are called on a Prometheus page, and which names take each other's place.

Both sides need it: an application refuses such names when it declares them, and the collector
leaves them off the page, since other processes declare names of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: How the collector's own families begin.
OWN = ("spanlite_", "hw_gpu_")
#: Labels that the page itself gives to series.
OWN_LABELS = {
    "counter": ("service", "pid"),
    "gauge": ("service", "pid"),
    "histogram": ("service", "pid", "le"),
}
_BAD = re.compile(r"[^a-zA-Z0-9_]")
#: What OpenMetrics appends to a family's name, by kind.
_SUFFIXES = {
    "counter": ("", "_total", "_created"),
    "gauge": ("",),
    "histogram": ("", "_bucket", "_count", "_sum", "_created"),
}


def page_name(text: str) -> str:
    """A name of a metric or label as Prometheus takes it."""
    name = _BAD.sub("_", text)
    return f"_{name}" if name[:1].isdigit() else name


def family_name(kind: str, name: str) -> str:
    """What a metric's family is called."""
    family = page_name(name)
    return family.removesuffix("_total") or family if kind == "counter" else family


def taken_names(kind: str, name: str) -> list[str]:
    """The names that no other metric of a page may have."""
    family = family_name(kind, name)
    return [family + suffix for suffix in _SUFFIXES[kind]]


def is_own(kind: str, name: str) -> bool:
    """Whether it is named as the collector's own families are."""
    return family_name(kind, name).startswith(OWN)


def twice(labels: Iterable[str]) -> str | None:
    """The first page name that two labels share; None where there is none."""
    seen: set[str] = set()
    for label in map(page_name, labels):
        if label in seen:
            return label
        seen.add(label)
    return None
