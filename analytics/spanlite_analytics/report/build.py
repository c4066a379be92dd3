"""Puts the report together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import duckdb
import pandas as pd
from spanlite.archive.layout import Archive
from spanlite.errors import UsageError
from spanlite.timewindow import ALL_TIME, TimeWindow

from spanlite_analytics.extent import extent
from spanlite_analytics.report import stages, tables
from spanlite_analytics.report.attribution import attribute
from spanlite_analytics.report.source import DEVICE_LIST, Filters, Source
from spanlite_analytics.views import reading
from spanlite_analytics.words import plural, time_words

SLOWEST = 100


@dataclass(frozen=True)
class Section:
    """One table. Columns ending in `_ns`, `_share` and so on say their unit."""

    key: str
    title: str
    frame: pd.DataFrame
    note: str = ""


@dataclass(frozen=True)
class Report:
    """All tables of a window."""

    archive: Archive
    window: TimeWindow
    filters: Filters
    overview: dict[str, Any]
    sections: tuple[Section, ...]

    def __getitem__(self, key: str) -> pd.DataFrame:
        """The table of a section."""
        return next(section.frame for section in self.sections if section.key == key)


#: In the order in which they are shown.
TITLES = {
    "kernels": "Kernels and copies",
    "stages": "Stages: device time by the innermost range around the launch",
    "stage_kernels": "Kernels of each stage",
    "operators": "Operators: device time by the operator that launched it",
    "devices": "GPUs: busy is time with at least one kernel or copy running",
    "latency": "Requests and steps, whole traces",
    "slow": "Slow traces (slowest 5 %) against fast ones (faster half), time a trace",
    "slow_places": "Where slow traces ran",
    "slowest": "Slowest traces",
    "outliers": "GPUs slower than the median GPU at the same kernel",
    "errors": "Errors",
}
_FROM_ATTRIBUTION = ("stages", "stage_kernels", "operators", "slow", "slow_places")
_FROM_SQL: dict[str, Callable[[Source], pd.DataFrame]] = {
    "kernels": tables.kernels,
    "devices": tables.devices,
    "latency": tables.latency,
    "slowest": lambda source: tables.slowest(source, SLOWEST),
    "outliers": tables.outliers,
    "errors": tables.errors,
}


def _overview(source: Source) -> dict[str, Any]:
    spans = source.frame(f"""
        SELECT count(*) AS kept_spans, coalesce(sum(sampling_weight), 0) AS estimated_spans,
            coalesce(sum(sampling_weight * duration_ns) FILTER (kind IN ({DEVICE_LIST})), 0)
                AS estimated_device_ns,
            count(*) FILTER (replay_id IS NOT NULL) AS replayed_spans
        FROM r_spans""")
    everything = source.frame(f"""
        SELECT coalesce(sum(spans), 0) AS spans, count(DISTINCT service) AS services,
            count(DISTINCT host) AS hosts, count(DISTINCT (host, device)) FILTER
                (device IS NOT NULL) AS devices,
            coalesce(sum(duration_ns) FILTER (kind IN ({DEVICE_LIST})), 0) AS device_ns
        FROM r_minutes""")
    traces = source.frame(
        "SELECT coalesce(sum(w), 0) AS traces, count(*) FILTER (kept) AS kept_traces FROM r_traces"
    )
    found: dict[str, Any] = {}
    for frame in (spans, everything, traces):
        for name in frame.columns:
            value = frame[name].iloc[0]
            found[name] = None if pd.isna(value) else round(float(value))
    # 19 digits do not fit the float that a nullable column becomes.
    found["first_ns"] = source.value("SELECT min(start_ns) FROM r_spans")
    found["last_ns"] = source.value("SELECT max(end_ns) FROM r_spans")
    found["spans_beyond_time"] = source.beyond_time("spans")
    found["traces_beyond_time"] = source.beyond_time("traces")
    found["unranked_traces"] = found["traces"] - round(
        float(source.value("SELECT coalesce(sum(w), 0) FROM r_ranked"))
    )
    found["exact_minutes"], found["exact_traces"] = source.exact_minutes, source.exact_traces
    return found


def _from_attribution(source: Source, wanted: Collection[str]) -> dict[str, pd.DataFrame]:
    if not set(wanted) & set(_FROM_ATTRIBUTION):
        return {}
    traces = stages.classify(source)
    frame = attribute(source, stages.classes_of(traces))
    return {
        "stages": stages.stages(frame),
        "stage_kernels": stages.stage_kernels(frame),
        "operators": stages.operators(frame),
        "slow": stages.slow_against_fast(frame, traces),
        "slow_places": stages.slow_places(traces),
    }


_STAGE_WIDTHS = (
    "per step: of the steps it ran in; host mean: a range on its thread; "
    "gpu mean: from its first kernel to its last"
)


def _notes(source: Source, overview: dict[str, Any]) -> dict[str, str]:
    kept, everything = overview["kept_spans"], overview["spans"]
    sampled = "" if kept == everything else "estimated from kept spans by their sampling weights"
    estimated = "" if source.exact_traces else sampled
    others = overview["unranked_traces"]
    unranked = f"{plural(others, 'trace')} left out that belong to no request or step"
    exact = "" if source.exact_minutes else sampled
    mixed = "calls and totals of all spans; p50 and p99 of kept ones" if sampled else ""
    of_kept = "" if kept == everything else "of kept spans only: see covered_share"
    return {
        "kernels": exact or mixed,
        "stages": "; ".join(filter(None, [_STAGE_WIDTHS, sampled])),
        "operators": sampled,
        "devices": of_kept,
        "latency": "; ".join(filter(None, [unranked if others else "", estimated])),
        "slow": "a kernel and the call that waits for it both count",
        "outliers": exact,
        "errors": exact,
    }


def _off_device(slowest: pd.DataFrame) -> str:
    """Where the longest trace is that the order of `tables.slowest` puts below others."""
    without = slowest[slowest["device_ns"].fillna(0) == 0]
    if not len(without) or len(without) == len(slowest):
        return ""
    first = without.iloc[0]
    return (
        f"those with device time first; the longest without is {first['kind']} "
        f"{first['trace_id']}, {time_words(float(first['duration_ns']))}"
    )


def build_report(
    archive: Archive,
    window: TimeWindow = ALL_TIME,
    filters: Filters | None = None,
    only: Collection[str] = (),
    on_section: Callable[[str], None] = lambda key: None,
) -> Report:
    """Read the archive and compute the sections (`only`: some of TITLES; empty: all).

    `on_section` is told what is being computed. Raises ArchiveError and UsageError.
    """
    if unknown := sorted(set(only) - set(TITLES)):
        raise UsageError(f"no section '{unknown[0]}'; there are {', '.join(TITLES)}")
    wanted = [key for key in TITLES if not only or key in only]

    def work(con: duckdb.DuckDBPyConnection) -> tuple[dict[str, Any], tuple[Section, ...]]:
        source = Source(con, archive, window, filters)
        on_section("overview")
        overview = _overview(source)
        frames = {}
        for key in wanted:
            if key in _FROM_SQL:
                on_section(key)
                frames[key] = _FROM_SQL[key](source)
        on_section("stages")
        frames |= _from_attribution(source, wanted)
        notes = _notes(source, overview)
        if "slowest" in frames:
            notes["slowest"] = _off_device(frames["slowest"])
        return overview, tuple(Section(k, TITLES[k], frames[k], notes.get(k, "")) for k in wanted)

    overview, sections = reading(archive, window, work)
    if window != ALL_TIME and not overview["kept_spans"] and not overview["spans"]:
        overview["archive_from_ns"], overview["archive_to_ns"] = extent(archive)
    return Report(archive, window, filters or Filters(), overview, sections)
