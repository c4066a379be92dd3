"""For applications with OpenTelemetry: its server spans become requests by themselves.

provider.add_span_processor(SpanLiteSpanProcessor())
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import SpanKind

from spanlite.instrument import _nvtx
from spanlite.instrument._ranges import request
from spanlite.instrument._request import Request

#: When so many are open the oldest is given up: it ends as the next begins. The agent holds twice
#: as many.
_MAX_OPEN = _nvtx.MAX_STARTED // 2
_log = logging.getLogger(__name__)
_failed = _nvtx.Once(_log, "a span has become no request: %r")


class SpanLiteSpanProcessor(SpanProcessor):
    """Begins a request with each span that serves one, and ends it with it."""

    def __init__(self, kinds: tuple[SpanKind, ...] = (SpanKind.SERVER, SpanKind.CONSUMER)) -> None:
        self._kinds = kinds
        self._open: OrderedDict[int, Request] = OrderedDict()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Begin. Raises nothing: OpenTelemetry would hand it on to the application."""
        try:
            if span.kind in self._kinds:
                self._begin(span)
        except Exception as error:
            _failed.say(error)

    def _begin(self, span: Span) -> None:
        began = request(span, name=span.name)
        if not isinstance(began, Request):
            return
        if len(self._open) >= _MAX_OPEN:
            self._open.popitem(last=False)[1].end()
        began.begin()
        self._open[span.get_span_context().span_id] = began

    def on_end(self, span: ReadableSpan) -> None:
        """End."""
        try:
            context = span.get_span_context()
            began = self._open.pop(context.span_id, None) if context else None
            if began is not None:
                began.end()
        except Exception as error:
            _failed.say(error)

    def shutdown(self) -> None:
        """End what is open."""
        while self._open:
            self._open.popitem()[1].end()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits."""
        return True
