"""A request where somebody listens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self, TypeVar, cast

from spanlite.instrument import _nvtx
from spanlite.instrument._context import new_traceparent, traceparent_of
from spanlite.instrument._nvtx import LEFT, close_left
from spanlite.instrument._wrap import AnyFunction, wrap

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Request:
    """A request. `with` binds it to the thread; `async with` lets it end on another one."""

    def __init__(self, tool: _nvtx.Tool, context: Any, head: str, tail: str) -> None:
        self._tool, self._context, self._head, self._tail = tool, context, head, tail
        self._number = 0
        self.traceparent: str | None = None

    def __enter__(self) -> Self:
        if LEFT:
            close_left()
        self._tool.push(self._event(""))
        return self

    def __exit__(self, *_: object) -> None:
        if LEFT:
            close_left()
        self._tool.pop()

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Begin, where no block of code holds the whole request. Once begun, it stays so."""
        if not self._number:
            self._number = self._tool.start(self._event(";free=1"))

    def end(self) -> None:
        """End what `begin` began, on any thread."""
        number, self._number = self._number, 0
        if number:
            self._tool.end(number)

    def __call__(self, function: _Function) -> _Function:
        return cast(_Function, wrap(function, self._plain, self._begun, Request.end))

    def _plain(self, function: AnyFunction) -> AnyFunction:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self._another():
                return function(*args, **kwargs)

        return wrapped

    def _another(self) -> Request:
        """Each call of a decorated function is a request, and calls may overlap."""
        return Request(self._tool, self._context, self._head, self._tail)

    def _begun(self) -> Request:
        made = self._another()
        made.begin()
        return made

    def _event(self, more: str) -> _nvtx.Event:
        known = traceparent_of(self._context)
        self.traceparent = known or new_traceparent()
        word = "traceparent" if known else "own"
        return _nvtx.event(f"{self._head};{word}={self.traceparent}{more}{self._tail}")
