"""`spanlite capture`: ask the agents of running processes for more, less, or their state."""

from __future__ import annotations

import argparse
import errno
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from spanlite.errors import InputError, UsageError

from spanlite_collectors.agent.layout import Detach, Level
from spanlite_collectors.agent.ring import Ring, library, rings_in
from spanlite_collectors.agent.source import DEFAULT_FOLDER, folders_of, is_missing
from spanlite_collectors.agent.status import ProcessStatus, disabled, status_of

#: What the agent's words have room for, and a day in ms.
_MOST_STEPS = 2**32 - 1
MOST_MS = 86_400_000
LEVELS = tuple(level.name.lower() for level in Level)
_EPILOG = """\
The spans of a capture arrive like all others; `spanlite collect` must run. A capture opens at
the next step's begin and holds whole steps; `--level ranges` ends one that is under way.

examples:
  spanlite capture --list
  spanlite capture --pid 4711 --steps 50
  spanlite capture --all --level ranges
"""


def add_folder_argument(parser: argparse._ActionsContainer) -> None:
    """Declare `--agent-dir`; read it with `folders_of(args.agent_dir)`."""
    parser.add_argument(
        "--agent-dir",
        action="append",
        metavar="FOLDER",
        help=f"where agents put their rings; may be repeated (default: {DEFAULT_FOLDER})",
    )


class CaptureCommand:
    """The `capture` subcommand."""

    summary = "Capture steps of a running process, change what its agent records, or list agents"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = _EPILOG
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--pid", type=int, action="append", help="a process; may be repeated")
        which.add_argument("--all", action="store_true", help="all processes with an agent")
        parser.add_argument("--steps", type=int, metavar="N", help="capture N whole steps now")
        parser.add_argument("--level", choices=LEVELS, help="record so much from now on")
        parser.add_argument(
            "--step-slo-ms", type=float, metavar="MS", help="a longer step opens a window; 0: never"
        )
        parser.add_argument(
            "--budget-pct", type=float, metavar="PCT", help="what windows may cost of step time"
        )
        parser.add_argument("--wait", type=float, metavar="S", help="wait until it is captured")
        parser.add_argument("--list", action="store_true", help="list agents and what they do")
        parser.add_argument("--json", action="store_true", help="one JSON object a process")
        add_folder_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Write the wish into the rings' control blocks, or read their state."""
        _check(args)
        library()  # without it a host with no ring yet would look like one without agents
        with _rings(_folders(args)) as rings:
            if args.list:
                _list(rings, args)
                return 0
            chosen = [r for r in rings if args.all or r.process_id in args.pid]
            _refuse_missing(args, chosen)
            if args.steps is not None:
                chosen = _able(chosen, args)
            before = [_covered(ring) for ring in chosen]
            for ring in chosen:
                _ask(ring, args)
                _warn(ring, args)
            if args.wait is not None:
                return _wait(chosen, before, args.steps, args.wait)
        return 0


def _folders(args: argparse.Namespace) -> list[Path]:
    """Where to look. The default folder is not there before the first agent, which is no error."""
    folders = folders_of(args.agent_dir)
    for folder in folders if args.agent_dir else ():
        if is_missing(folder):
            raise UsageError(
                f"--agent-dir {folder}: no such folder; an agent makes it at its start"
            )
    return folders


def _check(args: argparse.Namespace) -> None:
    if args.list:
        return
    if not args.all and not args.pid:
        raise UsageError("say which process: --pid N or --all (--list shows them)")
    wishes = (args.steps, args.level, args.step_slo_ms, args.budget_pct)
    if all(wish is None for wish in wishes):
        raise UsageError(
            "say what to do: --steps N, --level, --step-slo-ms, --budget-pct or --list"
        )
    for flag, value, most in (
        ("--step-slo-ms", args.step_slo_ms, MOST_MS),
        ("--budget-pct", args.budget_pct, 100),
        ("--wait", args.wait, MOST_MS),
    ):
        if value is not None and not 0 <= value <= most:
            raise UsageError(f"{flag} {value:g}: give a number from 0 to {most:,}")
    if args.steps is not None and not 1 <= args.steps <= _MOST_STEPS:
        raise UsageError(f"--steps {args.steps}: give 1 to {_MOST_STEPS}")
    if args.steps is not None and args.level in ("off", "ranges"):
        raise UsageError(f"--level {args.level} records no kernels, so --steps cannot be captured")
    if args.wait is not None and args.steps is None:
        raise UsageError("--wait needs --steps")


@contextmanager
def _rings(folders: list[Path]) -> Iterator[list[Ring]]:
    found: list[Ring] = []
    try:
        for path in _paths(folders):
            try:
                ring = Ring(path)
            except InputError as error:
                if getattr(error, "errno", None) != errno.ENOENT:  # just gone
                    _warning(str(error))
                continue
            if ring.alive:
                found.append(ring)
            else:
                ring.close()
        yield found
    finally:
        for ring in found:
            ring.close()


