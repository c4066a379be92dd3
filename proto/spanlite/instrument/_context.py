"""W3C trace context from whatever an application has at hand."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
#: As HTTP calls it, and as WSGI does.
_NAMES = ("traceparent", "http_traceparent")


def traceparent_of(context: Any) -> str | None:
    """`00-TRACE-SPAN-FLAGS` of a traceparent, headers, an OpenTelemetry span or span context.

    None where it holds no valid one.
    """
    try:
        return _current() if context is None else _read(context)
    except Exception:  # of an application's own classes: they are no context then
        return None


def _read(context: Any) -> str | None:
    if isinstance(context, str | bytes | bytearray):
        return _valid(_plain(context))
    if hasattr(context, "get_span_context"):
        context = context.get_span_context()
    trace, span = getattr(context, "trace_id", None), getattr(context, "span_id", None)
    if trace is not None or span is not None:
        return f"00-{trace:032x}-{span:016x}-01" if trace and span else None
    return _valid(_header(context))


def _header(headers: Any) -> str:
    """The value of the header, of a mapping or pairs, whatever the case of its name."""
    get = getattr(headers, "get", None)
    found = get("traceparent") if get is not None else None
    if found is None:
        items = getattr(headers, "items", None)
        found = _among(items() if items is not None else headers)
    if isinstance(found, list | tuple):
        found = found[0] if found else None
    return "" if found is None else _plain(found)


def _among(pairs: Iterable[Any]) -> Any:
    return next((pair[1] for pair in pairs if _plain(pair[0]).lower() in _NAMES), None)


def _plain(text: Any) -> str:
    """HTTP's headers are Latin-1 where they are bytes."""
    return bytes(text).decode("latin-1") if isinstance(text, bytes | bytearray) else str(text)


@lru_cache(4096)
def _valid(text: str) -> str | None:
    text = text.strip().lower()
    found = _TRACEPARENT.match(text)
    if found is None:
        return None
    # Only versions to come may have more fields.
    more = text[found.end() :]
    return found[0] if not more or (more[0] == "-" and text[:2] != "00") else None


def _current() -> str | None:
    """OpenTelemetry's current span, if the application uses OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    return _read(trace.get_current_span()) if trace else None


def new_traceparent() -> str:
    """A fresh trace."""
    return f"00-{secrets.randbits(128) | 1:032x}-{secrets.randbits(64) | 1:016x}-01"
