"""`spanlite plan save|show|diff`: a replay before it is run, as a file."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from spanlite.kinds import KIND_WORDS
from spanlite.settings import add_archive_words
from spanlite.timewindow import format_time

from spanlite_replay.commands._flags import DEPS_HELP, add_transforms
from spanlite_replay.commands._open import open_plan
from spanlite_replay.commands._progress import Progress
from spanlite_replay.plan import Plan
from spanlite_replay.plandiff import PlanDiff, diff_plans
from spanlite_replay.planfile import (
    Provenance,
    read_plan,
    settings_to_dict,
    write_plan,
)
from spanlite_replay.report import count_fates

DIFFERENT = 1
_EPILOG = """\
examples:
  spanlite plan save data/archive --last 1h --qps 500 --out incident.slplan
  spanlite plan show incident.slplan
  spanlite plan diff incident.slplan faster.slplan
  spanlite replay incident.slplan --target sim
"""


class PlanCommand:
    """The `plan` subcommand."""

    summary = "Save, show and compare what a replay would do"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the sub-subcommands."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        _add_save(actions.add_parser("save", help="make a plan from an archive, as a file"))
        _add_show(actions.add_parser("show", help="what is in a plan, and where it comes from"))
        _add_diff(actions.add_parser("diff", help="what differs between two plans"))

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0, or 1 where `diff` finds a difference."""
        code: int = args.do(args)
        return code


def _add_save(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(do=_save)
    add_archive_words(parser, "ARCHIVE|LOG", ", or a log of LLM requests")
    add_transforms(parser)
    parser.add_argument("--deps", choices=["stream", "observed"], default="stream", help=DEPS_HELP)
    parser.add_argument("--out", metavar="FILE", required=True, help="ends in .slplan")
    parser.add_argument("--json", action="store_true", help="what is in it, as JSON")


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(do=_show)
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a saved plan (.slplan)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(do=_diff)
    parser.add_argument("first", metavar="PLAN", type=Path, help="the plan to compare with")
    parser.add_argument("second", metavar="PLAN", type=Path, help="the plan to compare")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _save(args: argparse.Namespace) -> int:
    # All columns, so that the plan can go to any target.
    plan, provenance = open_plan(args, None, args.deps, Progress(sys.stderr))
    write_plan(plan, provenance, Path(args.out))
    _print(plan, provenance, args.json)
    return 0


def _show(args: argparse.Namespace) -> int:
    _print(*read_plan(args.plan), args.json)
    return 0


def _diff(args: argparse.Namespace) -> int:
    found = diff_plans(read_plan(args.first)[0], read_plan(args.second)[0])
    print(json.dumps(asdict(found)) if args.json else _diff_text(found))
    return 0 if found.same else DIFFERENT


def _print(plan: Plan, provenance: Provenance, as_json: bool) -> None:
    facts = facts_of(plan, provenance)
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        print(f"{name:<10} {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{word} {_text(each)}" for word, each in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def facts_of(plan: Plan, provenance: Provenance) -> dict[str, Any]:
    """What there is to say about a plan, by word."""
    changed = settings_to_dict(plan.settings)
    plain = settings_to_dict(type(plan.settings)())
    facts: dict[str, Any] = {
        "digest": plan.digest(),
        "source": vars(provenance),
        "transforms": {name: value for name, value in changed.items() if value != plain[name]},
        "events": len(plan),
        "spans": plan.size.spans,
        "traces": len(np.unique(plan.trace)),
        "fates": {
            "planned": int((plan.fate == 0).sum()),
            **{
                word: one.events for word, one in count_fates(plan, plan.fate).items() if one.events
            },
        },
        "first": format_time(int(plan.due_ns[0])),
        "last": format_time(int(plan.due_ns[-1])),
    }
    return facts | _work_facts(plan)


def _work_facts(plan: Plan) -> dict[str, Any]:
    work = plan.work
    if work is None:
        return {}
    counts = np.bincount(work.kind, minlength=len(KIND_WORDS))
    device = work.is_device
    return {
        "deps": work.deps,
        "kinds": {word: int(n) for word, n in zip(KIND_WORDS, counts, strict=False) if n},
        "streams": work.streams.num_rows,
        "threads": len(np.unique(work.thread[work.is_call])),
        "launches": {
            "recorded": int((device & (work.launched_by >= 0)).sum()),
            "unknown": int((device & (work.launched_by < 0)).sum()),
        },
        "edges": work.edges.counts(),
        "links": {"kept": len(work.link_from), "to spans outside": work.links_outside},
        "waits whose event was not recorded": work.waits_unknown,
    }


def _diff_text(found: PlanDiff) -> str:
    if found.same:
        return "the same plan"
    lines = [f"{name}: {old} -> {new}" for name, (old, new) in found.settings.items()]
    lines += [
        f"events: {found.events[0]:,} -> {found.events[1]:,} ({found.in_both:,} in both, "
        f"{found.only_in_first:,} only in the first, {found.only_in_second:,} only in the second)",
        f"deadlines moved: {found.moved:,} (median {found.moved_median_ns / 1e3:+,.3f} us, "
        f"most {found.moved_max_ns / 1e3:+,.3f} us), counted from each plan's first event",
        f"durations changed: {found.duration_changed:,}; fates changed: {found.fate_changed:,}",
    ]
    if found.start_moved_ns:
        lines.append(f"the second starts {found.start_moved_ns / 1e9:+,.6f} s from the first")
    lines += [f"edges, {word}: {old:,} -> {new:,}" for word, (old, new) in found.edges.items()]
    return "\n".join(lines)


command = PlanCommand()
