"""Counters of the whole GPU that the host daemon sampled while the kernel ran.

It writes them (with --pm-sampling) on kernels of 1 ms and more, on shorter ones by the stage that
they are part of, and on steps. What is nearest to the kernel counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from spanlite.archive.layout import Archive
from spanlite.timewindow import TimeWindow

from spanlite_analytics.lab.launches import Seen
from spanlite_analytics.views import quote, reading

#: Attributes of spans, and what they mean, in per cent.
COUNTERS = {
    "gpu.active_pct": "GPU active",
    "gpu.dram_pct": "device memory",
    "gpu.l2_hit_pct": "L2 hits",
    "gpu.warps_active_pct": "warps",
    "gpu.tensor_pct": "tensor pipe",
}
KERNEL, STAGE, STEP = "kernel", "stage", "step"
_MEANS = ", ".join(
    f"""sum(({{at}} ->> '$."{name}"')::DOUBLE * duration_ns) / nullif(sum(duration_ns), 0)"""
    for name in COUNTERS
)
_OF_KERNEL = f"""
SELECT coalesce(attributes ->> '$."gpu.of"', '{KERNEL}') AS said, count(*) AS spans,
    {_MEANS.format(at="attributes")}
FROM spans WHERE {{kernel}} AND (attributes ->> '$."gpu.active_pct"') IS NOT NULL
GROUP BY said ORDER BY said LIMIT 1
"""
_OF_STEP = f"""
WITH k AS (SELECT trace_id, start_ns, duration_ns FROM spans WHERE {{kernel}}),
steps AS (
    SELECT trace_id, start_ns, end_ns, duration_ns, attributes FROM spans
    WHERE kind = 'step' AND (attributes ->> '$."gpu.active_pct"') IS NOT NULL
        AND trace_id IN (SELECT trace_id FROM k)
),
inside AS (
    SELECT sum(k.duration_ns) AS kernel_ns FROM k WHERE EXISTS (
        SELECT 1 FROM steps s WHERE s.trace_id = k.trace_id
            AND k.start_ns >= s.start_ns AND k.start_ns < s.end_ns)
)
SELECT count(*), any_value(kernel_ns) / nullif(sum(duration_ns), 0),
    {_MEANS.format(at="attributes")}
FROM steps, inside
"""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Means over time, per cent of what the GPU can do; None where a counter is missing."""

    #: What they are the means of: the kernel, its stage, or its steps.
    of: str
    spans: int
    #: Of the steps' time, the part in which the kernel ran; None where they are not of steps.
    share: float | None
    active_pct: float | None
    dram_pct: float | None
    l2_hit_pct: float | None
    warps_active_pct: float | None
    tensor_pct: float | None

    @property
    def words(self) -> str:
        """A line for people."""
        # Not the warps: older recordings have them of a counter that is wrong (docs/claims.md).
        # Nor L2 hits, of which CUPTI tells half and less (docs/collect.md).
        values = (self.active_pct, self.dram_pct, None, None, self.tensor_pct)
        listed = ", ".join(
            f"{word} {value:.0f}%"
            for word, value in zip(COUNTERS.values(), values, strict=True)
            if value is not None
        )
        whose = {
            KERNEL: "while it ran",
            STAGE: "while its stage ran",
            STEP: f"in its steps, of which it is {self.share or 0:.0%}",
        }[self.of]
        return f"sampled {whose} ({self.spans:,} spans): {listed}"


def sampled(archive: Archive, window: TimeWindow, seen: Seen, trace: str = "") -> Sampled | None:
    """The nearest figures there are of a launch configuration; None where nothing was sampled."""
    condition = " AND ".join(
        [
            f"kind = 'kernel' AND name = {quote(seen.name)}",
            f"grid_x::BIGINT * grid_y * grid_z = {seen.launch.grid_blocks}",
            f"block_x * block_y * block_z = {seen.launch.threads}",
            *([f"starts_with(trace_id, {quote(trace)})"] if trace else []),
        ]
    )
    row = _row(archive, window, _OF_KERNEL.format(kernel=condition))
    if row is not None:
        said = KERNEL if row[0] == KERNEL else STAGE
        return Sampled(said, row[1], None, *row[2:])
    row = _row(archive, window, _OF_STEP.format(kernel=condition))
    if row is None or not row[0]:
        return None
    return Sampled(STEP, row[0], row[1], *row[2:])


def _row(archive: Archive, window: TimeWindow, sql: str) -> tuple | None:  # type: ignore[type-arg]
    rows = reading(archive, window, lambda con: con.execute(sql).fetchall())
    return rows[0] if rows else None
