"""A stage for each PyTorch module whose class has a given name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from spanlite.instrument import _nvtx
from spanlite.instrument._nvtx import LEFT, close_left

#: What transformer implementations call their parts.
PATTERNS = ("*DecoderLayer", "*Block", "*Attention", "*MLP", "*Experts", "*RotaryEmbedding")


class Hooks:
    """Hooks that are in place. Also a context manager that takes them out at its end."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self.names: list[str] = []

    def add(self, module: Any, name: str, tool: _nvtx.Tool) -> None:
        """Put a range around a module's forward."""
        push, pop = tool.pusher(_nvtx.event(name)), tool.pop

        def begin(*_: Any) -> None:
            if LEFT:
                close_left()
            push()

        def end(*_: Any) -> None:
            if LEFT:
                close_left()
            pop()

        self._handles.append(module.register_forward_pre_hook(begin, prepend=True))
        # Also when forward raises, or the range would never end.
        self._handles.append(module.register_forward_hook(end, always_call=True))
        self.names.append(name)

    def remove(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> Hooks:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def hook_modules(model: Any, patterns: Sequence[str] = PATTERNS) -> Hooks:
    """Make a stage of each module of `model` whose class name matches, such as `*Attention`.

    A stage is named as its module is within the next hooked one above it: `layers.3`, in it
    `self_attn`. Where nobody listens no hook is put in place.
    """
    hooks = Hooks()
    if _nvtx.TOOL is None:
        return hooks
    hooked: list[str] = []
    for path, module in model.named_modules():
        if not any(fnmatchcase(type(module).__name__, pattern) for pattern in patterns):
            continue
        above = max((p for p in hooked if path.startswith(p + ".")), key=len, default="")
        name = path[len(above) + 1 :] if above else path
        hooks.add(module, name or type(module).__name__, _nvtx.TOOL)
        hooked.append(path)
    return hooks
