"""Heatmaps of a scan over two of its parameters: PNG by matplotlib, and one HTML page.

A cell shows the best of all configurations that share its two values.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spanlite.errors import ServiceError

from spanlite_analytics.lab.scan.expression import Scalar
from spanlite_analytics.lab.scan.spec import Spec


@dataclass(frozen=True, slots=True)
class Measure:
    """What a heatmap shows: a column, its title, a factor, and whether less is better."""

    column: str
    title: str
    factor: float
    less_is_better: bool


MEASURES = (
    Measure("median_ns", "time, us", 1e-3, True),
    Measure("tflops", "TFLOP/s", 1.0, False),
    Measure("gbytes_per_s", "GB/s", 1.0, False),
    Measure("occupancy", "theoretical occupancy, %", 100.0, False),
)


@dataclass(frozen=True, slots=True)
class Grid:
    """Values of two parameters and the best figure of each pair; NaN where there is none."""

    measure: Measure
    x_name: str
    y_name: str
    x: Sequence[Scalar]
    y: Sequence[Scalar]
    #: Shape (y, x).
    values: NDArray[np.float64]
    #: The row behind each cell.
    rows: dict[tuple[int, int], dict[str, Any]]


def axes_of(spec: Spec) -> tuple[str, str] | None:
    """The two parameters that the file names, else the two with the most values."""
    if spec.heatmap:
        return spec.heatmap
    ranked = sorted(spec.parameters, key=lambda name: -len(spec.parameters[name]))
    varied = [name for name in ranked if len(spec.parameters[name]) > 1]
    return (varied[0], varied[1]) if len(varied) > 1 else None


def grids(spec: Spec, rows: Sequence[dict[str, Any]]) -> list[Grid]:
    """One for each measure of which there is any figure."""
    axes = axes_of(spec)
    if axes is None:
        return []
    made = [_grid(spec, rows, axes, measure) for measure in MEASURES]
    return [grid for grid in made if np.isfinite(grid.values).any()]


def _grid(
    spec: Spec, rows: Sequence[dict[str, Any]], axes: tuple[str, str], measure: Measure
) -> Grid:
    x, y = spec.parameters[axes[0]], spec.parameters[axes[1]]
    values = np.full((len(y), len(x)), np.nan)
    behind = {}
    for row in rows:
        figure = row[measure.column]
        if figure is None:
            continue
        cell = (y.index(row[axes[1]]), x.index(row[axes[0]]))
        figure *= measure.factor
        old = values[cell]
        if np.isnan(old) or (figure < old if measure.less_is_better else figure > old):
            values[cell], behind[cell] = figure, row
    return Grid(measure, *axes, x, y, values, behind)


def write_png(grid: Grid, path: Path, title: str) -> None:
    """One heatmap. Raises ServiceError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ServiceError("heatmaps need matplotlib: install spanlite-analytics[lab]") from error
    size = (2 + 0.8 * len(grid.x), 1.6 + 0.5 * len(grid.y))
    figure = Figure(figsize=(min(size[0], 16), min(size[1], 12)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    image = axes.imshow(
        grid.values, aspect="auto", cmap="viridis_r" if grid.measure.less_is_better else "viridis"
    )
    axes.set_xticks(range(len(grid.x)), [str(v) for v in grid.x])
    axes.set_yticks(range(len(grid.y)), [str(v) for v in grid.y])
    axes.set(xlabel=grid.x_name, ylabel=grid.y_name, title=f"{title}: {grid.measure.title}")
    if grid.values.size <= 400:
        for (row, column), value in np.ndenumerate(grid.values):
            if np.isfinite(value):
                shade = _share(grid, float(value))
                axes.text(column, row, f"{value:.3g}", ha="center", va="center", fontsize=8,
                          color="black" if shade > 0.5 else "white")  # fmt: skip
    figure.colorbar(image, ax=axes)
    figure.savefig(path, dpi=120)


def _share(grid: Grid, value: float) -> float:
    """Where a value lies between the worst (0) and the best (1)."""
    low, high = float(np.nanmin(grid.values)), float(np.nanmax(grid.values))
    share = (value - low) / (high - low) if high > low else 1.0
    return 1 - share if grid.measure.less_is_better else share


_STYLE = """body{font:14px system-ui,sans-serif;margin:2em;color:#222}
table{border-collapse:collapse;margin:0 0 2em}td,th{padding:.4em .7em;text-align:right}
th{font-weight:600;background:#f4f4f4}td{border:1px solid #fff}caption{text-align:left}
caption{padding:.4em 0;font-weight:600}.top td{border:0;border-bottom:1px solid #eee}"""


def write_html(
    made: Sequence[Grid], best: Sequence[dict[str, Any]], path: Path, title: str, about: str
) -> None:
    """All heatmaps and the best configurations on one page that needs no other file."""
    parts = [
        "<!doctype html><meta charset=utf-8>",
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(title)}</h1><p>{html.escape(about)}</p>",
        *(_html_grid(grid) for grid in made),
        _html_best(best),
    ]
    path.write_text("\n".join(parts), encoding="utf-8")


def _html_grid(grid: Grid) -> str:
    head = "".join(f"<th>{html.escape(str(v))}</th>" for v in grid.x)
    caption = f"{grid.measure.title}: {grid.y_name} down, {grid.x_name} across"
    lines = [f"<table><caption>{html.escape(caption)}</caption><tr><th></th>{head}</tr>"]
    for row, name in enumerate(grid.y):
        cells = "".join(_html_cell(grid, row, column) for column in range(len(grid.x)))
        lines.append(f"<tr><th>{html.escape(str(name))}</th>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def _html_cell(grid: Grid, row: int, column: int) -> str:
    value = float(grid.values[row, column])
    if not np.isfinite(value):
        return "<td></td>"
    share = _share(grid, value)
    # From pale to a full blue; the words stay readable on both.
    colour = f"hsl(215 80% {95 - 50 * share:.0f}%)"
    ink = "#fff" if share > 0.6 else "#222"
    behind = grid.rows[(row, column)]
    told = ", ".join(
        f"{key} {item}" for key, item in behind.items() if item is not None and key != "times_ns"
    )
    return (
        f'<td style="background:{colour};color:{ink}" title="{html.escape(told)}">{value:.4g}</td>'
    )


def _html_best(best: Sequence[dict[str, Any]]) -> str:
    if not best:
        return ""
    names = [
        key for key in best[0] if key != "times_ns" and any(row[key] is not None for row in best)
    ]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = [f'<table class="top"><caption>The best</caption><tr>{head}</tr>']
    for row in best:
        cells = "".join(f"<td>{html.escape(_word(row[name]))}</td>" for name in names)
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def _word(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
