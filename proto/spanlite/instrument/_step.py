"""How a step begins: whom it serves is asked each time."""

from __future__ import annotations

import ctypes
import itertools
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from spanlite.instrument import _nvtx
from spanlite.instrument._context import traceparent_of
from spanlite.instrument._request import Request

_log = logging.getLogger(__name__)
#: A text of the agent's holds 8 KiB; a link takes 50 bytes.
MAX_LINKS = 150
#: A batch may hold many sequences of one request.
_MAX_SERVED = 4096
_steps = itertools.count()


class _LastStep(threading.local):
    """Most steps of a server serve the requests of the one before: the text is kept.

    So the number is the payload, and the agent sends each text once.
    """

    served: list[object] | None = None
    tail = ""
    number = ctypes.c_uint64()
    event: _nvtx.Event
    push: Callable[[], object]


_last_step = _LastStep()


class StepBegin:
    """Begins a step, on the thread when called and with a handle of its own by `start`."""

    __slots__ = ("_number", "_requests", "_tail", "_tool")

    def __init__(self, tool: _nvtx.Tool, requests: Any, number: Any, tail: str) -> None:
        self._tool, self._tail = tool, tail
        self._requests = requests if type(requests) is list else _many(requests)
        self._number = None if number is None else _whole(number)

    def __call__(self) -> None:
        self._prepare().push()

    def start(self) -> int:
        """Begin, to end on any thread."""
        return self._tool.start(self._prepare().event)

    def _prepare(self) -> _LastStep:
        last, served = _last_step, _served(self._requests)
        if last.served != served or last.tail != self._tail:
            self._keep(last, served)
        last.number.value = next(_steps) if self._number is None else self._number
        return last

    def _keep(self, last: _LastStep, served: list[object]) -> None:
        # A step whose sequences are all of one request is a step of that request.
        distinct = filter(None, dict.fromkeys(map(_link, served)))
        links = ",".join(itertools.islice(distinct, MAX_LINKS))
        event = _nvtx.event("step:" + (f";links={links}" if links else "") + self._tail)
        event.payload_type = _nvtx.NUMBER
        last.served, last.tail, last.event = served, self._tail, event
        last.number = ctypes.c_uint64.from_buffer(event, _nvtx.Event.payload.offset)
        last.push = self._tool.step_pusher(event)


def _many(requests: Any) -> Iterable[Any]:
    """One request or context is as good as a list of it."""
    if requests is None:
        return ()
    one = isinstance(requests, Request | str | bytes | bytearray) or hasattr(requests, "items")
    if one or not hasattr(requests, "__iter__"):
        return (requests,)
    if hasattr(requests, "__next__"):  # a decorator's second call would find it used up
        return _served(requests)
    return requests  # type: ignore[no-any-return]


def _served(requests: Iterable[Any]) -> list[object]:
    try:
        return [
            item if type(item) is str else _context_of(item)
            for item in itertools.islice(requests, _MAX_SERVED)
        ]
    except Exception as error:  # such as a set that another thread changes meanwhile
        _log.debug("a step's requests cannot be listed: %r", error)
        return []


def _context_of(item: Any) -> str | None:
    return item.traceparent if isinstance(item, Request) else traceparent_of(item)


def _link(context: Any) -> str:
    text = traceparent_of(context) if context else None
    return text[3:52] if text else ""


_odd_numbers = _nvtx.Once(
    _log, "step number %r is none from 0 to 2**64 - 1: such steps are numbered as they come"
)


def _whole(number: Any) -> int | None:
    """The number as it is sent; None where it cannot be."""
    try:
        whole = int(number)
        if whole == number and 0 <= whole < 1 << 64:
            return whole
    except Exception:  # what kind of object it is the application knows
        pass
    _odd_numbers.say(number)
    return None
