"""Questions that are asked of each span; a trace's answer is yes when any span's is.

Each distinct question of a rule file has one bit. Answers come column by column: a column
that holds one value for the whole batch is asked once, text is asked once for each distinct
string, and only what is left is asked for each span.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from spanlite.codec import BatchView
from spanlite.errors import UsageError

from spanlite_pipeline.sampling._columns import BUILT_INS

Bits = npt.NDArray[np.uint64]
Array = npt.NDArray[Any]
MAX_BITS = 64
#: Distinct texts whose answers are remembered; beyond it the memory starts anew.
_CACHE = 1 << 16


class ValueTest(Protocol):
    """A question about one attribute."""

    @property
    def key(self) -> str:
        """The attribute's name."""
        ...

    def holds(self, value: Any) -> bool:
        """For a value as JSON gives it."""
        ...

    def holds_all(self, values: Array) -> Array:
        """For a numeric column, shape (n,) -> (n,)."""
        ...


@dataclass(frozen=True)
class StringTest:
    """string_attribute: one of `values`, or found by one of them as a regular expression."""

    key: str
    values: tuple[str, ...]
    regex: bool = False

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        return [re.compile(value) for value in self.values]

    def holds(self, value: Any) -> bool:
        """See `ValueTest`. Only text matches."""
        if not isinstance(value, str):
            return False
        if self.regex:
            return any(pattern.search(value) for pattern in self._patterns)
        return value != "" and value in self.values

    def holds_all(self, values: Array) -> Array:
        """No number is text."""
        return np.zeros(len(values), dtype=np.bool_)


@dataclass(frozen=True)
class NumberTest:
    """numeric_attribute: within the bounds, both included; None: no bound."""

    key: str
    minimum: float | None
    maximum: float | None

    def holds(self, value: Any) -> bool:
        """See `ValueTest`. Only numbers match."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (self.minimum is None or value >= self.minimum) and (
            self.maximum is None or value <= self.maximum
        )

    def holds_all(self, values: Array) -> Array:
        """See `ValueTest`."""
        out = np.ones(len(values), dtype=np.bool_)
        if self.minimum is not None:
            out &= values >= self.minimum
        if self.maximum is not None:
            out &= values <= self.maximum
        return out


@dataclass(frozen=True)
class BoolTest:
    """boolean_attribute: exactly this value."""

    key: str
    value: bool

    def holds(self, value: Any) -> bool:
        """See `ValueTest`."""
        return value is self.value

    def holds_all(self, values: Array) -> Array:
        """No number is a boolean."""
        return np.zeros(len(values), dtype=np.bool_)


@dataclass(frozen=True)
class StatusTest:
    """status_code: the span's status is one of these numbers."""

    codes: tuple[int, ...]


@dataclass(frozen=True)
class RareTest:
    """rare: among the first `per_minute` of its kernel name in a minute."""

    per_minute: int


Test = StringTest | NumberTest | BoolTest | StatusTest | RareTest


