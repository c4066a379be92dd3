"""The fidelity report on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spanlite_replay._text import shortened
from spanlite_replay.fidelity import rows
from spanlite_replay.fidelity.report import Fidelity

KERNELS, PAIRS = 10, 10
#: Letters of a kernel's name; the JSON has all of it.
NAME_WIDTH = 50


def print_report(report: Fidelity, console: Console) -> None:
    """Print it all, the grade first."""
    console.print(f"[bold]{escape(rows.verdict(report))}[/]", highlight=False)
    console.print(f"{report.spans:,} {report.judged}, {report.lost:,} lost", highlight=False)
    for line in rows.accounts(report):
        console.print(line, highlight=False)
    measures = [(r.title, r.planned, r.observed, r.error, r.noise) for r in rows.rows(report)]
    heads = ["", "planned", "observed", "error", "noise (A/A)"]
    if not report.noise:
        heads, measures = heads[:-1], [one[:-1] for one in measures]  # type: ignore[misc]
    _print(console, heads, measures)
    heads = ["coverage", "spans", "by count", "by time"]
    _print(console, heads, rows.coverage_rows(report))
    kernels = [
        (shortened(name, NAME_WIDTH), *rest) for name, *rest in rows.kernel_rows(report, KERNELS)
    ]
    heads = ["kernel", "spans", "planned ms", "observed ms", "bias", "MAPE", "p95"]
    _print(console, heads, kernels)
    _print(
        console,
        ["streams", "planned us", "observed us", "IoU"],
        rows.pair_rows(report, PAIRS),
    )
    for name, value in report.environment.items():
        console.print(escape(f"{name}: {value}"), highlight=False)


def _print(console: Console, heads: Sequence[str], body: Iterable[Sequence[str]]) -> None:
    body = list(body)
    if not body:
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right", no_wrap=number > 0)
    for row in body:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    console.print()
