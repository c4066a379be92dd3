"""The `spanlite` command. Each installed package adds its subcommands by entry point."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points, version
from types import FrameType
from typing import Protocol

from spanlite.errors import SpanLiteError

GROUP = "spanlite.commands"
#: 128 + SIGINT, as shells expect of a command that Ctrl-C ended.
INTERRUPTED = 130
#: EX_SOFTWARE of sysexits.h.
INTERNAL_ERROR = 70
DEBUG_VARIABLE = "SPANLITE_DEBUG"
#: What the machine refuses, not we; and what to do about it.
_MACHINE_SAYS = {
    errno.ENOSPC: "make room on that disk, or write elsewhere",
    errno.EDQUOT: "make room within that quota, or write elsewhere",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or write elsewhere",
    errno.EROFS: "write elsewhere",
    errno.EACCES: "run as a user who may, or choose another path",
    errno.EPERM: "run as a user who may, or choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "its links lead in a circle; choose another path",
    errno.ENOTDIR: "a part of it is no folder; choose another path",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the limit on open files of this machine",
}


class Command(Protocol):
    """One subcommand. An entry point in `spanlite.commands` names an object like this."""

    @property
    def summary(self) -> str:
        """One line for `spanlite --help`."""
        ...

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare flags, or sub-subcommands."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it; return the exit code. Raise SpanLiteError for anything a user can fix."""
        ...


def find_commands() -> dict[str, EntryPoint]:
    """Entry points of all installed packages, by subcommand name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP))}


def _summaries(points: Iterable[EntryPoint]) -> str:
    lines = []
    points = list(points)
    width = max((len(point.name) for point in points), default=0)
    for point in points:
        command: Command = point.load()
        lines.append(f"  {point.name:<{width}}  {command.summary}")
    return "\n".join(lines)


def build_parser(chosen: str | None, points: dict[str, EntryPoint]) -> argparse.ArgumentParser:
    """The parser; only the chosen subcommand is imported, so that start-up stays fast."""
    parser = argparse.ArgumentParser(
        prog="spanlite",
        description="Watch GPU inference fleets kernel by kernel.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"spanlite {version('spanlite')}")
    if chosen in points:
        command: Command = points[chosen].load()
        sub = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
        child = sub.add_parser(chosen, help=command.summary, description=command.summary)
        command.add_arguments(child)
        child.set_defaults(run=command.run)
        _complete_help(child)
    else:
        parser.epilog = "commands:\n" + _summaries(points.values())
        parser.add_argument("command", metavar="COMMAND", choices=list(points))
    return parser


def _complete_help(parser: argparse.ArgumentParser) -> None:
    """Let each sub-subcommand's help say what it does and show what its parent shows of it."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        says = {choice.dest: choice.help for choice in action._choices_actions}
        for name, child in action.choices.items():
            child.description = child.description or says.get(name)
            example = f"  {child.prog} "
            lines = [
                line
                for line in (parser.epilog or "").splitlines()
                if f"{line} ".startswith(example)
            ]
            if lines and example not in (child.epilog or ""):
                child.formatter_class = argparse.RawDescriptionHelpFormatter
                shown = "\n".join([f"example{'s' * (len(lines) > 1)}:", *lines])
                child.epilog = "\n\n".join(filter(None, [child.epilog, shown]))
            _complete_help(child)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `spanlite ARGV`; returns the exit code and never shows a traceback."""
    argv = list(sys.argv[1:] if argv is None else argv)
    interrupted = _note_interrupts()
    try:
        return _run(argv)
    except SpanLiteError as error:
        print(f"spanlite: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("spanlite: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone; say nothing, as other tools do.
        _drop_output()
        return 128 + signal.SIGPIPE
    except Exception as error:
        if interrupted():
            # Ctrl-C while a library is being imported comes out as any error at all.
            print("spanlite: interrupted", file=sys.stderr)
            return INTERRUPTED
        if isinstance(error, OSError) and error.errno in _MACHINE_SAYS:
            return _report_machine(error, _MACHINE_SAYS[error.errno])
        return _report_fault(error)


def _run(argv: list[str]) -> int:
    points = find_commands()
    chosen = next((word for word in argv if not word.startswith("-")), None)
    args = build_parser(chosen, points).parse_args(argv)
    code = int(args.run(args))
    if sys.stdout is not None:  # its parent may have closed it
        sys.stdout.flush()  # here a full disk can still be told; at the interpreter's end it cannot
    return code


def _note_interrupts() -> Callable[[], bool]:
    """Let Ctrl-C work as ever, and remember that it came."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        return lambda: False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return lambda: False

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    return lambda: bool(seen)


def _drop_output() -> None:
    """Let what is still buffered go nowhere: the interpreter flushes once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_machine(error: OSError, cure: str) -> int:
    """A full disk, a file that may not be read: one line, as for other wrong input."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exc()
    where = f"'{error.filename}'" if error.filename else "its output"
    print(f"spanlite: {where}: {os.strerror(error.errno or 0)}; {cure}", file=sys.stderr)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _drop_output()
    return SpanLiteError.exit_code


def _report_fault(error: Exception) -> int:
    """A fault of ours: one line, and where to find the rest."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exc()
    print(
        f"spanlite: internal error: {type(error).__name__}: {error}\n"
        f"spanlite: set {DEBUG_VARIABLE}=1 to see where, and please report it",
        file=sys.stderr,
    )
    return INTERNAL_ERROR


if __name__ == "__main__":
    raise SystemExit(main())
