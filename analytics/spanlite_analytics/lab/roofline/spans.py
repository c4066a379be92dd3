"""The operators of an archive whose sizes were recorded, with the time of their kernels."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from spanlite.archive.layout import Archive
from spanlite.errors import UsageError
from spanlite.timewindow import TimeWindow

from spanlite_analytics.lab.roofline.place import Point
from spanlite_analytics.lab.roofline.work import (
    RULES,
    Call,
    attention_tile,
    plain_name,
    work_of,
)
from spanlite_analytics.views import quote, reading

#: Calls and operators between a kernel and the operator with a rule.
MOST_LEVELS = 12

# Every kernel climbs to the innermost operator that has a rule and recorded sizes: `spot` is where
# it has come to.
_SQL = """
CREATE TEMP TABLE kernels AS
    SELECT trace_id, span_id, parent_span_id, name, duration_ns, sampling_weight,
        coalesce(json_extract_string(resource, '$."gpu.name"'), '') AS gpu
    FROM spans WHERE kind = 'kernel' {condition};
CREATE TEMP TABLE hosts AS
    SELECT trace_id, span_id, parent_span_id, kind = 'operator'
            AND regexp_replace(regexp_replace(name, '^.*::', ''), '_$', '') IN ({known})
            AND contains(attributes, '"Input Dims"') AS ruled,
        CASE WHEN ruled THEN name END AS name, CASE WHEN ruled THEN attributes END AS attributes
    FROM spans
    WHERE kind <> 'kernel' AND trace_id IN (SELECT trace_id FROM kernels);
CREATE TEMP TABLE found AS
    WITH RECURSIVE up AS (
        SELECT trace_id, span_id, parent_span_id AS spot, 0 AS level, false AS done FROM kernels
        UNION ALL
        SELECT up.trace_id, up.span_id, CASE WHEN h.ruled THEN up.spot ELSE h.parent_span_id END,
            up.level + 1, h.ruled
        FROM up JOIN hosts h ON h.trace_id = up.trace_id AND h.span_id = up.spot
        WHERE NOT up.done AND up.level < {levels}
    )
    SELECT trace_id, span_id, spot AS operator_id FROM up WHERE done;
"""
_ROWS = """
WITH calls AS (
    SELECT k.trace_id, f.operator_id, any_value(k.gpu) AS gpu,
        sum(k.duration_ns) AS ns, arg_max(k.name, k.duration_ns) AS kernel,
        count(*) AS kernels, max(k.sampling_weight) AS weight
    FROM kernels k JOIN found f USING (trace_id, span_id) GROUP BY ALL
)
SELECT h.name, h.attributes, c.kernel, c.gpu, c.kernels, median(c.ns) AS ns,
    sum(c.weight) AS runs, sum(c.ns * c.weight) AS total_ns
FROM calls c JOIN hosts h ON h.trace_id = c.trace_id AND h.span_id = c.operator_id
GROUP BY ALL ORDER BY total_ns DESC
"""
_TOTALS = """
SELECT coalesce(sum(duration_ns * sampling_weight), 0), count(*),
    coalesce(sum(duration_ns * sampling_weight) FILTER (f.span_id IS NULL), 0),
    count(*) FILTER (f.span_id IS NULL)
FROM kernels LEFT JOIN found f USING (trace_id, span_id)
"""
_UNPLACED = """
SELECT name, any_value(gpu) AS gpu, median(duration_ns) AS ns, sum(sampling_weight) AS runs,
    sum(duration_ns * sampling_weight) AS total_ns
