"""The plot: a PNG or SVG by matplotlib, or an HTML page that needs nothing else."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spanlite.errors import InputError, ServiceError, UsageError

from spanlite_analytics.lab.roofline.ceilings import Ceilings
from spanlite_analytics.lab.roofline.place import COMPUTE, LATENCY, MEMORY, Place

COLOURS = {MEMORY: "#1f77b4", COMPUTE: "#d62728", LATENCY: "#7f7f7f"}
SUFFIXES = (".png", ".svg", ".html")


def write_plot(path: Path, places: Sequence[Place], gpu: Ceilings) -> None:
    """Write the plot in the format that the suffix names.

    Raises UsageError for another suffix or where no place has FLOPs, ServiceError where
    matplotlib is missing, InputError where the file cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{path}: the plot's suffix must be one of {', '.join(SUFFIXES)}")
    shown = [one for one in places if one.point.work.total_flops > 0]
    if not shown:
        raise UsageError("nothing to plot: no kernel with known FLOPs")
    figure = _figure(shown, gpu)
    try:
        if suffix == ".html":
            path.write_text(_page(_svg(figure), shown, gpu), encoding="utf-8")
        else:
            figure.savefig(path, dpi=144)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def _figure(places: Sequence[Place], gpu: Ceilings) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ServiceError("plots need matplotlib: install spanlite-analytics[lab]") from error
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    low = min(min(p.point.work.intensity for p in places) / 3, 0.1)
    high = max(max(p.point.work.intensity for p in places) * 3, gpu.ridge("bf16") * 4)
    for kind in _kinds(places, gpu):
        roof, ridge = gpu.flops_per_s[kind], gpu.ridge(kind)
        axes.plot([ridge, high], [roof, roof], color="black", linewidth=1)
        axes.annotate(
            f"{kind.replace('_', ' ')} {roof / 1e12:,.0f} TFLOP/s",
            (high, roof), ha="right", va="bottom", fontsize=8,
        )  # fmt: skip
    top = max(gpu.flops_per_s[kind] for kind in _kinds(places, gpu))
    edge = top / gpu.bytes_per_s
    axes.plot([low, edge], [low * gpu.bytes_per_s, top], color="black", linewidth=1)
    axes.annotate(
        f"{gpu.bytes_per_s / 1e12:.2f} TB/s",
        (low * 1.5, low * 1.5 * gpu.bytes_per_s), rotation=35, va="bottom", fontsize=8,
    )  # fmt: skip
    most = max(p.point.time_ns * p.point.runs for p in places)
    for number, one in enumerate(places):
        area = 20 + 380 * one.point.time_ns * one.point.runs / most
        axes.scatter(
            [one.point.work.intensity], [one.flops_per_s], s=area, alpha=0.6,
            color=COLOURS[one.verdict], gid=f"kernel-{number}",
        )  # fmt: skip
    for verdict, colour in COLOURS.items():
        axes.scatter([], [], color=colour, label=f"{verdict}-bound")
    axes.set(xscale="log", yscale="log", xlabel="FLOP a byte", ylabel="FLOP/s", xlim=(low, high))
    kind = "measured" if gpu.measured else "datasheet"
    axes.set_title(f"{gpu.name}, {kind} ceilings; area: time of all runs", fontsize=10)
    axes.legend(loc="lower right", fontsize=8)
    axes.grid(True, which="major", alpha=0.3)
    return figure


def _kinds(places: Sequence[Place], gpu: Ceilings) -> list[str]:
    """The types that the kernels compute in, those with a rate."""
    used = {max(p.point.work.flops, key=lambda k: p.point.work.flops[k]) for p in places}
    return sorted(used & gpu.flops_per_s.keys()) or ["bf16"]


def _svg(figure: Any) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]


_STYLE = """body{font:14px system-ui,sans-serif;margin:24px;max-width:1100px}
table{border-collapse:collapse;width:100%}td,th{padding:3px 8px;text-align:right;
border-bottom:1px solid #ddd}td:first-child,th:first-child,td:nth-child(2){text-align:left}
td{overflow-wrap:anywhere}svg{width:100%;height:auto}tr.hit{background:#ffc}"""
_SCRIPT = """for(const r of document.querySelectorAll('tr[data-n]')){
const g=document.getElementById('kernel-'+r.dataset.n);if(!g)continue;
const on=()=>{r.classList.add('hit');g.style.opacity=1;g.style.stroke='#000'},
off=()=>{r.classList.remove('hit');g.style.stroke=''};
for(const e of [r,g]){e.addEventListener('mouseenter',on);e.addEventListener('mouseleave',off)}}"""


def _page(svg: str, places: Sequence[Place], gpu: Ceilings) -> str:
    """The plot with a title on each point, and the table below it."""
    for number, one in enumerate(places):
        title = html.escape(_title(one))
        svg = re.sub(
            rf'(<g id="kernel-{number}">)',
            lambda found, t=title: f"{found[1]}<title>{t}</title>",  # type: ignore[misc]
            svg,
        )
    rows = "".join(
        f'<tr data-n="{number}"><td>{html.escape(one.point.name)}</td>'
        f"<td>{html.escape(one.point.detail or one.point.kernel)[:160]}</td>"
        f"<td>{one.point.runs:,.0f}</td><td>{one.point.time_ns / 1e3:,.1f}</td>"
        f"<td>{one.point.work.intensity:,.3g}</td><td>{one.flops_per_s / 1e12:,.3g}</td>"
        f"<td>{one.bytes_per_s / 1e12:,.3g}</td><td>{one.share:.0%}</td>"
        f"<td>{one.verdict}</td></tr>"
        for number, one in enumerate(places)
    )
    heads = ("operator", "sizes", "runs", "us", "FLOP/byte", "TFLOP/s", "TB/s", "of roof", "bound")
    head = "".join(f"<th>{word}</th>" for word in heads)
    data = json.dumps({"gpu": gpu.name, "source": gpu.source, "measured": gpu.measured})
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Roofline</title>'
        f"<style>{_STYLE}</style></head><body><h1>Roofline, {html.escape(gpu.name)}</h1>{svg}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p>Ceilings: {html.escape(gpu.source)}.</p>"
        f'<script type="application/json">{data.replace("<", chr(92) + "u003c")}</script>'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def _title(one: Place) -> str:
    return (
        f"{one.point.name} {one.point.detail}: {one.point.time_ns / 1e3:,.1f} us, "
        f"{one.share:.0%} of the roof, {one.verdict}-bound"
    )
