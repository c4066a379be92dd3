"""Hardware counters of kernels, from Nsight Compute's `--csv --page raw`.

`spanlite counters` writes such files, too, with CUPTI's range profiler.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from spanlite.errors import InputError

from spanlite_analytics.lab.occupancy import Launch

_SCALES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
#: Units whose name starts like a scale but is none.
_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "nsecond": 1.0, "usecond": 1e3}
_TIMES |= {"msecond": 1e6, "second": 1e9}
_DIMENSIONS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Counted:
    """One profiled launch: every metric that is a number, in base units (times in ns)."""

    kernel: str
    threads: int
    grid_blocks: int
    capability: str
    values: dict[str, float]
    #: x, y, z; empty where the table does not say.
    block: tuple[int, ...] = ()

    def get(self, name: str) -> float | None:
        """A metric; None where it was not collected."""
        return self.values.get(name)

    def launch(self) -> Launch:
        """The launch configuration that the profiler recorded."""

        def whole(name: str) -> int:
            return int(self.values.get(f"launch__{name}", 0))

        return Launch(
            self.threads,
            whole("registers_per_thread"),
            whole("shared_mem_per_block_static"),
            whole("shared_mem_per_block_dynamic"),
            max(whole("barrier_count"), 1),
            grid_blocks=self.grid_blocks,
            cluster_blocks=max(whole("cluster_size"), 1),
        )


def read_ncu(path: Path) -> list[Counted]:
    """The launches in a file (also gzipped), in their order. Raises InputError."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        raise InputError(f"{path}: no table of Nsight Compute; make one with --csv --page raw")
    rows = list(csv.reader(io.StringIO("\n".join(lines[head:]))))
    if len(rows) < 3 or "Kernel Name" not in rows[0] or "Grid Size" not in rows[0]:
        raise InputError(f"{path}: its table has no launches; profile with --page raw")
    names, units = rows[0], rows[1]
    return [_counted(names, units, row) for row in rows[2:] if len(row) == len(names)]


def _counted(names: Sequence[str], units: Sequence[str], row: Sequence[str]) -> Counted:
    fields = dict(zip(names, row, strict=True))
    values = {}
    for name, unit, text in zip(names, units, row, strict=True):
        value = _number(text)
        if value is not None:
            values[name] = value * _scale(unit)
    return Counted(
        fields["Kernel Name"],
        _product(fields.get("Block Size", "")),
        _product(fields["Grid Size"]),
        fields.get("CC", ""),
        values,
        tuple(int(part) for part in _DIMENSIONS.findall(fields.get("Block Size", ""))),
    )


def _product(text: str) -> int:
    return math.prod(int(part) for part in _DIMENSIONS.findall(text))


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _scale(unit: str) -> float:
    """To bytes, ns and single things: `Kbyte` is 1,000 bytes."""
    if unit in _TIMES:
        return _TIMES[unit]
    first = unit[:1]
    return _SCALES[first] if first in _SCALES and unit[1:2].islower() else 1.0


def heaviest_counted(rows: Sequence[Counted], pattern: str) -> tuple[Counted | None, int]:
    """As `of_kernel`, of the kernel with the most time; and how many kernels match."""
    totals: dict[str, float] = {}
    for row in rows:
        if pattern.lower() in row.kernel.lower():
            time = row.get("gpu__time_duration.sum") or 0.0
            totals[row.kernel] = totals.get(row.kernel, 0.0) + time
    if not totals:
        return None, 0
    first = max(totals, key=lambda name: totals[name])
    return of_kernel([row for row in rows if row.kernel == first], ""), len(totals)


def of_kernel(
    rows: Sequence[Counted], pattern: str, launch: Launch | None = None
) -> Counted | None:
    """The medians of the launches whose name holds `pattern` (any case).

    Where a launch is given, only those of its block and grid, if there are any.
    """
    found = [row for row in rows if pattern.lower() in row.kernel.lower()]
    if launch is not None:
        same = (launch.threads, launch.grid_blocks)
        found = [r for r in found if (r.threads, r.grid_blocks) == same] or found
    if not found:
        return None
    first = found[0]
    alike = [r for r in found if (r.threads, r.grid_blocks) == (first.threads, first.grid_blocks)]
    names = set.intersection(*(set(row.values) for row in alike))
    values = {name: median(row.values[name] for row in alike) for name in names}
    return replace(first, values=values)
