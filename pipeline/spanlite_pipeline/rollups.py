"""Per-minute sums over all spans, before sampling: counts over everything come from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.archive.schema import KERNEL_MINUTES
from spanlite.codec import BatchView
from spanlite.kinds import SpanStatus, kind_word

NS_PER_MINUTE = 60_000_000_000
#: Below this many groups numpy sorts by radix, an order faster than by comparison.
_RADIX = 1 << 16

Array = npt.NDArray[Any]
#: minute, service, host, device, kind, name
Key = tuple[int, str, str, int, int, str]


class RollUps:
    """Sums by minute, service, host, device, kind and name."""

    def __init__(self) -> None:
        self._rows: dict[Key, list[int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, view: BatchView, service: str, host: str) -> None:
        """Add all spans of a batch."""
        if view.count == 0:
            return
        group, order, first = _groups(view)
        at = order[first]
        minutes = view.column("start_ns")[at] // NS_PER_MINUTE * NS_PER_MINUTE
        site = group.first_site[group.of_site[_site(view, at)]]
        device, kind = view.site_column("device")[site], view.site_column("kind")[site]
        names = view.strings.take(pa.array(view.site_column("name")[site].astype(np.int64)))
        sums = _sums(view, order, first)
        for minute, dev, knd, name, row in zip(
            minutes.tolist(), device.tolist(), kind.tolist(), names.to_pylist(), sums, strict=True
        ):
            self._merge((minute, service, host, dev, knd, name), row)

    def _merge(self, key: Key, row: list[int]) -> None:
        have = self._rows.get(key)
        if have is None:
            self._rows[key] = row
            return
        have[0] += row[0]
        have[1] += row[1]
        have[2] += row[2]
        have[3] = min(have[3], row[3])
        have[4] = max(have[4], row[4])
        have[5] += row[5]

    def to_arrow(self) -> pa.Table:
        """Rows in the KERNEL_MINUTES schema."""
        keys, rows = list(self._rows), list(self._rows.values())
        columns: dict[str, list[Any]] = {
            "minute_ns": [key[0] for key in keys],
            "service": [key[1] for key in keys],
            "host": [key[2] for key in keys],
            "device": [None if key[3] < 0 else key[3] for key in keys],
            "kind": [kind_word(key[4]) for key in keys],
            "name": [key[5] for key in keys],
        }
        for at, name in enumerate(("spans", "errors", "duration_ns", "min_ns", "max_ns", "bytes")):
            columns[name] = [int64(row[at]) for row in rows]
        arrays = []
        for item in KERNEL_MINUTES:
            kind = item.type.value_type if pa.types.is_dictionary(item.type) else item.type
            arrays.append(pa.array(columns[item.name], kind).cast(item.type))
        return pa.Table.from_arrays(arrays, schema=KERNEL_MINUTES)


def int64(value: int) -> int:
    """The nearest BIGINT: hostile durations and headers may sum to more than one holds."""
    return max(-(1 << 63), min(value, (1 << 63) - 1))


@dataclass
class _SiteGroups:
    """Sites of equal device, kind and name count as one."""

    of_site: Array  # shape (sites,)
    first_site: Array  # shape (groups,)


def _site(view: BatchView, at: Array) -> Array:
    return view.site_index[at].astype(np.int64)


def _site_groups(view: BatchView) -> _SiteGroups:
    # Below 2^32 devices, 2^8 kinds, and fewer strings than a message has bytes (2^24).
    device, kind, name = (
        view.site_column(column).astype(np.uint64) for column in ("device", "kind", "name")
    )
    keys = (device << np.uint64(32)) | (kind << np.uint64(24)) | name
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    return _SiteGroups(group, first)


def _groups(view: BatchView) -> tuple[_SiteGroups, Array, Array]:
    """Groups of sites, row order in which equal keys lie together, where each key starts."""
    sites = _site_groups(view)
    code, total = sites.of_site[view.site_index.astype(np.int64)], len(sites.first_site)
    minute = view.column("start_ns") // NS_PER_MINUTE
    low, high = int(minute.min()), int(minute.max())
    if low != high:
        distinct, part = np.unique(minute, return_inverse=True)
        code, total = code * len(distinct) + part, total * len(distinct)
    narrow = code.astype(np.uint16) if total <= _RADIX else code
    order = np.argsort(narrow, kind="stable")
    ordered = narrow[order]
    first = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return sites, order, first


def _sums(view: BatchView, order: Array, first: Array) -> list[list[int]]:
    duration = view.column("duration_ns")[order]
    table = np.stack(
        [
            np.diff(np.concatenate((first, [view.count]))),
            _site_sum(view, view.site_column("status") == SpanStatus.ERROR, order, first),
            np.add.reduceat(duration, first, dtype=np.int64),
            np.minimum.reduceat(duration, first),
            np.maximum.reduceat(duration, first),
            _site_sum(view, view.site_column("bytes"), order, first),
        ],
        axis=1,
    )
    rows: list[list[int]] = table.tolist()
    return rows


def _site_sum(view: BatchView, of_site: Array, order: Array, first: Array) -> Array:
    """Sum over the spans of each group of a value that their sites have, mostly 0."""
    if not of_site.any():
        return np.zeros(len(first), np.int64)
    values = of_site.astype(np.uint64)[_site(view, order)]
    sums: Array = np.add.reduceat(values, first, dtype=np.uint64).view(np.int64)
    return sums