class Questions:
    """All questions of a rule file; `bit(test)` while reading it, `answer(view)` ever after."""

    def __init__(self) -> None:
        self._bits: dict[Test, np.uint64] = {}
        self._texts: dict[str, int] = {}
        self._names: dict[str, int] = {}

    def bit(self, test: Test) -> np.uint64:
        """The bit of a question, the same for equal ones."""
        if test not in self._bits:
            if len(self._bits) == MAX_BITS:
                raise UsageError(f"more than {MAX_BITS} different span conditions in one rule file")
            self._bits[test] = np.uint64(1 << len(self._bits))
        return self._bits[test]

    @cached_property
    def _asked(self) -> dict[type, list[tuple[Any, np.uint64]]]:
        kinds: tuple[type, ...] = (StringTest, NumberTest, BoolTest, StatusTest, RareTest)
        return {k: [(t, b) for t, b in self._bits.items() if isinstance(t, k)] for k in kinds}

    @cached_property
    def _value_tests(self) -> list[tuple[ValueTest, np.uint64]]:
        return [*self._asked[StringTest], *self._asked[NumberTest], *self._asked[BoolTest]]

    @cached_property
    def _free_tests(self) -> list[tuple[ValueTest, np.uint64]]:
        """Those about attributes that are no built-in column."""
        return [(t, b) for t, b in self._value_tests if t.key not in BUILT_INS]

    @property
    def rare(self) -> list[tuple[RareTest, np.uint64]]:
        """The `rare` rules with their bits; `_rare.mark` answers them."""
        return self._asked[RareTest]

    def answer(self, view: BatchView) -> Bits:
        """Each span's bits, shape (span_count,); a stride of 0 where all spans agree."""
        parts: list[Bits] = []
        if self._free_tests:
            parts.append(self._resource_bits(view.resource))
            parts.append(self._attribute_bits(view))
        parts.extend(self._column_bits(view, test, bit) for test, bit in self._value_tests)
        for test, bit in self._asked[StatusTest]:
            table = np.isin(np.arange(256), test.codes)
            parts.append(_look_up(view.column("status"), np.where(table, bit, np.uint64(0))))
        return _union(parts, view.count)

    def _resource_bits(self, resource: Mapping[str, Any]) -> Bits:
        bits = sum(int(b) for t, b in self._free_tests if t.holds(resource.get(t.key)))
        return np.array([bits], dtype=np.uint64)

    def _attribute_bits(self, view: BatchView) -> Bits:
        index = view.column("attributes")
        table = np.zeros(len(view.strings) + 1, dtype=np.uint64)
        used = _distinct(index, len(table))
        for row in used[used > 0].tolist():
            table[row] = self._text_bits(view.strings[row - 1].as_py())
        return _look_up(index, table)

    def _text_bits(self, text: str) -> int:
        if text not in self._texts:
            if len(self._texts) >= _CACHE:
                self._texts.clear()
            self._texts[text] = self._parse(text)
        return self._texts[text]

    def _parse(self, text: str) -> int:
        try:
            attributes = json.loads(text)
        except (ValueError, RecursionError):
            return 0
        if not isinstance(attributes, dict):
            return 0
        return sum(int(b) for t, b in self._free_tests if t.holds(attributes.get(t.key)))

    def _column_bits(self, view: BatchView, test: ValueTest, bit: np.uint64) -> Bits:
        built_in = BUILT_INS.get(test.key)
        if built_in is None:
            return np.zeros(1, dtype=np.uint64)
        values = view.column(built_in.column)
        if built_in.text:
            return self._name_bits(view, values, test, bit)
        if built_in.words is not None:
            return _look_up(values, _word_table(built_in.words, test, bit))
        sample = values[:1] if _same(values) else values
        return np.where(test.holds_all(sample), bit, np.uint64(0))

    def _name_bits(self, view: BatchView, index: Array, test: ValueTest, bit: np.uint64) -> Bits:
        table = np.zeros(len(view.strings), dtype=np.uint64)
        for row in _distinct(index, len(table)).tolist():
            if test.holds(view.strings[row].as_py()):
                table[row] = bit
        return _look_up(index, table)


def _word_table(words: Sequence[str], test: ValueTest, bit: np.uint64) -> Bits:
    table = np.zeros(256, dtype=np.uint64)
    for number, word in enumerate(words):
        if test.holds(word):
            table[number] = bit
    return table


def _same(values: Array) -> bool:
    return len(values) == 1 or values.strides == (0,)


def _distinct(index: Array, size: int) -> Array:
    """The values in use of an index column, in order."""
    if len(index) == 0:
        return np.zeros(0, dtype=np.int64)
    if _same(index):
        return index[:1].astype(np.int64)
    return np.flatnonzero(np.bincount(index.astype(np.int64, copy=False), minlength=size))


def _look_up(index: Array, table: Bits) -> Bits:
    """table[index], of length 1 where all spans agree."""
    if len(index) == 0:
        return np.zeros(0, dtype=np.uint64)
    if not table.any():
        return np.zeros(1, dtype=np.uint64)
    return table[index[:1]] if _same(index) else table[index]


def _union(parts: list[Bits], count: int) -> Bits:
    out = np.zeros(1, dtype=np.uint64)
    for part in parts:
        if len(part) == 0 or (len(part) == 1 and not part[0]):
            continue
        out = out | part
    return out if len(out) == count else np.broadcast_to(out[0], (count,))
