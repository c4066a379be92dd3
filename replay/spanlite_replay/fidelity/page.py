"""The fidelity report as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from spanlite.errors import UsageError

from spanlite_replay.fidelity import rows
from spanlite_replay.fidelity.pairing import Pairs, pair
from spanlite_replay.fidelity.report import Fidelity
from spanlite_replay.fidelity.spans import I64

#: More would make the page slow; the picture then shows the first of them and says so.
MOST_DRAWN = 1_500
MOST_DOTS = 1_500
WIDTH, LANE, PLOT = 1_000, 14, 300

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  color: #1c2128; background: #fff }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } th, td { padding: .15rem .8rem; text-align: right }
th:first-child, td:first-child { text-align: left; max-width: 36rem; overflow-wrap: anywhere }
tr:nth-child(even) { background: #f3f5f7 } svg { width: 100%; height: auto }
.plan { fill: #5b7fb5 } .ran { fill: #d9822b } .lost { fill: #c23030 } text { font-size: 11px }
@media (prefers-color-scheme: dark) { body { color: #d7dce2; background: #14171b }
  tr:nth-child(even) { background: #1d2228 } text { fill: #d7dce2 } }
"""


def write_page(report: Fidelity, recorded: pa.Table, observed: pa.Table, path: Path) -> None:
    """Write the page. Raises UsageError where that is not possible."""
    try:
        path.write_text(page(report, recorded, observed), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"'{path}' cannot be written: {error.strerror}") from None


def page(report: Fidelity, recorded: pa.Table, observed: pa.Table) -> str:
    """The page as text."""
    pairs = pair(recorded, observed)
    pairs = pairs.of(pairs.spans.on_device | pairs.seen)
    measures = [(r.title, r.planned, r.observed, r.error, r.noise) for r in rows.rows(report)]
    facts = [(name, str(value)) for name, value in report.environment.items()]
    parts = [
        f"<h1>Replay against its recording: {escape(rows.verdict(report))}</h1>",
        f"<p>{report.spans:,} {escape(report.judged)}, {report.lost:,} lost</p>",
        *(f"<p>{escape(line)}</p>" for line in rows.accounts(report)),
        _table(["measure", "planned", "observed", "error", "noise (A/A)"], measures),
        "<h2>Both tracks</h2>",
        _tracks(pairs),
        "<h2>Durations: planned (across) and observed (up), both logarithmic</h2>",
        _dots(pairs),
        "<h2>Coverage</h2>",
        _table(["kind", "spans", "by count", "by time"], rows.coverage_rows(report)),
        "<h2>Kernels</h2>",
        _table(
            ["name", "spans", "planned ms", "observed ms", "bias", "MAPE", "p95"],
            rows.kernel_rows(report, len(report.kernels)),
        ),
        "<h2>Streams that overlap</h2>",
        _table(["streams", "planned us", "observed us", "IoU"], rows.pair_rows(report, 100)),
        "<h2>Circumstances</h2>",
        _table(["what", "value"], facts),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Replay fidelity</title><style>{_STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _table(heads: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    lines = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body
    )
    return f"<table><tr>{head}</tr>\n{lines}</table>" if lines else "<p>none</p>"


def _tracks(pairs: Pairs) -> str:
    if not len(pairs.spans):
        return "<p>none</p>"
    order = np.argsort(pairs.planned_start_ns, kind="stable")[:MOST_DRAWN]
    track, _ = pairs.spans.tracks()
    lanes = np.unique(track[order], return_inverse=True)[1]
    origin = int(pairs.planned_start_ns[order].min())
    until = int(max(pairs.planned_end_ns[order].max(), pairs.end_ns[order].max()))
    scale = WIDTH / max(until - origin, 1)
    marks = []
    for lane, row in zip(lanes.tolist(), order.tolist(), strict=True):
        name = pairs.spans.names[pairs.spans.name[row]]
        seen = bool(pairs.seen[row])
        times = (pairs.planned_start_ns[row], pairs.planned_end_ns[row])
        marks.append(_bar("plan" if seen else "lost", times, lane * 2, origin, scale, name))
        if seen:
            times = (pairs.start_ns[row], pairs.end_ns[row])
            marks.append(_bar("ran", times, lane * 2 + 1, origin, scale, name))
    height = (int(lanes.max()) + 1) * 2 * LANE
    words = (
        f"the first {len(order):,} of {len(pairs.spans):,} spans"
        if len(order) < len(pairs.spans)
        else f"all {len(order):,} spans"
    )
    return (
        f"<p>Blue: recorded, as planned. Orange: replayed. Red: lost. {words}, "
        f"{(until - origin) / 1e6:,.3f} ms across.</p>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(marks)}</svg>'
    )


def _bar(
    kind: str, times: tuple[np.int64, np.int64], lane: int, origin: int, scale: float, name: str
) -> str:
    start, end = (int(time) - origin for time in times)
    return (
        f'<rect class="{kind}" x="{start * scale:.2f}" y="{lane * LANE + 1}" '
        f'width="{max((end - start) * scale, 0.3):.2f}" height="{LANE - 2}">'
        f"<title>{escape(name[:120])}, {(end - start) / 1e3:,.3f} us</title></rect>"
    )


def _dots(pairs: Pairs) -> str:
    rows_seen = np.flatnonzero(pairs.seen)
    if not len(rows_seen):
        return "<p>none</p>"
    shown = rows_seen[:: max(1, len(rows_seen) // MOST_DOTS)]
    x = _log(pairs.planned_end_ns[shown] - pairs.planned_start_ns[shown])
    y = _log(pairs.end_ns[shown] - pairs.start_ns[shown])
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    span = max(high - low, 1e-9)
    points = np.unique(np.round(np.stack([(x - low), (y - low)], 1) / span * PLOT, 1), axis=0)
    dots = "".join(
        f'<circle class="ran" cx="{across:.1f}" cy="{PLOT - up:.1f}" r="2"/>'
        for across, up in points.tolist()
    )
    return (
        f'<svg viewBox="-2 -2 {PLOT + 4} {PLOT + 4}" style="max-width: 24rem" role="img">'
        f'<line x1="0" y1="{PLOT}" x2="{PLOT}" y2="0" stroke="#888"/>{dots}</svg>'
        f"<p>{10**low:,.0f} to {10**high:,.0f} ns</p>"
    )


def _log(values: I64) -> npt.NDArray[np.float64]:
    return np.asarray(np.log10(np.maximum(values, 1)), np.float64)