def _paths(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        try:
            yield from rings_in(folder)
        except OSError as error:
            raise UsageError(f"{folder} cannot be searched for rings: {error.strerror}") from None


def _refuse_missing(args: argparse.Namespace, chosen: list[Ring]) -> None:
    missing = sorted(set(args.pid or ()) - {ring.process_id for ring in chosen})
    if missing or not chosen:
        who = f"process {', '.join(map(str, missing))}" if missing else "any process"
        raise UsageError(
            f"no agent of {who} in {', '.join(map(str, folders_of(args.agent_dir)))}; was it "
            "started with CUDA_INJECTION64_PATH? `spanlite capture --list` shows those that were"
        )


def _able(chosen: list[Ring], args: argparse.Namespace) -> list[Ring]:
    """Those that can capture steps. `--all` leaves out what never can, as a fork's children."""
    able = []
    for ring in chosen:
        why = disabled(ring)
        if not why:
            able.append(ring)
        elif args.all:
            _warning(f"process {ring.process_id} is left out, it records no kernels: {why}")
        else:
            raise UsageError(f"process {ring.process_id} records no kernels: {why}")
    if not able:
        raise UsageError("no process records kernels, so there are no steps to capture")
    for ring in able:
        if args.level is None and ring.level < Level.WINDOWS:
            raise UsageError(
                f"process {ring.process_id} is at level {ring.level.name.lower()}, which records "
                "no kernels; add --level windows"
            )
    return able


def _ask(ring: Ring, args: argparse.Namespace) -> None:
    if args.level is not None:
        ring.set_control("level", Level[args.level.upper()])
    if args.steps is not None:
        ring.capture(args.steps)
    if args.step_slo_ms is not None:
        ring.set_control("step_slo_ns", round(args.step_slo_ms * 1e6))
    if args.budget_pct is not None:
        ring.set_control("budget_ppm", round(args.budget_pct * 1e4))
    wishes = (
        ("level", args.level),
        ("steps", args.steps),
        ("a step's limit in ms", args.step_slo_ms),
        ("a budget in percent", args.budget_pct),
    )
    what = ", ".join(f"{word}: {wish}" for word, wish in wishes if wish is not None)
    print(f"asked process {ring.process_id} ({ring.executable}) for {what}")


def _warn(ring: Ring, args: argparse.Namespace) -> None:
    _warn_of_threads(ring, args)
    why = disabled(ring)
    if why and args.level in ("windows", "continuous"):
        _warning(f"process {ring.process_id} records no kernels, whatever its level: {why}")
    records = args.steps is not None or args.level not in (None, "off")
    if records and not ring.has_reader:
        _warning(
            f"no `spanlite collect` reads the ring of process {ring.process_id}; start one, or "
            "what comes is lost once the ring is full"
        )


def _warn_of_threads(ring: Ring, args: argparse.Namespace) -> None:
    """Where CUPTI will stay attached beside several threads, which a server may not survive."""
    records = args.steps is not None or args.level == "continuous"
    held = int(ring.control["detach"][0]) == Detach.WHEN_HELD
    if records and not held and int(ring.state["launch_threads"][0]) > 1:
        _warning(
            f"several threads of process {ring.process_id} have launched work. Where they "
            "still do, CUPTI stays attached after this, which costs a little until the process "
            "ends, and CUPTI has rare faults there that the agent works around; "
            "SPANLITE_AGENT_DETACH=held at its start avoids both"
        )


def _warning(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _wait(rings: list[Ring], before: list[int], steps: int, timeout_s: float) -> int:
    """0 once each has captured so many whole steps more, 1 if time runs out or one never will."""
    end = time.monotonic() + timeout_s
    waiting = list(zip(rings, before, strict=True))
    while True:
        never = {ring: _why_never(ring, steps) for ring, _ in waiting}  # before they are counted
        waiting = [(ring, then) for ring, then in waiting if _covered(ring) - then < steps]
        if not waiting:
            print("captured")
            return 0
        missed = [f"process {ring.process_id} {never[ring]}" for ring, _ in waiting if never[ring]]
        if missed:
            print(f"not captured: {', '.join(missed)}")
            return 1
        if time.monotonic() >= end:
            break
        time.sleep(0.05)
    print(
        f"not captured within {timeout_s:g} s: no step has begun, they still last, or there were "
        f"fewer than {steps}"
    )
    return 1


def _why_never(ring: Ring, steps: int) -> str:
    """Why a process will capture nothing more; empty where it may."""
    if not ring.alive:
        return f"ended before it had run {steps} whole steps"
    why = disabled(ring)
    return f"records no kernels: {why}" if why else ""


def _covered(ring: Ring) -> int:
    """Whole steps in windows so far."""
    return int(ring.state["steps_covered"][0])


def _list(rings: list[Ring], args: argparse.Namespace) -> None:
    """Raises UsageError where a process that was named has no agent."""
    if args.pid:
        rings = [ring for ring in rings if ring.process_id in args.pid]
        _refuse_missing(args, rings)
    if not rings and not args.json:
        print("no process with an agent")
    for ring in rings:
        status = status_of(ring)
        print(json.dumps(asdict(status)) if args.json else _text(status))


def _text(status: ProcessStatus) -> str:
    lost = ", ".join(f"{count} {reason}" for reason, count in status.dropped.items())
    slo = f"step SLO {status.step_slo_ms:g} ms" if status.step_slo_ms else "no step SLO"
    return (
        f"{status.pid}  {status.executable}\n"
        f"  level {status.level} (now {status.now}), budget {status.budget_ppm / 1e4:g} %, {slo}, "
        f"{status.windows} windows, {status.steps_covered} of {status.steps} steps covered, "
        f"cost {status.cost_ppm / 1e4:.2f} %, {status.records} records of CUPTI, "
        f"dropped: {lost or 'none'}; CUPTI is {'' if status.attached else 'not '}attached, "
        f"{status.detaches} detaches"
        + (f"\n  records no kernels: {status.disabled}" if status.disabled else "")
    )


command = CaptureCommand()
