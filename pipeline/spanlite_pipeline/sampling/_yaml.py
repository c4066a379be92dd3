"""Rule files as checked sections: every complaint names the policy, the line and what is known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import yaml
from spanlite.errors import UsageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MISSING: Any = object()


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean ...?` where something is close, and what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}known: {', '.join(names)}"


class Section:
    """A YAML mapping that remembers its lines and hands out checked values."""

    def __init__(self, node: yaml.MappingNode, where: str, source: str) -> None:
        self.where = where
        self.source = source
        self.line: int = node.start_mark.line + 1
        self._nodes: dict[str, yaml.Node] = {}
        self._lines: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in self._nodes:
                self.fail(f"'{name}' is given twice", key.start_mark.line + 1)
            self._nodes[name], self._lines[name] = value, key.start_mark.line + 1

    def fail(self, what: str, line: int | None = None) -> NoReturn:
        """Raise UsageError with the place."""
        at = f"{self.source}, line {self.line if line is None else line}"
        raise UsageError(f"{at}: {self.where}: {what}")

    def line_of(self, key: str) -> int:
        """The line of a key, or of the section where it is missing."""
        return self._lines.get(key, self.line)

    def __contains__(self, key: str) -> bool:
        return key in self._nodes

    def names(self) -> list[str]:
        """The keys, in order."""
        return list(self._nodes)

    def check_keys(self, known: Sequence[str]) -> None:
        """Raise UsageError on a key that is not among `known`."""
        for key in self._nodes:
            if key not in known:
                self.fail(f"unknown key '{key}': {suggest(key, known)}", self.line_of(key))

    def value(self, key: str, default: Any = _MISSING) -> Any:
        """The plain value of a key."""
        if key in self._nodes:
            return yaml.SafeLoader("").construct_object(self._nodes[key], deep=True)
        if default is _MISSING:
            self.fail(f"'{key}' is missing")
        return default

    def _typed(self, key: str, default: Any, kinds: tuple[type, ...], word: str) -> Any:
        value = self.value(key, default)
        if key in self._nodes and (
            not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
        ):
            self.fail(f"'{key}' is {value!r}, but must be {word}", self.line_of(key))
        return value

    def text(self, key: str, default: Any = _MISSING) -> Any:
        """A string."""
        return self._typed(key, default, (str,), "text")

    def flag(self, key: str, default: Any = _MISSING) -> Any:
        """true or false."""
        return self._typed(key, default, (bool,), "true or false")

    def number(
        self,
        key: str,
        default: Any = _MISSING,
        minimum: float | None = 0,
        maximum: float | None = None,
        whole: bool = True,
    ) -> Any:
        """A number within bounds."""
        kinds: tuple[type, ...] = (int,) if whole else (int, float)
        value = self._typed(key, default, kinds, "a whole number" if whole else "a number")
        if value is not None and minimum is not None and value < minimum:
            self.fail(f"'{key}' is {value}, but must be {minimum} or more", self.line_of(key))
        if value is not None and maximum is not None and value > maximum:
            self.fail(f"'{key}' is {value}, but must be {maximum} or less", self.line_of(key))
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings, not empty."""
        values = self.value(key)
        if not isinstance(values, list) or not values:
            self.fail(f"'{key}' must be a list of text, not empty", self.line_of(key))
        return [value if isinstance(value, str) else str(value) for value in values]

    def seconds(self, key: str) -> float | None:
        """A duration such as `10s` or `1m30s`, in seconds; None where it is missing."""
        text = self.value(key, None)
        if text is None:
            return None
        parts = _DURATION.findall(str(text))
        if not parts or "".join(a + b for a, b in parts) != str(text):
            self.fail(f"'{key}' is '{text}', but must be like 30s or 1m30s", self.line_of(key))
        return float(sum(float(amount) * _UNIT_S[unit] for amount, unit in parts))

    def section(self, key: str, where: str | None = None) -> Section:
        """A mapping below; an empty one where the key has no value."""
        if key not in self._nodes:
            self.fail(f"'{key}' is missing")
        return self._as_section(self._nodes[key], where or f"{self.where}.{key}", key)

    def _as_section(self, node: yaml.Node, where: str, key: str) -> Section:
        if isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~"):
            node = yaml.MappingNode("tag:yaml.org,2002:map", [], node.start_mark, node.end_mark)
        if not isinstance(node, yaml.MappingNode):
            self.fail(f"'{key}' must be a mapping", node.start_mark.line + 1)
        return Section(node, where, self.source)

    def sections(self, key: str) -> list[Section]:
        """A list of mappings below, not empty; each is named by its `name` key."""
        node = self._nodes.get(key)
        if node is None:
            self.fail(f"'{key}' is missing")
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self.fail(f"'{key}' must be a list of policies, not empty", self.line_of(key))
        out = []
        for i, item in enumerate(node.value):
            section = self._as_section(item, f"{key}[{i}]", key)
            name = section.text("name", None)
            section.where = f"policy '{name}'" if name else f"{key}[{i}]"
            out.append(section)
        return out


def parse_yaml(text: str, source: str) -> Section:
    """The whole file as a section. Raises UsageError where it is no YAML mapping."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise UsageError(f"{source} is not YAML: {error}") from None
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(
            f"{source} holds no rules: give a collector configuration with "
            f"processors.tail_sampling, or that section's content (policies: ...)"
        )
    return Section(node, "tail_sampling", source)
