"""The flags of `replay` that ask how faithful it was, and the answer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from spanlite.errors import UsageError

from spanlite_replay._places import check_place
from spanlite_replay.commands._console import stdout_console
from spanlite_replay.fidelity.chrome import write_chrome
from spanlite_replay.fidelity.page import write_page
from spanlite_replay.fidelity.report import Extras, Fidelity, compare
from spanlite_replay.fidelity.terminal import print_report
from spanlite_replay.plan import Plan
from spanlite_replay.report import Report
from spanlite_replay.work import EdgeKind

#: Targets that run nothing whose times could be compared.
_BLIND = ("dry", "kafka", "http")


def add_fidelity(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; each asks for the fidelity report."""
    group = parser.add_argument_group("fidelity")
    group.add_argument("--fidelity", action="store_true", help="say how faithful the replay was")
    group.add_argument(
        "--aa", action="store_true", help="run the plan twice: the noise floor beside each error"
    )
    group.add_argument("--html", metavar="FILE", help="the fidelity report as one HTML file")
    group.add_argument("--chrome", metavar="FILE", help="both tracks for Perfetto (Chrome JSON)")


def wants_fidelity(args: argparse.Namespace) -> bool:
    """Whether any of the flags is given. Raises UsageError where the target observes nothing."""
    asked = bool(args.fidelity or args.aa or args.html or args.chrome)
    if asked and args.target in _BLIND:
        raise UsageError(f"--target {args.target} runs nothing on a GPU: no fidelity to report")
    for flag, path in (("--html", args.html), ("--chrome", args.chrome)):
        if path:
            check_place(flag, Path(path))
    return asked


def fidelity_of(plan: Plan, report: Report, again: Report | None) -> Fidelity:
    """Compare what the plan's spans did with what was planned of them."""
    assert report.observed is not None
    edges = None
    if plan.work is not None:
        work = plan.work
        known = work.edges.kind != EdgeKind.SYNC
        edges = (work.row[work.edges.before[known]], work.row[work.edges.after[known]])
    extras = Extras(
        edges=edges,
        conservation=report.conservation(),
        closes=report.closes,
        environment=dict(_circumstances(plan, report)),
    )
    second = None if again is None else again.observed
    return compare(plan.recording.table, report.observed, extras, second)


def _circumstances(plan: Plan, report: Report) -> Iterator[tuple[str, object]]:
    yield "command", " ".join(["spanlite", *sys.argv[1:]])
    yield "seed", plan.settings.seed
    yield from report.facts.items()


def print_fidelity(
    fidelity: Fidelity, plan: Plan, report: Report, args: argparse.Namespace
) -> None:
    """Print it with the report of the replay, and write the files asked for."""
    recorded, observed = plan.recording.table, report.observed
    if args.html:
        write_page(fidelity, recorded, observed, Path(args.html))
    if args.chrome:
        write_chrome(recorded, observed, Path(args.chrome))
    if args.json:
        body = json.loads(report.to_json()) | {"fidelity": json.loads(fidelity.to_json())}
        print(json.dumps(body, ensure_ascii=False))
    else:
        print(report.to_text())
        print_report(fidelity, stdout_console())
