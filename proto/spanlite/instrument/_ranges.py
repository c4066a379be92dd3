"""Requests, steps and stages as context managers and decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from spanlite.instrument import _nvtx
from spanlite.instrument._nvtx import LEFT, close_left
from spanlite.instrument._request import Request
from spanlite.instrument._step import StepBegin
from spanlite.instrument._text import clean, fields
from spanlite.instrument._wrap import AnyFunction, check, wrap

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: Characters of a request's name: its trace context, which follows, must have room in the 8 KiB
#: that the agent takes of a text.
MAX_NAME = 1000
#: Ranges that this task has begun with `async with`, and their handles.
_begun: ContextVar[tuple[tuple[object, int], ...]] = ContextVar("spanlite_ranges", default=())


def enabled() -> bool:
    """Whether anybody listens."""
    return _nvtx.TOOL is not None


class _Range:
    """A range on the thread, between two calls of what NVTX has ready for it.

    It holds no state, so any thread or task may use it at any depth.
    """

    __slots__ = ("_begin", "_end", "_finish", "_start")

    def __init__(
        self,
        tool: _nvtx.Tool,
        begin: Callable[[], object],
        end: Callable[[], object],
        start: Callable[[], int],
    ) -> None:
        self._begin, self._end = begin, end
        self._start, self._finish = start, tool.end

    def __enter__(self) -> Self:
        if LEFT:
            close_left()
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if LEFT:
            close_left()
        self._end()

    async def __aenter__(self) -> Self:
        """Other tasks run before it ends, so it has a handle of its own."""
        _begun.set((*_begun.get(), (self, self._start())))
        return self

    async def __aexit__(self, *_: object) -> None:
        begun = _begun.get()
        for at in reversed(range(len(begun))):
            if begun[at][0] is self:
                _begun.set(begun[:at] + begun[at + 1 :])
                self._finish(begun[at][1])
                return

    def __call__(self, function: _Function) -> _Function:
        return cast(_Function, wrap(function, self._plain, self._start, self._finish))

    def _plain(self, function: AnyFunction) -> AnyFunction:
        begin, end = self._begin, self._end

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if LEFT:
                close_left()
            begin()
            try:
                return function(*args, **kwargs)
            finally:
                if LEFT:
                    close_left()
                end()

        return wrapped


class _NoRange:
    """What a step or stage is where nobody listens. One object for all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def __call__(self, function: _Function) -> _Function:
        check(function)
        return function


class _NoRequest(_NoRange):
    """The same of a request."""

    traceparent: str | None = None

    def begin(self) -> None:
        """Nobody listens."""

    def end(self) -> None:
        """Nobody listens."""


_NO_RANGE, _NO_REQUEST = _NoRange(), _NoRequest()


def request(
    context: Any = None, name: str = "request", **attributes: object
) -> Request | _NoRequest:
    """A request: a traceparent, headers that hold one, an OpenTelemetry span, or the current one.

    Its kernels get that trace id. Where there is no context, the request begins a trace.
    """
    if _nvtx.TOOL is None:
        return _NO_REQUEST
    return Request(_nvtx.TOOL, context, f"request:{clean(name)[:MAX_NAME]}", fields(attributes))


def step(
    requests: Iterable[Request | str | Any] | Request | str = (),
    number: int | None = None,
    **attributes: object,
) -> _Range | _NoRange:
    """An engine step, and the requests that it serves: what `request` gave, or trace contexts."""
    tool = _nvtx.TOOL
    if tool is None:
        return _NO_RANGE
    begin = StepBegin(tool, requests, number, fields(attributes) if attributes else "")
    return _Range(tool, begin, tool.pop_step, begin.start)


def stage(name: str, **attributes: object) -> _Range | _NoRange:
    """A stage or layer of the model. Stages nest."""
    if _nvtx.TOOL is None:
        return _NO_RANGE
    if attributes or type(name) is not str:
        return _range_of(clean(name) + fields(attributes))
    return _stage(name)


def _range_of(text: str) -> _Range:
    tool = _nvtx.TOOL
    assert tool is not None
    event = _nvtx.event(text)
    return _Range(tool, tool.pusher(event), tool.pop, functools.partial(tool.start, event))


@functools.lru_cache(4096)
def _stage(name: str) -> _Range:
    """One object for each name."""
    return _range_of(clean(name))
