"""A range for each launch of a Triton kernel: its name, source file and constants.

Triton calls a hook before and after each launch, and others when a kernel has been compiled and
when its code is loaded. The first knows the kernel's handle, the second its source and constants,
the third ties the two together. Triton from 3.4 keeps the hooks in `triton.knobs.runtime`; older
ones (3.0) have the launch hooks on `CompiledKernel` and none at the load, so kernels of one name
share what is known of the last one compiled.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import get_ident
from typing import Any

from spanlite.instrument import _nvtx
from spanlite.instrument._nvtx import LEFT, close_left

_Hook = Callable[..., Any]
#: Kernels whose texts are kept; more are described by their names alone.
MAX_KERNELS = 4096
#: A constant's text, such as a dtype or a function, is cut here.
_MAX_VALUE = 64
_OPTIONS = ("num_warps", "num_ctas", "num_stages")
_log = logging.getLogger(__name__)
_failed = _nvtx.Once(_log, "a Triton kernel cannot be described: %r")


class TritonHooks:
    """Hooks that are in place. Also a context manager that takes them out at its end."""

    def __init__(self, tool: _nvtx.Tool) -> None:
        self._tool, self._in_place = tool, True
        self._by_hash: dict[str, str] = {}
        self._by_name: dict[str, str] = {}
        self._events: dict[object, _nvtx.Event] = {}
        self._undo: list[Callable[[], None]] = []

    def install(self, triton: Any) -> None:
        """Put the hooks in place. Raises AttributeError where this Triton has none."""
        runtime = getattr(getattr(triton, "knobs", None), "runtime", None)
        if runtime is not None:
            self._chain(runtime, "launch_enter_hook", self.launch_begins)
            self._chain(runtime, "launch_exit_hook", self.launch_ends)
            if hasattr(runtime, "kernel_load_end_hook"):
                self._chain(runtime, "kernel_load_end_hook", self.loaded)
            self._chain(runtime, "jit_post_compile_hook", self.compiled)
            return
        kernel = triton.compiler.CompiledKernel
        self._chain(kernel, "launch_enter_hook", self.launch_begins)
        self._chain(kernel, "launch_exit_hook", self.launch_ends)
        self._chain(triton.JITFunction, "compiled_hook", self.compiled)

    def remove(self) -> None:
        """Take the hooks out. Those that another tool has wrapped stay and do nothing."""
        self._in_place = False
        while self._undo:
            self._undo.pop()()
        close_left()

    def __enter__(self) -> TritonHooks:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def launch_begins(self, launch: Any) -> None:
        """Before a launch: open its range."""
        # Not `launch.get()`, which would compute what the kernel's author says of each launch.
        said = getattr(launch, "data", launch)
        if LEFT:  # the launch before failed, and Triton did not say so
            close_left()
        self._tool.push(self._event(said.get("function"), str(said.get("name", "triton"))))
        LEFT[get_ident()] = self._tool.pop

    def launch_ends(self, *_: Any) -> None:
        """After it."""
        close_left()

    def compiled(self, *_: Any, **said: Any) -> None:
        """A kernel has been compiled, or found in Triton's cache."""
        try:
            self._remember(said)
        except Exception as error:  # a constant's own `__str__`; a Triton to come
            _failed.say(error)

    def _remember(self, said: Mapping[str, Any]) -> None:
        function = getattr(said.get("fn"), "jit_function", None)
        if function is None:
            return
        compiled = said.get("compile") or {}
        name = _name(function)
        text = _describe(name, function, compiled)
        kernel = _kernel(function, compiled)
        digest = getattr(kernel, "hash", None)
        if len(self._by_name) < MAX_KERNELS:
            self._by_name[str(getattr(kernel, "name", name))] = text
        if digest is not None and len(self._by_hash) < MAX_KERNELS:
            self._by_hash[digest] = text

    def loaded(
        self, module: Any, function: Any, name: str, metadata_group: Any = None, hash: Any = None
    ) -> None:
        """A kernel's code is on the device: from now on launches name it by its handle."""
        text = self._by_hash.get(hash) or self._by_name.get(name)
        if text is not None and function is not None and len(self._events) < MAX_KERNELS:
            self._events[function] = _nvtx.event(text)

    def _event(self, function: object, name: str) -> _nvtx.Event:
        event = self._events.get(function) if function is not None else None
        if event is None:
            text = self._by_name.get(name, name)
            event = self._events.get(text)
        if event is None:
            event = _nvtx.event(text)
            if len(self._events) < MAX_KERNELS:
                self._events[text] = event
        return event

    def _chain(self, owner: Any, name: str, mine: _Hook) -> None:
        """Add to what is there: a chain of hooks, one hook, or none."""
        before = getattr(owner, name)
        if hasattr(before, "add") and hasattr(before, "remove"):
            before.add(mine)
            self._undo.append(lambda: _take_out(before, mine))
            return

        def both(*args: Any, **kwargs: Any) -> Any:
            if self._in_place:
                mine(*args, **kwargs)
            return before(*args, **kwargs) if before is not None else None

        # Of a class, with what makes it static: a plain function would become a method.
        raw = getattr(owner, "__dict__", {}).get(name, before)
        setattr(owner, name, staticmethod(both) if isinstance(owner, type) else both)
        self._undo.append(lambda: _put_back(owner, name, both, raw))


