"""W3C trace context from whatever an application has at hand."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent_of(context: Any) -> str | None:
    """`00-TRACE-SPAN-FLAGS` of a traceparent, headers, an OpenTelemetry span or span context.

    None where it holds no valid one.
    """
    if context is None:
        return _current()
    if isinstance(context, Mapping):
        found = next((v for k, v in context.items() if str(k).lower() == "traceparent"), None)
        return traceparent_of(str(found)) if found else None
    if isinstance(context, str):
        return _valid(context)
    if hasattr(context, "get_span_context"):
        context = context.get_span_context()
    trace, span = getattr(context, "trace_id", 0), getattr(context, "span_id", 0)
    return f"00-{trace:032x}-{span:016x}-01" if trace and span else None


@lru_cache(4096)
def _valid(text: str) -> str | None:
    text = text.strip().lower()
    return text if _TRACEPARENT.fullmatch(text) else None


def _current() -> str | None:
    """OpenTelemetry's current span, if the application uses OpenTelemetry."""
    trace = sys.modules.get("opentelemetry.trace")
    return traceparent_of(trace.get_current_span()) if trace else None


def new_traceparent() -> str:
    """A fresh trace."""
    return f"00-{secrets.randbits(128) | 1:032x}-{secrets.randbits(64) | 1:016x}-01"
