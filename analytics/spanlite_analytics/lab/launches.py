"""The launches of kernels in an archive, one row a configuration."""

from __future__ import annotations

from dataclasses import dataclass

from spanlite.archive.layout import Archive
from spanlite.occupancy import SmLimits, known_gpu, limits_of
from spanlite.timewindow import TimeWindow

from spanlite_analytics.lab.occupancy import Launch
from spanlite_analytics.views import quote, reading

#: Hopper, where a trace does not say which GPU it was.
DEFAULT_CAPABILITY = "9.0"
DEFAULT_SMS = 132
#: No archive's window has so many; if one has, those with the least time do not count.
MOST_CONFIGURATIONS = 1_000_000

_SQL = """
SELECT name, grid_x::BIGINT * grid_y * grid_z AS grid, block_x, block_y, block_z,
    coalesce(cluster_x * cluster_y * cluster_z, 0) AS cluster,
    coalesce(registers_per_thread, 0) AS registers,
    coalesce(static_shared_bytes, 0) AS static_shared,
    coalesce(dynamic_shared_bytes, 0) AS dynamic_shared,
    coalesce(json_extract_string(resource, '$."gpu.name"'), '') AS gpu,
    sum(sampling_weight) AS launches, sum(duration_ns * sampling_weight) AS total_ns,
    median(duration_ns) AS median_ns, min(duration_ns) AS min_ns, max(duration_ns) AS max_ns
FROM spans
WHERE kind = 'kernel' AND grid_x IS NOT NULL AND block_x IS NOT NULL {condition}
GROUP BY ALL ORDER BY total_ns DESC, name LIMIT {limit}
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """One launch configuration of a kernel, and how often and long it ran.

    `launches` and `total_ns` count each kept span with its sampling weight.
    """

    name: str
    gpu: str
    launch: Launch
    launches: float
    total_ns: float
    median_ns: float
    min_ns: int
    max_ns: int
    #: x, y, z; empty where that is not known.
    block: tuple[int, ...] = ()


def launches(
    archive: Archive, window: TimeWindow, pattern: str = "", limit: int = 20, trace: str = ""
) -> list[Seen]:
    """Launches of kernels whose name holds `pattern`, the most time first.

    `%` and `_` in the pattern mean themselves; case does not matter. `trace`: only of traces
    whose id starts so.
    """
    condition = f"AND contains(lower(name), lower({quote(pattern)}))" if pattern else ""
    if trace:
        digits = trace.strip().replace("-", "").lower()
        condition += f" AND starts_with(trace_id, {quote(digits)})"
    sql = _SQL.format(condition=condition, limit=int(limit))
    rows = reading(archive, window, lambda con: con.execute(sql).fetchall())
    return [_seen(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Match:
    """The kernel with the most time among those that a pattern picks."""

    #: Its configurations, the most time first.
    seen: tuple[Seen, ...]
    #: Kernels that the pattern picks, and their time together.
    kernels: int
    all_ns: float

    @property
    def total_ns(self) -> float:
        """Of all its configurations."""
        return sum(one.total_ns for one in self.seen)


def heaviest(
    archive: Archive, window: TimeWindow, pattern: str = "", trace: str = ""
) -> Match | None:
    """The kernel, by whole name, that took the most time; None where no name matches."""
    by_name: dict[str, list[Seen]] = {}
    for one in launches(archive, window, pattern, MOST_CONFIGURATIONS, trace):
        by_name.setdefault(one.name, []).append(one)
    if not by_name:
        return None
    totals = {name: sum(one.total_ns for one in same) for name, same in by_name.items()}
    first = max(totals, key=lambda name: totals[name])
    return Match(tuple(by_name[first]), len(by_name), sum(totals.values()))


def _seen(
    name: str, grid: int, x: int, y: int, z: int, cluster: int, registers: int, static: int,
    dynamic: int, gpu: str, count: float, total: float, middle: float, least: int, most: int,
) -> Seen:  # fmt: skip
    launch = Launch(
        x * y * z, registers, static, dynamic, grid_blocks=grid, cluster_blocks=cluster or 1
    )
    return Seen(name, gpu, launch, count, total, middle, least, most, (x, y, z))


def gpu_of(name: str, capability: str | None, sms: int | None) -> tuple[SmLimits, int, bool]:
    """Limits, SMs, and whether they are a guess: words of the user first, then the trace's."""
    known = known_gpu(name)
    if capability:
        sm = limits_of(capability)
        same = known is not None and known[0] == sm
        return sm, sms or (known[1] if known and same else DEFAULT_SMS), not (sms or same)
    if known:
        return known[0], sms or known[1], False
    return limits_of(DEFAULT_CAPABILITY), sms or DEFAULT_SMS, True
