"""The report as rows of text, the same on a terminal and on a page."""

from __future__ import annotations

from dataclasses import dataclass

from spanlite_replay.fidelity.report import Fidelity, Pair


@dataclass(frozen=True)
class Row:
    """One measure: what was planned, what happened, the error, and the noise floor of it."""

    title: str
    planned: str
    observed: str
    error: str
    noise: str


def rows(report: Fidelity) -> list[Row]:
    """The measures in the order in which they are read."""
    r, d, s = report, report.durations, report.starts
    iou = "nothing overlaps" if r.overlap_iou is None else f"{r.overlap_iou:.3f}"
    return [
        _pair(r, "makespan", r.makespan_ms, "ms", "%", "makespan_pct"),
        _error(r, "makespan of single traces, p50", r.steps.p50_pct, "%", "steps.p50_pct"),
        _error(r, "makespan of single traces, p95", r.steps.p95_pct, "%", "steps.p95_pct"),
        _error(r, "kernel duration, MAPE", d.mape_pct, "%", "durations.mape_pct"),
        _error(r, "kernel duration, p95", d.p95_pct, "%", "durations.p95_pct"),
        _error(r, "kernel duration, p95", d.p95_us, "us", "durations.p95_us"),
        _error(r, "kernel duration, bias", d.bias_pct, "%", "durations.bias_pct", signed=True),
        _error(r, "kernel duration, correlation", d.r, "", "durations.r"),
        _error(r, "start offset, p50", s.p50_us, "us", "starts.p50_us"),
        _error(r, "start offset, p99", s.p99_us, "us", "starts.p99_us"),
        _error(r, "start offset, drift", s.drift_us_per_s, "us/s", "starts.drift_us_per_s", True),
        _error(r, f"dispatch of {r.dispatch.of}, p50", r.dispatch.p50_us, "us", "dispatch.p50_us"),
        _error(r, f"dispatch of {r.dispatch.of}, p99", r.dispatch.p99_us, "us", "dispatch.p99_us"),
        _pair(r, "idle", r.idle_pct, "%", "points", "idle_points"),
        Row("overlap of streams, IoU", "1", iou, "", _noise(r, "overlap_iou", "")),
        *(
            Row(f"order: {name}", f"{one.edges:,} edges", "", f"{one.violations:,} violated", "")
            for name, one in r.order.items()
        ),
    ]


def coverage_rows(report: Fidelity) -> list[tuple[str, str, str, str]]:
    """(kind, spans, share by count, share by time)."""
    return [
        (
            kind,
            f"{one.observed:,} of {one.planned:,}",
            f"{one.count * 100:.2f} %",
            f"{one.time * 100:.2f} %",
        )
        for kind, one in report.coverage.items()
    ]


def kernel_rows(report: Fidelity, most: int) -> list[tuple[str, ...]]:
    """(name, spans, planned ms, observed ms, bias, MAPE, p95)."""
    return [
        (
            one.name,
            f"{one.spans:,}",
            f"{one.planned_ns / 1e6:,.3f}",
            f"{one.observed_ns / 1e6:,.3f}",
            f"{one.bias_pct:+.2f} %",
            f"{one.mape_pct:.2f} %",
            f"{one.p95_pct:.2f} %",
        )
        for one in report.kernels[:most]
    ]


def pair_rows(report: Fidelity, most: int) -> list[tuple[str, ...]]:
    """(streams, planned us, observed us, IoU), the widest overlap first."""
    widest = sorted(report.stream_pairs, key=lambda one: -one.planned_ns)[:most]
    return [
        (
            f"{one.first} and {one.second}",
            f"{one.planned_ns / 1e3:,.1f}",
            f"{one.observed_ns / 1e3:,.1f}",
            "-" if one.iou is None else f"{one.iou:.3f}",
        )
        for one in widest
    ]


def verdict(report: Fidelity) -> str:
    """The grade and what kept it from being a better one."""
    why = "; ".join(report.grade.because)
    return f"grade {report.grade.letter}" + (f" ({why})" if why else "")


def accounts(report: Fidelity) -> list[str]:
    """Lines that say whether everything is accounted for."""
    lines = [report.conservation + ("" if report.closes else " (does not close)")]
    for count, what in (
        (report.repeated, "observed rows of spans that were observed already"),
        (report.unknown, "observed rows of spans that the recording has not"),
        (report.overlap_cut, "spans left out of the overlap: too much ran at once"),
    ):
        if count:
            lines.append(f"{count:,} {what}")
    return lines


def _pair(r: Fidelity, title: str, one: Pair, unit: str, error_unit: str, key: str) -> Row:
    error = "-" if one.error is None else f"{one.error:+,.3f} {error_unit}"
    return Row(
        title,
        _number(one.planned, unit),
        _number(one.observed, unit),
        error,
        _noise(r, key, error_unit),
    )


def _error(
    r: Fidelity, title: str, value: float | None, unit: str, key: str, signed: bool = False
) -> Row:
    return Row(title, "", "", _number(value, unit, signed), _noise(r, key, unit))


def _noise(report: Fidelity, key: str, unit: str) -> str:
    return _number(report.noise.get(key), unit) if report.noise else ""


def _number(value: float | None, unit: str, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:+,.3f} {unit}".rstrip() if signed else f"{value:,.3f} {unit}".rstrip()
