"""Each `spanlite` line in the documentation and in the help is one that the parser takes.

What the lines do is tested where their command is; tests/analytics runs those of the README.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from spanlite.cli import build_parser, find_commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: What stands for "and so on" in a line.
ELLIPSIS = {"...", "…"}


def words_of(text: str) -> Iterator[list[str]]:
    """The arguments of each `spanlite` command; quotes and backslashes may span lines."""
    held = ""
    for line in text.splitlines():
        begins = re.match(r"\s*(\$ )?spanlite ", line)
        if not held and not begins:
            continue
        held += "\n" + line if held else re.sub(r"^\s*(\$ )?", "", line)
        try:
            words = shlex.split(held.replace("\\\n", " "), comments=True)
        except ValueError:  # a quotation goes on
            continue
        if held.rstrip().endswith("\\"):
            continue
        held = ""
        yield words[1:]
    assert not held, f"this never ends: {held}"


def until_the_shell_goes_on(words: list[str]) -> list[str]:
    ends = [i for i, word in enumerate(words) if word in ("&", "|", ">", ";", "&&")]
    return words[: ends[0]] if ends else words


def parsers(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, Any]]:
    """A command's parser and those of what is below it."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in dict(action.choices).items():
                yield from parsers(below, f"{name} {word}".strip())


@lru_cache
def all_parsers() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for command in find_commands():
        found |= parsers(build_parser(command, find_commands()), "")
    found.pop("")
    return found


def in_pages() -> Iterator[Any]:
    for page in PAGES:
        blocks = re.findall(r"^```(?:console|sh|)\n(.*?)^```", page.read_text(), re.S | re.M)
        shown = (block for block in blocks if not set(block) & set("│─"))  # those are pictures
        for i, words in enumerate(w for block in shown for w in words_of(block)):
            yield pytest.param(words, id=f"{page.name}-{i}-{words[0]}")


def in_help() -> Iterator[Any]:
    for name, parser in all_parsers().items():
        for i, words in enumerate(words_of(parser.epilog or "")):
            yield pytest.param(words, id=f"{name}-{i}")


@pytest.mark.parametrize("words", [*in_pages(), *in_help()])
def test_the_parser_takes_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = until_the_shell_goes_on(words)
    if ELLIPSIS & set(words):
        words = words[: min(words.index(w) for w in ELLIPSIS & set(words))]
    try:
        build_parser(words[0], find_commands()).parse_args(words)
    except SystemExit:
        pytest.fail(f"spanlite {shlex.join(words)}: {capsys.readouterr().err.splitlines()[-1]}")


@pytest.mark.parametrize("name", all_parsers())
def test_each_help_has_an_example(name: str) -> None:
    parser = all_parsers()[name]
    if any(isinstance(action, argparse._SubParsersAction) for action in parser._actions):
        pytest.skip("what is below it has")
    assert any(w[: len(name.split())] == name.split() for w in words_of(parser.epilog or "")), (
        f"spanlite {name} --help shows no example of it"
    )
