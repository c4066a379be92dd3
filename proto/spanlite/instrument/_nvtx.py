"""NVTX without its headers: the same handshake that they make with an injected tool.

A tool exports `InitializeInjectionNvtx2`. It is given a table of slots and puts its functions
into those it wants; we then call what is in the slots.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

DOMAIN = "spanlite"
#: `NVTX_INJECTION64_PATH` is NVTX's own variable; one library often serves both.
VARIABLES = ("NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH")
_ETID_CALLBACKS = 1
#: Module -> how many slots it has: NVTX_CB_MODULE_CORE and _CORE2.
_MODULES = {1: 16, 5: 16}
_CORE2 = 5
_MARK, _START, _END, _PUSH, _POP, _CREATE_DOMAIN = 1, 2, 3, 4, 5, 12
_ASCII = 1
#: As many ranges that were started and not ended the agent holds; it records no more then.
MAX_STARTED = 100_000
#: Payload types: an unsigned integer of 64 bits, a double.
NUMBER, VALUE = 1, 3

_log = logging.getLogger(__name__)


class Once:
    """A warning that is given once."""

    def __init__(self, log: logging.Logger, text: str) -> None:
        self._log, self._text, self._said = log, text, False

    def say(self, *args: object) -> None:
        """Say it."""
        if not self._said:
            self._said = True
            self._log.warning(self._text + " (said once)", *args)


_too_many = Once(
    _log, "%d requests or other ranges have begun and not ended: no more are recorded; end them"
)
#: Thread -> what ends the range of its launch. That of a launch that failed is still here when the
#: thread comes to its next range, and must end before it.
LEFT: dict[int, Callable[[], object]] = {}


def close_left() -> None:
    """End this thread's range that was left over, if there is one."""
    end = LEFT.pop(get_ident(), None)
    if end is not None:
        end()


class NotLoadedError(OSError):
    """There is no such library."""


class _Payload(ctypes.Union):
    _fields_ = (("value", ctypes.c_double), ("number", ctypes.c_uint64))