FROM kernels LEFT JOIN found f USING (trace_id, span_id)
WHERE f.span_id IS NULL GROUP BY name ORDER BY total_ns DESC
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found: points with sizes, kernels without, and both in time."""

    points: list[Point]
    gpu: str
    kernel_ns: float
    kernels: int
    unplaced_ns: float
    unplaced: int
    #: (kernel, median ns, runs) of those without sizes, the most time first.
    names: list[tuple[str, float, float]]


def seen(
    archive: Archive,
    window: TimeWindow,
    pattern: str = "",
    trace: str = "",
    tf32: bool = False,
) -> Seen:
    """Operators with a rule and sizes. `pattern` picks kernels, `trace` starts an id."""
    condition = f"AND contains(lower(name), lower({quote(pattern)}))" if pattern else ""
    if trace:
        digits = trace.strip().replace("-", "").lower()
        condition += f" AND starts_with(trace_id, {quote(digits)})"
    known = ", ".join(quote(name) for name in sorted(RULES))
    sql = _SQL.format(condition=condition, known=known, levels=MOST_LEVELS)

    def read(con: Any) -> tuple[list[_Row], tuple[Any, ...], list[_Row]]:
        con.execute(sql)
        return (
            con.execute(_ROWS).fetchall(),
            con.execute(_TOTALS).fetchone(),
            con.execute(_UNPLACED).fetchall(),
        )

    rows, totals, unplaced = reading(archive, window, read)
    points, gpus, left = _points(rows, tf32)
    names = [(name, float(ns), float(runs)) for name, _, ns, runs, _ in unplaced]
    gpus |= {gpu for _, gpu, *_ in unplaced if gpu}
    if len(gpus) > 1:
        listed = ", ".join(sorted(gpus))
        raise UsageError(f"kernels of several GPU types ({listed}): pick by --kernel or --trace")
    return Seen(
        points,
        next(iter(gpus), ""),
        float(totals[0]),
        int(totals[1]),
        float(totals[2]) + left[0],
        int(totals[3]) + left[1],
        sorted(names + left[2], key=lambda row: -row[1] * row[2]),
    )


_Row = tuple[Any, ...]
_Left = tuple[float, int, list[tuple[str, float, float]]]


def _points(rows: list[_Row], tf32: bool) -> tuple[list[Point], set[str], _Left]:
    """Points; GPUs; and what has sizes by which its rule cannot go (ns, kernels, names)."""
    points, gpus = [], set()
    left_ns, left_kernels, names = 0.0, 0, []
    for name, attributes, kernel, gpu, kernels, ns, runs, total_ns in rows:
        if gpu:
            gpus.add(gpu)
        call = call_of(name, attributes, tf32)
        work = work_of(replace(call, tile=attention_tile(kernel))) if call else None
        if call is None or work is None:
            left_ns += total_ns
            left_kernels += kernels
            names.append((kernel, ns, runs))
            continue
        shown = " x ".join(_size_words(size) for size in call.sizes if size)
        points.append(
            Point(
                plain_name(call.name),
                kernel,
                work,
                ns,
                runs,
                "shapes",
                f"{shown} {call.type(0)}".strip(),
            )
        )
    return merged(points), gpus, (left_ns, left_kernels, names)


def call_of(name: str, attributes: str, tf32: bool = False) -> Call | None:
    """From an operator span's attributes, a JSON object; None where it is none."""
    try:
        found = json.loads(attributes)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None

    def listed(*names: str) -> list[Any]:
        return next((found[key] for key in names if isinstance(found.get(key), list)), [])

    return Call(
        name,
        listed("Input Dims"),
        listed("Input type", "Input Types"),
        listed("Input Strides"),
        listed("Concrete Inputs"),
        tf32,
    )


def merged(points: list[Point]) -> list[Point]:
    """One point for the same operator, sizes and kernel; its time weighted by runs."""
    groups: dict[tuple[str, str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.name, point.detail, point.kernel), []).append(point)
    out = []
    for same in groups.values():
        first, runs = same[0], sum(point.runs for point in same)
        time = sum(point.time_ns * point.runs for point in same) / runs
        out.append(replace(first, time_ns=time, runs=runs))
    return sorted(out, key=lambda point: -point.time_ns * point.runs)


def _size_words(size: Any) -> str:
    if isinstance(size, list) and size and isinstance(size[0], list):
        return f"{len(size)} tensors"
    return "(" + ",".join(str(n) for n in size) + ")" if isinstance(size, list) else str(size)
