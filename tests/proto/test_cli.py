"""The `spanlite` command: what a user sees when things go well and when they do not."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from spanlite import cli
from spanlite.errors import ServiceError, SpanLiteError, UsageError, WireError


class Fake:
    """A subcommand that raises what the test wants."""

    summary = "Does what the test wants."

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--number", type=int, default=0)

    def run(self, args: argparse.Namespace) -> int:
        if self.error:
            raise self.error
        return int(args.number)


class Point(EntryPoint):
    """An entry point that needs no module."""

    def load(self) -> Fake:
        return COMMANDS[self.name]


COMMANDS: dict[str, Fake] = {}


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, Fake]:
    COMMANDS.clear()
    COMMANDS["ok"] = Fake()
    points = lambda: {name: Point(name, "none:none", cli.GROUP) for name in COMMANDS}  # noqa: E731
    monkeypatch.setattr(cli, "find_commands", points)
    return COMMANDS


def test_the_exit_code_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ok"]) == 0
    assert cli.main(["ok", "--number", "1"]) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "error",
    [
        SpanLiteError("a"),
        UsageError("conflicting flags"),
        ServiceError("no broker"),
        WireError("malformed", "what"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(
    error: SpanLiteError, capsys: pytest.CaptureFixture[str]
) -> None:
    COMMANDS["bad"] = Fake(error)
    assert cli.main(["bad"]) == 2
    assert capsys.readouterr().err == f"spanlite: {error}\n"


def test_ctrl_c_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    COMMANDS["slow"] = Fake(KeyboardInterrupt())
    assert cli.main(["slow"]) == 128 + signal.SIGINT
    assert "Traceback" not in capsys.readouterr().err


def test_a_fault_of_ours_shows_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    COMMANDS["bug"] = Fake(ZeroDivisionError("division by zero"))
    assert cli.main(["bug"]) != 0
    said = capsys.readouterr().err
    assert "division by zero" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["ok", "--nonsense"], ["ok", "--number", "x"]])
def test_wrong_words_are_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    assert stopped.value.code == 2
    assert "usage: spanlite" in capsys.readouterr().err


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    assert "Does what the test wants." in capsys.readouterr().out


REAL_COMMANDS = cli.find_commands()


@pytest.mark.parametrize("name", REAL_COMMANDS)
def test_every_installed_command_has_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_commands", lambda: REAL_COMMANDS)
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: spanlite {name}")
    assert REAL_COMMANDS[name].load().summary


def unexplained(parser: argparse.ArgumentParser) -> list[str]:
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                found += unexplained(child)
        elif not action.help:
            found.append(f"{parser.prog}: {'/'.join(action.option_strings) or action.dest}")
    return found


@pytest.mark.parametrize("name", REAL_COMMANDS)
def test_every_argument_says_what_it_is(name: str) -> None:
    parser = argparse.ArgumentParser(prog=name)
    REAL_COMMANDS[name].load().add_arguments(parser)
    assert unexplained(parser) == []


def test_a_reader_that_leaves_is_no_fault() -> None:
    """As in `spanlite --version | true`, with a pipe nobody reads."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "spanlite", "--version"],
        stdout=write, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
    )  # fmt: skip
    os.close(write)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110
def test_a_full_disk_is_no_fault_of_ours() -> None:
    """As in `spanlite stack status > FILE`; what is buffered must not fail once more at the end."""
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "spanlite", "stack", "status", "--data", "/nonexistent"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "spanlite: its output: No space left on device; make room on that disk, or write elsewhere"
    ]


def test_what_may_not_be_read_is_told_with_its_path(
    commands: dict[str, Fake], capsys: pytest.CaptureFixture[str]
) -> None:
    commands["ok"].error = PermissionError(errno.EACCES, "Permission denied", "/archive/spans")
    assert cli.main(["ok"]) == 2
    said = capsys.readouterr().err
    assert "'/archive/spans': Permission denied; run as a user who may" in said
    commands["ok"].error = OSError(errno.EBADF, "Bad file descriptor")
    assert cli.main(["ok"]) == cli.INTERNAL_ERROR


def test_help_below_a_command_shows_its_examples() -> None:
    parser = argparse.ArgumentParser(prog="spanlite x", epilog="examples:\n  spanlite x y --now\n")
    below = parser.add_subparsers().add_parser("y", help="does y", epilog="Safe at any time.")
    cli._complete_help(parser)
    assert below.description == "does y"
    assert below.format_help().endswith("Safe at any time.\n\nexample:\n  spanlite x y --now\n")


@pytest.mark.parametrize("name", REAL_COMMANDS)
def test_summaries_are_of_one_style(name: str) -> None:
    summary = REAL_COMMANDS[name].load().summary
    assert summary[0].isupper() and not summary.endswith("."), summary


def test_the_list_of_commands_is_aligned() -> None:
    text = cli.build_parser(None, REAL_COMMANDS).epilog or ""
    lines = text.splitlines()[1:]
    assert len({line.index(REAL_COMMANDS[line.split()[0]].load().summary) for line in lines}) == 1