class Event(ctypes.Structure):
    """`nvtxEventAttributes_t`."""

    _anonymous_ = ("payload",)

    _fields_ = (
        ("version", ctypes.c_uint16),
        ("size", ctypes.c_uint16),
        ("category", ctypes.c_uint32),
        ("color_type", ctypes.c_int32),
        ("color", ctypes.c_uint32),
        ("payload_type", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("payload", _Payload),
        ("message_type", ctypes.c_int32),
        ("message", ctypes.c_char_p),
    )


def event(text: str, payload: int = 0) -> Event:
    """Attributes with a text and room for a payload of that type: NUMBER, VALUE or none."""
    out = Event(version=3, size=ctypes.sizeof(Event), message_type=_ASCII)
    # Half characters, as of undecodable paths, have no UTF-8.
    out.message = text.encode(errors="replace")
    out.payload_type = payload
    return out


class _Callbacks(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("get_table", ctypes.c_void_p))


class Tool:
    """The functions of an injected tool. Raises OSError where it cannot be loaded."""

    def __init__(self, path: str) -> None:
        library = _load(path)
        initialize = library.InitializeInjectionNvtx2
        slots = {number: (ctypes.c_void_p * size)() for number, size in _MODULES.items()}
        tables = {number: _pointers(array) for number, array in slots.items()}

        def get_table(module: int, table: Any, size: Any) -> int:
            if module not in tables:
                return 0
            table[0] = ctypes.addressof(tables[module])
            if size:
                size[0] = _MODULES[module]
            return 1

        get_table_type = ctypes.CFUNCTYPE(
            ctypes.c_int,
            ctypes.c_int,
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.POINTER(ctypes.c_uint32),
        )
        get_table_c = get_table_type(get_table)
        address = ctypes.cast(get_table_c, ctypes.c_void_p).value
        callbacks = _Callbacks(ctypes.sizeof(_Callbacks), address)

        def get_export(number: int) -> int:
            return ctypes.addressof(callbacks) if number == _ETID_CALLBACKS else 0

        get_export_c = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(get_export)
        initialize.restype = ctypes.c_int
        if not initialize(get_export_c):
            raise OSError(f"{path} refused to take NVTX calls")
        # The tool may keep all of these for as long as the process lives.
        self._kept = (library, slots, tables, get_table_c, get_export_c, callbacks)
        self._started: set[int] = set()
        core2 = slots[_CORE2]
        create = _function(core2[_CREATE_DOMAIN], ctypes.c_void_p)
        domain = ctypes.c_void_p(create(DOMAIN.encode()))
        # The domain is every call's first argument. The others are pointers, which ctypes passes on
        # fastest where nobody declares them.
        self._push = partial(_function(core2[_PUSH]), domain)
        self._push_step = partial(_function(core2[_PUSH], free=True), domain)
        self._mark = partial(_function(core2[_MARK]), domain)
        self._start = partial(_function(core2[_START], ctypes.c_uint64), domain)
        self._end = partial(_function(core2[_END]), domain)
        #: End this thread's innermost range of ours.
        self.pop: Callable[[], object] = partial(_function(core2[_POP]), domain)
        #: End a step. The agent may wait for other threads there, so the GIL is let go.
        self.pop_step: Callable[[], object] = partial(_function(core2[_POP], free=True), domain)

    def push(self, attributes: Event) -> None:
        """Begin a range on this thread."""
        self._push(ctypes.byref(attributes))

    def pusher(self, attributes: Event) -> Callable[[], object]:
        """What begins such a range each time it is called: faster than `push`."""
        return partial(self._push, ctypes.byref(attributes))

    def step_pusher(self, attributes: Event) -> Callable[[], object]:
        """The same for a step, at whose edges the GIL is let go."""
        return partial(self._push_step, ctypes.byref(attributes))

    def mark(self, attributes: Event) -> None:
        """A point in time, in this thread's innermost range."""
        self._mark(ctypes.byref(attributes))

    def start(self, attributes: Event) -> int:
        """Begin a range that may end on any thread."""
        number = int(self._start(ctypes.byref(attributes)))
        if number and len(self._started) < MAX_STARTED:
            self._started.add(number)
        elif len(self._started) >= MAX_STARTED:
            _too_many.say(MAX_STARTED)
        return number

    def end(self, number: int) -> None:
        """End it."""
        self._started.discard(number)
        self._end(ctypes.c_uint64(number))


def _pointers(slots: Any) -> Any:
    base, width = ctypes.addressof(slots), ctypes.sizeof(ctypes.c_void_p)
    return (ctypes.c_void_p * len(slots))(*[base + i * width for i in range(len(slots))])


def _nothing(*_: object) -> int:
    return 0


def _function(address: int | None, result: Any = None, free: bool = False) -> Callable[..., Any]:
    # PYFUNCTYPE keeps the GIL: the calls are shorter than letting go of it and taking it again.
    kind = ctypes.CFUNCTYPE if free else ctypes.PYFUNCTYPE
    return kind(result)(address) if address else _nothing


def _load(path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)  # the same mapping where CUDA or NVTX has it already
    except OSError as error:
        raise NotLoadedError(str(error)) from error


def find() -> Tool | None:
    """The tool of this process's environment; None where there is none."""
    missing = set()
    for name in VARIABLES:
        path = os.environ.get(name)
        if not path or path in missing:
            continue
        try:
            return Tool(path)
        except NotLoadedError as error:
            missing.add(path)
            _complain(f"{name}: {error}")
        except (OSError, AttributeError):
            continue  # CUDA's tool need not know NVTX
    return None


def _complain(what: str) -> None:
    # Not by way of logging: the application has not set it up when it imports us.
    if sys.stderr is not None:
        print(f"spanlite: the tool is not there, so nothing goes to it: {what}", file=sys.stderr)


#: Looked for once: the environment is read when the process starts.
TOOL = find()
