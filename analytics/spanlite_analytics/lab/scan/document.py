"""A YAML file whose every value knows its line and the way to it, for errors that name both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from spanlite.errors import InputError, ServiceError

from spanlite_analytics.lab.scan.expression import Expression, Scalar, parse


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the file: `way` is its keys, as `parameters.block_m[2]`."""

    file: str
    way: str
    line: int
    value: Any

    def wrong(self, words: str) -> NoReturn:
        """Raise InputError that names file, line and key."""
        where = f"{self.way}: " if self.way else ""
        raise InputError(f"{self.file}:{self.line}: {where}{words}")

    def mapping(self, known: Sequence[str] = (), needed: Sequence[str] = ()) -> dict[str, Node]:
        """Its keys and values; with `known`, no others may be there."""
        if not isinstance(self.value, dict):
            self.wrong(f"must be a mapping of names to values, not {_kind(self.value)}")
        for key, node in self.value.items():
            if known and key not in known:
                near = get_close_matches(key, known, 1)
                meant = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}"
                node.wrong(f"unknown key{meant}")
        for key in needed:
            if key not in self.value:
                self.wrong(f"the key '{key}' is missing")
        return dict(self.value)

    def items(self) -> list[Node]:
        """The parts of a list."""
        if not isinstance(self.value, list):
            self.wrong(f"must be a list, not {_kind(self.value)}")
        return list(self.value)

    def text(self, among: Sequence[str] = ()) -> str:
        """A string; with `among`, one of these."""
        if not isinstance(self.value, str):
            self.wrong(f"must be a string, not {_kind(self.value)}")
        if among and self.value not in among:
            self.wrong(f"is '{self.value}'; must be one of {', '.join(among)}")
        return self.value

    def whole(self, least: int, most: int = 1 << 40) -> int:
        """A whole number within limits."""
        if type(self.value) is not int:
            self.wrong(f"must be a whole number, not {_kind(self.value)}")
        if not least <= self.value <= most:
            self.wrong(f"is {self.value}; must be {least} to {most}")
        return self.value

    def scalar(self) -> Scalar:
        """A number or a string."""
        if type(self.value) not in (int, float, str):
            self.wrong(f"must be a number or a string, not {_kind(self.value)}")
        value: Scalar = self.value
        return value

    def expression(self, names: Mapping[str, Scalar | None]) -> Expression:
        """An expression over these names; one of known values alone must have a value, too."""
        if type(self.value) not in (int, float, str):
            self.wrong(f"must be an expression, not {_kind(self.value)}")
        try:
            found = parse(str(self.value))
        except ValueError as error:
            self.wrong(str(error))
        unknown = sorted(found.names - set(names))
        if unknown:
            self.wrong(f"'{unknown[0]}' is no size and no parameter; known: {', '.join(names)}")
        known = {name: value for name, value in names.items() if value is not None}
        if found.names <= known.keys():
            try:
                found.value(known)
            except ValueError as error:
                self.wrong(f"has no value: {error}")
        return found


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    names = {dict: "a mapping", list: "a list", bool: "true or false", str: "a string"}
    return names.get(type(value), f"{value!r}")


def read(path: Path) -> Node:
    """Read a YAML file. Raises InputError, which names the line; ServiceError without PyYAML."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    return parse_text(text, str(path))


def parse_text(text: str, name: str) -> Node:
    """The same from a text."""
    try:
        import yaml
    except ImportError as error:
        raise ServiceError("a scan needs PyYAML: install spanlite-analytics[lab]") from error
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        made = Node(name, "", 1, None) if root is None else _node(loader, root, name, "")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        words = getattr(error, "problem", None) or str(error)
        raise InputError(f"{name}{where}: not YAML: {words}") from None
    except RecursionError:
        words = "is nested too deeply, or an alias (*) holds itself; write the values out"
        raise InputError(f"{name}: {words}") from None
    except ValueError as error:
        raise InputError(f"{name}: a value is not YAML: {error}; quote it if it is text") from None
    made.mapping()
    return made


def _node(loader: Any, node: Any, name: str, way: str) -> Node:
    line = node.start_mark.line + 1
    if node.id == "mapping":
        return Node(name, way, line, dict(_pairs(loader, node, name, way)))
    if node.id == "sequence":
        parts = [_node(loader, n, name, f"{way}[{i}]") for i, n in enumerate(node.value)]
        return Node(name, way, line, parts)
    return Node(name, way, line, loader.construct_object(node))


def _pairs(loader: Any, node: Any, name: str, way: str) -> Iterator[tuple[str, Node]]:
    seen = set()
    for key, value in node.value:
        word = str(key.value)
        inside = _node(loader, value, name, f"{way}.{word}" if way else word)
        inside = Node(name, inside.way, key.start_mark.line + 1, inside.value)
        if word in seen:
            inside.wrong("is there twice")
        seen.add(word)
        yield word, inside
