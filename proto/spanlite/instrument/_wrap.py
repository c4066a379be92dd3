"""Functions with a range around each call, of the same kind as they were.

What a coroutine or a generator does lies between its first step and its last, and other code runs
in between: it gets a handle of its own instead of a place among the ranges of the thread.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar

_Open = TypeVar("_Open")
_Begin = Callable[[], _Open]
_End = Callable[[_Open], object]
AnyFunction = Callable[..., Any]


def check(function: object) -> None:
    """Raises TypeError for what cannot be wrapped: a class would no longer be one."""
    if isinstance(function, type) or not (
        callable(function) or isinstance(function, staticmethod | classmethod)
    ):
        raise TypeError(f"request, step and stage decorate functions, not {function!r}")


def wrap(
    function: Any,
    plain: Callable[[AnyFunction], AnyFunction],
    begin: _Begin[_Open],
    end: _End[_Open],
) -> Any:
    """`plain` wraps what runs through; of all else a call lies between `begin` and `end`."""
    check(function)
    if isinstance(function, staticmethod | classmethod):
        return type(function)(wrap(function.__func__, plain, begin, end))
    if inspect.iscoroutinefunction(function):
        return _coroutine(function, begin, end)
    if inspect.isasyncgenfunction(function):
        return _async_generator(function, begin, end)
    if inspect.isgeneratorfunction(function):
        return _generator(function, begin, end)
    return plain(function)


def _coroutine(function: AnyFunction, begin: _Begin[_Open], end: _End[_Open]) -> AnyFunction:
    @functools.wraps(function)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        opened = begin()
        try:
            return await function(*args, **kwargs)
        finally:
            end(opened)

    return wrapped


def _generator(function: AnyFunction, begin: _Begin[_Open], end: _End[_Open]) -> AnyFunction:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        opened = begin()
        try:
            return (yield from function(*args, **kwargs))
        finally:
            end(opened)

    code = getattr(inspect.unwrap(function), "__code__", None)
    awaited = code is not None and code.co_flags & inspect.CO_ITERABLE_COROUTINE
    return types.coroutine(wrapped) if awaited else wrapped


def _async_generator(function: AnyFunction, begin: _Begin[_Open], end: _End[_Open]) -> AnyFunction:
    @functools.wraps(function)
    async def wrapped(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        opened = begin()
        try:
            inner = function(*args, **kwargs)
            following = inner.__anext__()
            while True:
                try:
                    value = await following
                except StopAsyncIteration:
                    return
                try:
                    sent = yield value
                except GeneratorExit:
                    await inner.aclose()
                    raise
                except BaseException as error:
                    following = inner.athrow(error)
                else:
                    following = inner.asend(sent)
        finally:
            end(opened)

    return wrapped
