"""What a range's text says: kind, name, trace context and the requests a step serves.

`spanlite.instrument` writes such texts into the NVTX domain `spanlite`:

    request:NAME;traceparent=00-…     a request, child of that span: of an HTTP request
    request:NAME;own=00-…             a request that begins this trace and is this span
    …;free=1                          the request may end on another thread
    step:;links=TRACE-SPAN,…          an engine step, its number as payload, and its requests
    metric:KIND:NAME{label=value}     a mark; its payload is the value
    anything else                     a stage

Ranges of other domains are told apart by their names (importers/options.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from spanlite.ids import MASK64
from spanlite.kinds import SpanKind

from spanlite_collectors.importers._nvtx import split_name
from spanlite_collectors.importers.options import ImportOptions

DOMAIN = "spanlite"
STEP_NAME = "step"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_LINK = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})")
_METRIC = re.compile(r"metric:(counter|gauge|histogram):([^{]+)(?:\{(.*)\})?", re.S)

#: (trace_id_low, trace_id_high, span_id)
Context = tuple[int, int, int]


@dataclass(frozen=True)
class Metric:
    """A named value of a custom metric's mark."""

    kind: str
    name: str
    labels: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        """As a span attribute is called."""
        inside = ",".join(f"{k}={v}" for k, v in self.labels)
        return f"{self.name}{{{inside}}}" if inside else self.name


@dataclass(frozen=True)
class Message:
    """A range's text, taken apart."""

    kind: SpanKind
    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    #: The span around a request, or with `own` the request itself.
    context: Context | None = None
    own: bool = False
    free: bool = False
    links: tuple[Context, ...] = ()
    metric: Metric | None = None


class Reader:
    """Reads texts. Remembers nothing that grows without end."""

    def __init__(self) -> None:
        self._options = ImportOptions()

    def read(self, domain: str, text: str) -> Message:
        """Take one text apart."""
        if domain == DOMAIN:
            return _ours(text)
        split = split_name(text)
        attributes = {"nvtx.domain": domain, "sizes": split.sizes}
        if len(self._options._known) > 1 << 12:
            self._options = ImportOptions()
        return Message(
            self._options.kind_of_range(split.name),
            split.name,
            {key: value for key, value in attributes.items() if value},
        )


def message_head(text: str) -> str:
    """What a step's text says that is not of this one step alone: not whom it serves."""
    return text.partition(";")[0]


def _ours(text: str) -> Message:
    metric = _METRIC.fullmatch(text)
    if metric:
        labels = [part.partition("=") for part in (metric[3] or "").split(",") if part]
        pairs = tuple((key, value) for key, _, value in labels)
        return Message(SpanKind.NVTX_RANGE, metric[2], metric=Metric(metric[1], metric[2], pairs))
    head, *rest = text.split(";")
    fields: dict[str, str] = {}
    for part in rest:  # what comes first counts: an attribute may have the name of a context
        name, _, value = part.partition("=")
        fields.setdefault(name, value)
    if head.startswith("request:"):
        begins = bool(rest) and rest[0].startswith("own=")
        own = _context(_TRACEPARENT, fields.pop("own")) if begins else None
        around = None if begins else _context(_TRACEPARENT, fields.pop("traceparent", ""))
        return Message(
            SpanKind.REQUEST,
            head.removeprefix("request:") or "request",
            context=own or around,
            own=own is not None,
            free=fields.pop("free", "") == "1",
            attributes=dict(fields),
        )
    if head.startswith("step:"):
        links = (_context(_LINK, part) for part in fields.pop("links", "").split(","))
        return Message(
            SpanKind.STEP,
            head.removeprefix("step:") or STEP_NAME,
            attributes=dict(fields),
            links=tuple(link for link in links if link),
        )
    return Message(SpanKind.NVTX_RANGE, head, attributes=dict(fields))


def _context(pattern: re.Pattern[str], text: str) -> Context | None:
    found = pattern.fullmatch(text)
    if not found or not int(found[1], 16) or not int(found[2], 16):
        return None
    trace = int(found[1], 16)
    return trace & MASK64, trace >> 64, int(found[2], 16)
