"""For applications with OpenTelemetry: its server spans become requests by themselves.

provider.add_span_processor(SpanLiteSpanProcessor())
"""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanKind

from spanlite.instrument._ranges import Request, request

#: Spans that stay open longer than this many others began are given up.
_MAX_OPEN = 100_000


class SpanLiteSpanProcessor(SpanProcessor):
    """Begins a request with each span that serves one, and ends it with it."""

    def __init__(self, kinds: tuple[SpanKind, ...] = (SpanKind.SERVER, SpanKind.CONSUMER)) -> None:
        self._kinds = kinds
        self._open: dict[int, Request] = {}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Begin."""
        if span.kind not in self._kinds or len(self._open) >= _MAX_OPEN:
            return
        began = request(span, name=span.name)
        if not isinstance(began, Request):
            return
        began.begin()
        self._open[span.get_span_context().span_id] = began

    def on_end(self, span: ReadableSpan) -> None:
        """End."""
        context = span.get_span_context()
        began = self._open.pop(context.span_id, None) if context else None
        if began is not None:
            began.end()

    def shutdown(self) -> None:
        """End what is open."""
        while self._open:
            self._open.popitem()[1].end()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits."""
        return True
