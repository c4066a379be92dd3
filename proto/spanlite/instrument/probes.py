"""Ready-made probes: hooks on a PyTorch model that feed the ready-made metrics.

`rope.cosine_compute_ms`: the host's time in each forward of a rotary embedding.
`rope.freq_inv_max`: the largest inverse frequency in use, when it is another one: models that
stretch their context exchange the table. Read only where that waits for no graph capture.
`flash_attn.recompute_count`: forwards of an attention that autograd runs anew (activation
checkpointing), by layer.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from spanlite.instrument import _nvtx, metrics

ROTARY = ("*RotaryEmbedding",)
ATTENTION = ("*Attention",)
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


class Probes:
    """Probes that are in place. Also a context manager that takes them out at its end."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        #: Paths of the modules that are watched.
        self.names: list[str] = []

    def watch_rotary(self, path: str, module: Any, sequence: Callable[[], object]) -> None:
        """Time its forwards and watch its table."""
        began = threading.local()
        seen: list[object] = [None]

        def begin(*_: Any) -> None:
            began.ns = time.perf_counter_ns()

        def end(*_: Any) -> None:
            metrics.ROPE_COSINE_COMPUTE_MS.record((time.perf_counter_ns() - began.ns) / 1e6)
            table = getattr(module, "inv_freq", None)
            version = (id(table), getattr(table, "_version", 0))
            if table is None or version == seen[0] or _capturing():
                return
            seen[0] = version
            metrics.ROPE_FREQ_INV_MAX.set(float(table.max()), sequence=sequence())

        self._hook(path, module, begin, end)

    def watch_attention(self, path: str, module: Any) -> None:
        """Count its forwards inside a backward pass."""
        found = _NUMBER.search(path)
        layer = found[1] if found else path

        def begin(*_: Any) -> None:
            if _in_backward():
                metrics.FLASH_ATTN_RECOMPUTE_COUNT.add(layer=layer)

        self._hook(path, module, begin, None)

    def _hook(self, path: str, module: Any, begin: Any, end: Any) -> None:
        self._handles.append(module.register_forward_pre_hook(begin))
        if end is not None:
            self._handles.append(module.register_forward_hook(end))
        self.names.append(path)

    def remove(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> Probes:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _torch(*names: str) -> Any:
    """What torch calls so, None where it is another torch or none."""
    found: Any = sys.modules.get("torch")
    for name in names:
        found = getattr(found, name, None)
    return found


def _capturing() -> bool:
    ask = _torch("cuda", "is_current_stream_capturing")
    return bool(ask()) if ask is not None else False


def _in_backward() -> bool:
    ask = _torch("_C", "_current_graph_task_id")
    return ask is not None and ask() != -1


def probe_modules(
    model: Any,
    rotary: Sequence[str] = ROTARY,
    attention: Sequence[str] = ATTENTION,
    sequence: Callable[[], object] = lambda: "all",
) -> Probes:
    """Watch the modules of `model` whose class names match. `sequence`: which one runs now.

    Where nobody listens no hook is put in place.
    """
    probes = Probes()
    if _nvtx.TOOL is None:
        return probes
    for path, module in model.named_modules():
        name = type(module).__name__
        if any(fnmatchcase(name, pattern) for pattern in rotary):
            probes.watch_rotary(path, module, sequence)
        elif any(fnmatchcase(name, pattern) for pattern in attention):
            probes.watch_attention(path, module)
    return probes