def _take_out(chain: Any, mine: _Hook) -> None:
    with suppress(ValueError):  # somebody has emptied the chain
        chain.remove(mine)


def _put_back(owner: Any, name: str, mine: _Hook, before: Any) -> None:
    """Unless another tool's hook stands there by now, which may call ours."""
    if getattr(owner, name) is mine:
        setattr(owner, name, before)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", "") or getattr(function.fn, "__name__", "triton"))


def _describe(name: str, function: Any, compiled: Mapping[str, Any]) -> str:
    """`NAME;triton.file=FILE:LINE;CONSTANT=VALUE;...`, as a stage is written."""
    code = getattr(getattr(function, "fn", None), "__code__", None)
    fields: dict[str, object] = {}
    if code is not None:
        fields["triton.file"] = f"{code.co_filename}:{code.co_firstlineno}"
    names = list(getattr(function, "arg_names", ()))
    for key, value in dict(compiled.get("constants") or {}).items():
        fields[f"triton.{_argument(key, names)}"] = value
    fields |= {f"triton.{word}": compiled[word] for word in _OPTIONS if word in compiled}
    tail = "".join(f";{key}={_clean(value)}" for key, value in fields.items())
    return _clean(name) + tail


def _argument(key: Any, names: list[str]) -> str:
    """An argument's name: Triton gives it, its number, or a path of numbers."""
    path = key if isinstance(key, tuple) else (key,)
    first, *rest = path
    if isinstance(first, int) and first < len(names):
        first = names[first]
    return ".".join(map(str, (first, *rest)))


def _clean(value: object) -> str:
    text = getattr(value, "__name__", None) if callable(value) else None
    return (text or str(value)).translate(str.maketrans(";=\0", ",: "))[-_MAX_VALUE * 4 :]


def _kernel(function: Any, compiled: Mapping[str, Any]) -> Any:
    """The kernel that was compiled, where this Triton keeps it; None where it is not found."""
    caches = getattr(function, "device_caches", None) or getattr(function, "cache", None)
    try:
        cache = caches[compiled["device"]]  # type: ignore[index]
        cache = cache[0] if isinstance(cache, tuple) else cache
        return cache.get(compiled["key"])
    except (KeyError, TypeError, AttributeError, IndexError):
        return None


def hook_triton() -> TritonHooks | None:
    """Make a range of each Triton launch from now on.

    None where nobody listens, or the process has not imported Triton yet, or it is one without
    these hooks.
    """
    triton = sys.modules.get("triton")
    if _nvtx.TOOL is None or triton is None:
        return None
    hooks = TritonHooks(_nvtx.TOOL)
    try:
        hooks.install(triton)
    except AttributeError:
        hooks.remove()
        return None
    return hooks
