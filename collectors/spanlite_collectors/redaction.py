"""What may leave the host: attributes by an allow-list, and keyed hashes of what must be
joinable and must not be readable.

Without any setting, texts that people wrote (prompts, answers, messages) do not leave.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
from spanlite.errors import UsageError

from spanlite_collectors.importers._json_text import to_json
from spanlite_collectors.sinks import SpanSink

#: OpenTelemetry's and the usual tools' names for texts of people.
PROMPTS = (
    "*prompt",
    "*prompts",
    "*prompt.*",
    "*prompts.*",
    "*completion",
    "*completion.*",
    "*.input.messages",
    "*.output.messages",
    "*input_messages",
    "*output_messages",
    "*.system_instructions",
    "*.tool.call.arguments",
    "*.tool.call.result",
    "*.function.arguments",
    "*message.content",
    "*message.contents",
    "*message.contents.*",
    "*.event.content",
    "*document.content",
    "*prompt_template.variables",
    "input.value",
    "output.value",
    "traceloop.entity.input",
    "traceloop.entity.output",
)
#: Lists of what happened in a span and of other spans, each with attributes of its own.
_CARRIERS = ("otel.events", "otel.links")
_SCOPE = "otel.scope.attributes"
#: Always allowed: without them spans cannot be told apart or weighed.
_OWN = ("spanlite.*", "service.name", "host.name", "process.pid", "stage", "stage.*", "capture.*")


@dataclass(frozen=True)
class Redaction:
    """Rules by attribute name, with `*` for any text."""

    #: None: all but `PROMPTS`.
    allow: Sequence[str] | None = None
    hashed: Sequence[str] = ()
    key: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if self.hashed and not self.key:
            raise UsageError(
                "attributes to hash need a key, or their values could be guessed: give "
                "--hash-key-file"
            )

    def keep(self, attributes: Mapping[str, Any], event: str | None = None) -> dict[str, Any]:
        """The attributes that may leave, with those of events, links and scopes in them."""
        return self._kept(attributes, event, is_part=False)

    def _kept(
        self, attributes: Mapping[str, Any], of: str | None, *, is_part: bool
    ) -> dict[str, Any]:
        """Each goes by its own name, and by `of.name` in an event or a value that is called `of`.

        An allow-list that names a value keeps all of its parts.
        """
        out = {}
        for name, value in attributes.items():
            names = (name,) if of is None else (name, f"{of}.{name}")
            if self._hides(names):
                out[name] = self._hash(value)
            elif (is_part and self.allow is not None) or self._allowed(names):
                out[name] = self._value(names[-1], value) if is_part else self._inside(name, value)
        return out

    def _inside(self, name: str, value: Any) -> Any:
        if name == _SCOPE and isinstance(value, dict):
            return self.keep(value)
        if name in _CARRIERS and isinstance(value, list):
            return [self._carried(entry) for entry in value]
        return self._value(name, value)

    def _carried(self, entry: Any) -> Any:
        """An event or a link."""
        if not isinstance(entry, dict) or not isinstance(entry.get("attributes"), dict):
            return entry
        event = str(entry.get("name", "")) or None
        return {**entry, "attributes": self.keep(entry["attributes"], event)}

    def _value(self, name: str, value: Any) -> Any:
        """What is left of an allowed value."""
        if isinstance(value, list):
            return [self._value(name, item) for item in value]
        return self._kept(value, name, is_part=True) if isinstance(value, dict) else value

    def _hides(self, names: Sequence[str]) -> bool:
        return any(_matches(name, self.hashed) for name in names)

    def _hash(self, value: Any) -> str:
        text = value if isinstance(value, str) else to_json(value)
        return hmac.new(self.key, text.encode(), sha256).hexdigest()[:32]

    def _allowed(self, names: Sequence[str]) -> bool:
        if self.allow is None:
            return not any(_matches(name, PROMPTS) for name in names)
        return any(_matches(name, (*self.allow, *_OWN)) for name in names)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    lower = name.lower()
    return any(fnmatchcase(lower, pattern.lower()) for pattern in patterns)


class RedactingSink:
    """A SpanSink that redacts on the way to another."""

    def __init__(self, sink: SpanSink, redaction: Redaction) -> None:
        self._sink, self._redaction = sink, redaction
        self._text = lru_cache(1 << 14)(self._redact)

    def write(self, spans: pa.RecordBatch, resource: Mapping[str, Any]) -> None:
        """Redact each distinct text once, then write."""
        at = spans.schema.get_field_index("attributes")
        column = spans.column(at)
        before = column.dictionary.to_pylist()
        after = [text and self._text(text) for text in before]
        if after != before:
            column = _translate(column, after)
            columns = [*spans.columns[:at], column, *spans.columns[at + 1 :]]
            spans = pa.RecordBatch.from_arrays(columns, schema=spans.schema)
        self._sink.write(spans, self._redaction.keep(resource))

    def drop(self, reason: str, spans: int) -> None:
        """Hand on."""
        self._sink.drop(reason, spans)

    def flush(self) -> None:
        """Hand on."""
        self._sink.flush()

    def _redact(self, text: str) -> str | None:
        before = json.loads(text)
        after = self._redaction.keep(before)
        return text if after == before else (to_json(after) if after else None)


def _translate(column: pa.DictionaryArray, texts: list[str | None]) -> pa.DictionaryArray:
    """The column with other texts; several may have become one, or none at all."""
    distinct = sorted({text for text in texts if text is not None})
    number = {text: code for code, text in enumerate(distinct)}
    moved = np.array([-1 if text is None else number[text] for text in texts] + [-1], np.int32)
    codes = moved[column.indices.fill_null(len(texts)).to_numpy()]
    return pa.DictionaryArray.from_arrays(
        pa.array(codes, mask=codes < 0), pa.array(distinct, pa.string())
    )
