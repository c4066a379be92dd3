"""One huge JSON document, read element by element in constant memory.

The standard library's C scanner, fed with a sliding piece of text, is twice as fast on
trace events as `ijson`'s C backend and hands every fraction over as text, so that no
timestamp passes through a float. It also takes the NaN that some profilers write.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from spanlite.errors import InputError

from spanlite_collectors.importers._files import SourceFile
from spanlite_collectors.importers._json_text import ESCAPE, without_surrogates

_SPACE = " \t\n\r"
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*(?=[^ \t\n\r])")
#: A single element may be this long; anything longer is taken for damage.
MAX_ELEMENT = 1 << 26


class JsonStream:
    """A cursor over a document. Raises InputError with the position on bad JSON."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._scan = json.JSONDecoder(parse_float=Decimal).raw_decode
        self._scan_any = json.JSONDecoder(parse_float=_fraction, parse_int=_whole).raw_decode
        self._text, self._at, self._passed = "", 0, 0
        self._ended = False

    @property
    def position(self) -> int:
        """Characters read so far."""
        return self._passed + self._at

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def take(self, wanted: str) -> None:
        """Step over one punctuation mark."""
        found = self.peek()
        if found != wanted:
            raise self._error(f"'{wanted}' expected, {_shown(found)} found")
        self._at += 1

    def value(self) -> Any:
        """The next value, whole."""
        text, at = self._text, self._at
        if (at >= len(text) or text[at] in _SPACE) and not self.peek():
            raise self._error("", cut=True)
        while True:
            try:
                value, end = self._scanned()
            except (json.JSONDecodeError, RecursionError) as error:
                if len(self._text) - self._at < MAX_ELEMENT and self._more():
                    continue
                raise self._explained(error) from None
            # A number at the end of the text may go on in the next piece.
            if end == len(self._text) and self._more():
                continue
            self._at = end
            return value

    def _scanned(self) -> tuple[Any, int]:
        """The value at the cursor and where it ends, with numbers of any size and whole text."""
        try:
            value, end = self._scan(self._text, self._at)
        except json.JSONDecodeError:
            raise
        except (ValueError, ArithmeticError):  # of a number; the scanner that takes any is slow
            value, end = self._scan_any(self._text, self._at)
        if self._text.find(ESCAPE, self._at, end) >= 0:
            value = without_surrogates(value)
        return value, end

    def elements(self) -> Iterator[Any]:
        """The elements of the array that starts here."""
        self.take("[")
        if self.peek() == "]":
            self._at += 1
            return
        while True:
            yield self.value()
            comma = _COMMA.match(self._text, self._at)
            if comma:  # the fast way; a comma at the end of the text takes the other
                self._at = comma.end()
                continue
            if self.peek() != ",":
                self.take("]")
                return
            self._at += 1

    def members(self, streamed: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
        """The members of the object that starts here.

        Where `streamed(key)` is true and an array follows, the value is an iterator of its
        elements, to be used up before going on.
        """
        self.take("{")
        while self.peek() != "}":
            key = self.value()
            if not isinstance(key, str):
                raise self._error("a member's name must be text")
            self.take(":")
            if streamed(key) and self.peek() == "[":
                yield key, self.elements()
            else:
                yield key, self.value()
            if self.peek() != "}":
                self.take(",")
        self._at += 1

    def _explained(self, error: Exception) -> InputError:
        """What the scanner says; it does not tell an end of the text from a wrong character."""
        if not isinstance(error, json.JSONDecodeError):
            return self._error("nested too deeply")
        at_end = error.pos >= len(self._text.rstrip()) - 1 or "Unterminated" in error.msg
        return self._error(error.msg, cut=self._ended and at_end)

    def _more(self) -> bool:
        if self._ended:
            return False
        data = self._source.read()
        self._ended = not data
        text = self._decode(data, final=self._ended)
        self._passed += self._at
        self._text = self._text[self._at :] + text
        self._at = 0
        return bool(text) or not self._ended

    def _error(self, what: str, cut: bool = False) -> InputError:
        if cut:
            what = "it ends in the middle of a value, so it was cut off"
        return InputError(
            f"{self._source.path}: not valid JSON at character {self.position}: {what}; "
            "nothing of it was sent"
        )


def _whole(text: str) -> int | Decimal:
    """A whole number; one of more digits than Python turns into an int stays a Decimal."""
    try:
        return int(text)
    except ValueError:
        return _fraction(text)


def _fraction(text: str) -> Decimal:
    """A number; one beyond what a Decimal can hold is infinite, or 0."""
    try:
        return Decimal(text)
    except ArithmeticError:
        return Decimal(float(text))


def _shown(text: str) -> str:
    return f"'{text}'" if text else "the end of the file"
