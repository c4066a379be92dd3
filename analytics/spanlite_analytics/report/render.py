"""A report on a terminal, as CSV files, or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from spanlite.errors import UsageError
from spanlite.timewindow import format_time

from spanlite_analytics.extent import extent_words
from spanlite_analytics.report.build import Report, Section
from spanlite_analytics.words import plural, size_words, time_words

#: Letters of a kernel's name on a terminal; CSV and JSON have all of it.
NAME_WIDTH = 60
#: Columns that would be too much on a terminal.
_ONLY_IN_FILES = {
    "kernels": {"min_ns", "kept", "bytes_per_s"},
    "stages": {"host_ns", "device_spans"},
    "devices": {"spans", "streams", "copy_ns"},
    "slowest": {"policy"},
}
#: Sections that are too long for a terminal.
_ONLY_FILES = ("stage_kernels",)
#: Columns whose empty text is a name that is missing.
_NAMED = ("service", "host")


def _cell(column: str, value: Any) -> str:
    if value is None or (not isinstance(value, str) and pd.isna(value)):
        return "-"
    if column == "start_ns":
        return format_time(int(value))
    if column.endswith("_ns"):
        return time_words(float(value))
    if column.endswith("share"):
        return f"{float(value) * 100:.1f} %"
    if column == "bytes_per_s":
        return f"{size_words(float(value))}/s"
    if column == "slowdown":
        return f"{float(value):.2f}x"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, str):
        if not value and column in _NAMED:
            return f"(no {column})"
        return value if len(value) <= NAME_WIDTH else value[: NAME_WIDTH - 1] + "…"
    return f"{float(value):,.0f}"


def _title(column: str) -> str:
    return column.removesuffix("_ns").replace("_", " ")


def _shown(section: Section, top: int) -> pd.DataFrame:
    """The first `top` rows; of what makes traces slow, also the first kernel beyond them."""
    frame = section.frame.head(top)
    if section.key != "slow" or (frame["kind"] == "kernel").any():
        return frame
    kernels = section.frame[section.frame["kind"] == "kernel"]
    return pd.concat([frame, kernels.head(1)]) if len(kernels) else frame


def _table(section: Section, rows: pd.DataFrame) -> Table:
    hidden = _ONLY_IN_FILES.get(section.key, set())
    frame = rows[[c for c in rows.columns if c not in hidden]]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in frame.columns:
        number = pd.api.types.is_numeric_dtype(frame[name].dtype)
        right = number and not pd.api.types.is_bool_dtype(frame[name].dtype)
        table.add_column(
            _title(name), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for row in frame.itertuples(index=False):
        cells = (_cell(c, v) for c, v in zip(frame.columns, row, strict=True))
        table.add_row(*map(escape, cells))
    return table


def _cuts_a_name(frame: pd.DataFrame) -> bool:
    return "name" in frame and bool((frame["name"].astype(str).str.len() > NAME_WIDTH).any())


def print_report(report: Report, console: Console, top: int) -> None:
    """Every section with its first `top` rows; sections without rows are left out."""
    for line in heading(report):
        console.print(line)
    for section in report.sections:
        if section.key in _ONLY_FILES or not len(section.frame):
            continue
        console.print(f"\n[bold]{escape(section.title)}[/]")
        shown = _shown(section, top)
        console.print(_table(section, shown))
        if notes := _below(section, shown, top):
            console.print(f"[dim]{escape('; '.join(notes))}[/]")


def _below(section: Section, shown: pd.DataFrame, top: int) -> list[str]:
    """What is said under a table."""
    notes = [section.note] if section.note else []
    if more := len(section.frame) - len(shown):
        notes.insert(0, f"... {more:,} more")
    if len(shown) > top:
        notes.append(f"the last row is the first kernel, number {shown.index[-1] + 1:,} of all")
    if _cuts_a_name(shown):
        notes.append("names cut at … are whole with --json and --csv")
    return notes


def heading(report: Report) -> list[str]:
    """What the report is about, in some lines."""
    seen = report.overview
    lines = [f"Report on {report.archive.root}, {report.window}"]
    for word, values in (("service", report.filters.services), ("host", report.filters.hosts)):
        if values:
            lines.append(f"Only {word} {', '.join(values)}")
    if not seen["kept_spans"] and not seen["spans"]:
        if "archive_from_ns" not in seen:
            return [*lines, "Nothing was recorded."]
        there = extent_words(seen["archive_from_ns"], seen["archive_to_ns"])
        return [*lines, f"Nothing was recorded in this window; {there}."]
    if seen["first_ns"] is not None:
        lines.append(
            f"Spans from {format_time(seen['first_ns'])} to {format_time(seen['last_ns'])}"
        )
    kept, spans = seen["kept_spans"], seen["spans"]
    lines.append(
        f"{plural(seen['services'], 'service')}, {plural(seen['hosts'], 'host')}, "
        f"{plural(seen['devices'], 'GPU')}; {plural(seen['traces'], 'trace')}, "
        f"{seen['kept_traces']:,} kept; {plural(spans, 'span')}, {kept:,} kept"
    )
    if replayed := seen["replayed_spans"]:
        lines.append(
            f"{replayed:,} of the kept spans are of replays, at the replay's speed, and count with "
            "the others: an archive of their own keeps them apart"
        )
    if far := _beyond_time(seen):
        lines.append(f"Left out, their times being centuries away: {far}")
    exact, estimate = seen["device_ns"], seen["estimated_device_ns"]
    text = f"Device time {time_words(exact)}"
    if seen["exact_minutes"] and kept != spans and exact:
        text += (
            f" exactly; the kept spans say {time_words(estimate)} "
            f"({(estimate - exact) / exact * 100:+.2f} %)"
        )
    return [*lines, text]


def _beyond_time(seen: dict[str, Any]) -> str:
    counts = (("span", seen["spans_beyond_time"]), ("trace", seen["traces_beyond_time"]))
    return " and ".join(plural(count, word) for word, count in counts if count)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    columns = {name: [_plain(v) for v in frame[name].tolist()] for name in frame.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    if value is None or (isinstance(value, float) and not np.isfinite(value)) or value is pd.NA:
        return None
    return value


def as_json(report: Report) -> str:
    """The whole report as one JSON object."""
    body = {
        "archive": str(report.archive.root),
        "from_ns": report.window.from_ns,
        "to_ns": report.window.to_ns,
        "overview": report.overview,
        **{section.key: _records(section.frame) for section in report.sections},
    }
    return json.dumps(body, ensure_ascii=False, indent=1)


def write_csv(report: Report, folder: Path) -> list[Path]:
    """One file a section. Returns them. Raises UsageError where it cannot write."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for section in report.sections:
            path = folder / f"{section.key}.csv"
            section.frame.to_csv(path, index=False)
            paths.append(path)
    except OSError as error:
        raise UsageError(f"cannot write to '{folder}': {error}") from None
    return paths
