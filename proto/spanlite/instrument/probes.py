"""Ready-made probes: hooks on a PyTorch model that feed the ready-made metrics.

`rope.cosine_compute_ms`: the host's time in each forward of a rotary embedding.
`rope.freq_inv_max`: the largest inverse frequency in use by a sequence, when it is another one:
models that stretch their context exchange the table. Read only where that waits for no graph
capture.
`flash_attn.recompute_count`: forwards of an attention that autograd runs anew (activation
checkpointing), by layer. The attention in an attention, as BERT has it, is the same one.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from spanlite.instrument import _nvtx, metrics

ROTARY = ("*RotaryEmbedding",)
ATTENTION = ("*Attention",)
#: Sequences whose tables are remembered.
_MAX_SEQUENCES = 4096
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
_log = logging.getLogger(__name__)
_failed = _nvtx.Once(_log, "the table of a rotary embedding cannot be read: %r")


class _Tables:
    """The table that each sequence was computed with last.

    The tables themselves are held: the next one may lie where one that is gone lay.
    """

    def __init__(self, sequence: Callable[[], object]) -> None:
        self._sequence = sequence
        self._seen: dict[object, tuple[object, int]] = {}
        self._read: tuple[object, int] = (None, 0)
        self._largest = 0.0

    def look(self, table: Any) -> None:
        """Set the gauge where the sequence that runs now has another table than before."""
        if table is None:
            return
        sequence, version = self._sequence(), getattr(table, "_version", 0)
        seen = self._seen.get(sequence)
        if (seen and _same(seen, table, version)) or _capturing():
            return
        if not _same(self._read, table, version):  # reading waits for the GPU
            self._largest, self._read = float(table.max()), (table, version)
        if seen is None and len(self._seen) >= _MAX_SEQUENCES:
            self._seen.pop(next(iter(self._seen)), None)
        self._seen[sequence] = self._read
        metrics.ROPE_FREQ_INV_MAX.set(self._largest, sequence=sequence)


def _same(known: tuple[object, int], table: object, version: int) -> bool:
    return known[0] is table and known[1] == version


class Probes:
    """Probes that are in place. Also a context manager that takes them out at its end."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        #: Paths of the modules that are watched.
        self.names: list[str] = []

    def watch_rotary(self, path: str, module: Any, sequence: Callable[[], object]) -> None:
        """Time its forwards and watch its table."""
        began, tables = threading.local(), _Tables(sequence)

        def begin(*_: Any) -> None:
            began.ns = time.perf_counter_ns()

        def end(*_: Any) -> None:
            since = getattr(began, "ns", None)
            if since is not None:
                metrics.ROPE_COSINE_COMPUTE_MS.record((time.perf_counter_ns() - since) / 1e6)
            try:
                tables.look(getattr(module, "inv_freq", None))
            except Exception as error:  # of `sequence`, or a table of another kind
                _failed.say(error)

        self._hook(path, module, begin, end)

    def watch_attention(self, path: str, module: Any, layer: str) -> None:
        """Count its forwards inside a backward pass."""

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
    counted: dict[str, Any] = {}
    for path, module in model.named_modules():
        name = type(module).__name__
        if any(fnmatchcase(name, pattern) for pattern in rotary):
            probes.watch_rotary(path, module, sequence)
        elif any(fnmatchcase(name, pattern) for pattern in attention) and not any(
            _inside(path, other) for other in counted
        ):
            counted[path] = module
    layers = _layers(list(counted))
    for path, module in counted.items():
        probes.watch_attention(path, module, layers[path])
    return probes


def _inside(path: str, other: str) -> bool:
    return other == "" or path.startswith(other + ".")


def _layers(paths: list[str]) -> dict[str, str]:
    """What each is called: the last number of its path, or the path where others have that too."""
    numbers = {path: (_NUMBER.findall(path) or [path])[-1] for path in paths}
    often = Counter(numbers.values())
    return {path: number if often[number] == 1 else path for path, number in numbers.items()}
