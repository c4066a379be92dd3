"""Requests, steps and stages as context managers and decorators."""

from __future__ import annotations

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
    """A range on the thread, begun by `push` and ended by `pop`; `make` gives its text at each use.

    The agent may open or close a window at the edges of a step, which has a pair of its own.
    """

    def __init__(
        self,
        push: Callable[[_nvtx.Event], None],
        pop: Callable[[], None],
        make: Callable[[], _nvtx.Event],
    ) -> None:
        self._push, self._pop, self._make = push, pop, make

    def __enter__(self) -> Self:
        self._push(self._make())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pop()

    def __call__(self, function: _Function) -> _Function:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self._push(self._make())
            try:
                return function(*args, **kwargs)
            finally:
                self._pop()

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
    tail = _fields(attributes)

    def make() -> _nvtx.Event:
        links = ",".join([_link(item) for item in itertools.islice(requests, MAX_LINKS)])
        event = _of_step(f"step:;links={links}{tail}" if links else "step:" + tail)
        event.number = next(_steps) if number is None else number
        return event

    return _Range(tool.push_step, tool.pop_step, make)


class _LastStep(threading.local):
    text = ""
    event = _nvtx.Event()


_last_step = _LastStep()


def _of_step(text: str) -> _nvtx.Event:
    """Most steps of a server serve the requests of the one before: the text is kept.

    So the number is the payload, and the agent sends each text once.
    """
    last = _last_step
    if last.text != text:
        last.text, last.event = text, _nvtx.event(text, _nvtx.NUMBER)
    return last.event


def stage(name: str, **attributes: object) -> _Range | _Nothing:
    """A stage or layer of the model. Stages nest."""
    tool = _nvtx.TOOL
    if tool is None:
        return NOTHING
    if not attributes:
        return _stage(tool, name)
    text = _clean(name) + _fields(attributes)
    return _Range(tool.push, tool.pop, lambda: _nvtx.event(text))


@functools.lru_cache(4096)
def _stage(tool: _nvtx.Tool, name: str) -> _Range:
    """One object for each name: it holds no state, so any thread may use it at any depth."""
    event = _nvtx.event(_clean(name))
    return _Range(tool.push, tool.pop, lambda: event)


def _link(item: Any) -> str:
    text = item.traceparent if isinstance(item, Request) else traceparent_of(item)
    return text[3:52] if text else ""


def _fields(attributes: dict[str, object]) -> str:
    return "".join(f";{name}={_clean(str(value))}" for name, value in attributes.items())


def _clean(text: str) -> str:
    return text.replace(";", ",").replace("\0", "")
