"""The bottleneck report on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spanlite_replay._text import shortened
from spanlite_replay.bottlenecks.diagnose import Diagnosis
from spanlite_replay.bottlenecks.report import Bottlenecks

#: Letters of a kernel's name; the JSON has all of it.
NAME_WIDTH = 48


def print_report(diagnosis: Diagnosis, console: Console, top: int) -> None:
    """Causes first, then where the time went, then the slowest windows."""
    report = diagnosis.report
    _say(console, f"[bold]{escape(report.headline)}[/]")
    lengths = report.lengths_ns
    _say(
        console,
        f"{report.windows:,} {report.unit}{'' if report.windows == 1 else 's'}, {report.spans:,} "
        f"spans; p50 {_ms(lengths.p50)}, p95 {_ms(lengths.p95)}, max {_ms(lengths.max)}",
    )
    _print_causes(diagnosis, console)
    _print_shares(report, console, top)
    _print_kernels(report, console, top)
    _print_windows(report, console, top)
    for note in report.notes:
        _say(console, escape(f"note: {note}"))


def _print_causes(diagnosis: Diagnosis, console: Console) -> None:
    _say(console, escape(f"compared: {diagnosis.compared}"))
    if not diagnosis.causes:
        why = "none that explains it" if diagnosis.unexplained else "no difference beyond chance"
        _say(console, f"causes: none; {why}")
    for number, cause in enumerate(diagnosis.causes, 1):
        _say(
            console,
            f"{number}. [bold]{escape(cause.title)}[/] ({cause.name}): "
            f"{_ms(cause.explained_ns)}, {cause.share * 100:.0f} % of the difference",
        )
        for line in cause.evidence:
            _say(console, escape(f"   {line}"))
    if diagnosis.unexplained > 0.05:
        _say(console, f"not explained: {diagnosis.unexplained * 100:.0f} % of the difference")
    console.print()


def _print_shares(report: Bottlenecks, console: Console, top: int) -> None:
    rows = []
    for share in report.shares:
        for place, one in enumerate(share.evidence[: max(1, top // 4)]):
            first = place == 0
            rows.append(
                (
                    _heading(share.bound) if first else "",
                    f"{share.share * 100:.1f} %" if first else "",
                    f"{one.ns / max(report.total_ns, 1) * 100:.1f} %",
                    shortened(one.what, NAME_WIDTH),
                    one.seen,
                )
            )
    _print(console, ["critical path", "share", "of it", "what", "evidence"], rows, left=(3, 4))


def _heading(bound: str) -> str:
    return {"unexplained": bound, "profiler": "profiler's own"}.get(bound, f"{bound}-bound")


def _print_kernels(report: Bottlenecks, console: Console, top: int) -> None:
    rows = [
        (
            shortened(one.name, NAME_WIDTH),
            f"{one.share * 100:.1f} %",
            _us(one.ns / one.times) if one.times else "-",
            f"{one.times:,}",
            f"{one.bound} ({one.known_by})",
            one.evidence,
        )
        for one in report.kernels[:top]
    ]
    heads = ["kernel on the path", "share", "each", "times", "bound", "evidence"]
    _print(console, heads, rows, left=(4, 5))


def _print_windows(report: Bottlenecks, console: Console, top: int) -> None:
    slowest = sorted(report.rows, key=lambda row: -row.ns)[:top]
    rows = []
    for one in slowest:
        parts = sorted(one.shares.items(), key=lambda item: -item[1])[:3]
        said = ", ".join(f"{bound} {share * 100:.0f} %" for bound, share in parts)
        rows.append((shortened(one.name, NAME_WIDTH), one.trace_id[:16], _ms(one.ns), said))
    _print(console, [f"slowest {report.unit}s", "trace", "length", "bound by"], rows, left=(1, 3))


def _print(
    console: Console,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Sequence[int],
) -> None:
    rows = list(rows)
    if not rows:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 or number in left else "right")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    console.print()


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f} ms"


def _us(ns: float) -> str:
    return f"{ns / 1e3:,.2f} us"
