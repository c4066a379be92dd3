"""Requests, steps and stages as context managers and decorators."""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from spanlite.instrument import _nvtx
from spanlite.instrument._context import new_traceparent, traceparent_of

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: A text of the agent's holds 8 KiB; a link takes 50 bytes.
MAX_LINKS = 150
_steps = itertools.count()


def enabled() -> bool:
    """Whether anybody listens."""
    return _nvtx.TOOL is not None


class _Range:
    """A range on the thread, between two calls of what NVTX has ready for it."""

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self._begin, self._end = begin, end

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def __call__(self, function: _Function) -> _Function:
        begin, end = self._begin, self._end

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            begin()
            try:
                return function(*args, **kwargs)
            finally:
                end()

        return wrapped  # type: ignore[return-value]


class Request:
    """A request. `with` binds it to the thread; `async with` lets it end on another one."""

    def __init__(self, tool: _nvtx.Tool, context: Any, head: str, tail: str) -> None:
        self._tool, self._context, self._head, self._tail = tool, context, head, tail
        self._number = 0
        self.traceparent: str | None = None

    def __enter__(self) -> Self:
        self._tool.push(self._event(""))
        return self

    def __exit__(self, *_: object) -> None:
        self._tool.pop()

    async def __aenter__(self) -> Self:
        self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Begin, where no block of code holds the whole request."""
        self._number = self._tool.start(self._event(";free=1"))

    def end(self) -> None:
        """End what `begin` began, on any thread."""
        if self._number:
            self._tool.end(self._number)
            self._number = 0

    def __call__(self, function: _Function) -> _Function:
        head, tail, context, tool = self._head, self._tail, self._context, self._tool

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with Request(tool, context, head, tail):
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]

    def _event(self, more: str) -> _nvtx.Event:
        known = traceparent_of(self._context)
        self.traceparent = known or new_traceparent()
        word = "traceparent" if known else "own"
        return _nvtx.event(f"{self._head};{word}={self.traceparent}{more}{self._tail}")


class _Nothing:
    """What all of it is where nobody listens. One object for all."""

    traceparent: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def begin(self) -> None:
        """Nobody listens."""

    def end(self) -> None:
        """Nobody listens."""

    def __call__(self, function: _Function) -> _Function:
        return function


NOTHING = _Nothing()


def request(context: Any = None, name: str = "request", **attributes: object) -> Request | _Nothing:
    """A request: a traceparent, headers that hold one, an OpenTelemetry span, or the current one.

    Its kernels get that trace id. Where there is no context, the request begins a trace.
    """
    if _nvtx.TOOL is None:
        return NOTHING
    return Request(_nvtx.TOOL, context, f"request:{_clean(name)}", _fields(attributes))


def step(
    requests: Iterable[Request | str | Any] = (),
    number: int | None = None,
    **attributes: object,
) -> _Range | _Nothing:
    """An engine step, and the requests that it serves: what `request` gave, or trace contexts."""
    tool = _nvtx.TOOL
    if tool is None:
        return NOTHING
    tail = _fields(attributes) if attributes else ""
    return _Range(_StepBegin(tool, requests, number, tail), tool.pop_step)


class _LastStep(threading.local):
    """Most steps of a server serve the requests of the one before: the text is kept.

    So the number is the payload, and the agent sends each text once.
    """

    served: list[object] | None = None
    tail = ""
    number = ctypes.c_uint64()
    push: Callable[[], object]


_last_step = _LastStep()


class _StepBegin:
    """Begins a step: whom it serves is asked each time."""

    __slots__ = ("_number", "_requests", "_tail", "_tool")

    def __init__(
        self, tool: _nvtx.Tool, requests: Iterable[Any], number: int | None, tail: str
    ) -> None:
        self._tool, self._requests, self._number, self._tail = tool, requests, number, tail

    def __call__(self) -> None:
        served: list[object] = [
            item if type(item) is str else _context_of(item)
            for item in itertools.islice(self._requests, MAX_LINKS)
        ]
        last = _last_step
        if last.served != served or last.tail != self._tail:
            self._keep(last, served)
        last.number.value = next(_steps) if self._number is None else self._number
        last.push()

    def _keep(self, last: _LastStep, served: list[object]) -> None:
        links = ",".join(map(_link, served))
        event = _nvtx.event("step:" + (f";links={links}" if links else "") + self._tail)
        event.payload_type = _nvtx.NUMBER
        last.served, last.tail = served, self._tail
        last.number = ctypes.c_uint64.from_buffer(event, _nvtx.Event.payload.offset)
        last.push = self._tool.step_pusher(event)


def stage(name: str, **attributes: object) -> _Range | _Nothing:
    """A stage or layer of the model. Stages nest."""
    if _nvtx.TOOL is None:
        return NOTHING
    return _range_of(_clean(name) + _fields(attributes)) if attributes else _stage(name)


def _range_of(text: str) -> _Range:
    tool = _nvtx.TOOL
    assert tool is not None
    return _Range(tool.pusher(_nvtx.event(text)), tool.pop)


@functools.lru_cache(4096)
def _stage(name: str) -> _Range:
    """One object for each name: it holds no state, so any thread may use it at any depth."""
    return _range_of(_clean(name))


def _context_of(item: Any) -> str | None:
    return item.traceparent if isinstance(item, Request) else traceparent_of(item)


def _link(context: Any) -> str:
    text = traceparent_of(context) if context else None
    return text[3:52] if text else ""


def _fields(attributes: dict[str, object]) -> str:
    return "".join(f";{name}={_clean(str(value))}" for name, value in attributes.items())


def _clean(text: str) -> str:
    return text.replace(";", ",").replace("\0", "")
