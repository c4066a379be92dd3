"""Custom metrics: values that belong to the range they are measured in.

    recomputes = metrics.counter("my.recomputes", per="layer")
    recomputes.add(1, layer=3)

Each value becomes an attribute of the innermost range of its thread, and a Prometheus series
of the collector on this host. `per` and `labels` say which labels every value must have.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spanlite.errors import UsageError
from spanlite.instrument import _nvtx

_registry: dict[str, Metric] = {}
#: Label sets whose events are kept, in each thread.
_MAX_EVENTS = 4096


class _Events(threading.local):
    """An event is changed and sent, so each thread has its own."""

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], _nvtx.Event] = {}


_events = _Events()


class Metric:
    """One metric. Made by `counter`, `gauge` or `histogram`."""

    kind = ""

    def __init__(self, name: str, per: str | None, labels: Sequence[str]) -> None:
        self.name, self.per = name, per
        self.labels = tuple(sorted({*labels, *([per] if per else [])}))

    def _send(self, value: float, labels: dict[str, object]) -> None:
        if _nvtx.TOOL is None:
            return
        key = (self, *labels.items())
        event = _events.known.get(key)
        if event is None:
            event = self._event(labels)
            if len(_events.known) < _MAX_EVENTS:
                _events.known[key] = event
        event.value = value
        _nvtx.TOOL.mark(event)

    def _event(self, labels: dict[str, object]) -> _nvtx.Event:
        if tuple(sorted(labels)) != self.labels:
            raise UsageError(
                f"metric {self.name} has the labels {', '.join(self.labels) or '(none)'}, not "
                f"{', '.join(sorted(labels)) or '(none)'}"
            )
        inside = ",".join(f"{name}={_clean(labels[name])}" for name in self.labels)
        text = f"metric:{self.kind}:{self.name}" + (f"{{{inside}}}" if inside else "")
        return _nvtx.event(text, _nvtx.VALUE)


class Counter(Metric):
    """Counts; values of one range add up."""

    kind = "counter"

    def add(self, value: float = 1, **labels: object) -> None:
        """Count so much more. Raises UsageError for a value below 0."""
        if value < 0:
            raise UsageError(f"counter {self.name} cannot go down by {-value}; use a gauge")
        self._send(value, labels)


class Gauge(Metric):
    """What is now; the last value of a range stays."""

    kind = "gauge"

    def set(self, value: float, **labels: object) -> None:
        """It is so much."""
        self._send(value, labels)


class Histogram(Metric):
    """A distribution."""

    kind = "histogram"

    def record(self, value: float, **labels: object) -> None:
        """One more value."""
        self._send(value, labels)

    @contextmanager
    def time_ms(self, **labels: object) -> Iterator[None]:
        """Record how many ms of the host's time a block took."""
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self.record((time.perf_counter_ns() - began) / 1e6, **labels)


def _clean(value: object) -> str:
    return str(value).translate(str.maketrans(",={};", "_____"))


def _register(metric: Metric) -> None:
    known = _registry.get(metric.name)
    if known and (known.kind, known.labels) != (metric.kind, metric.labels):
        raise UsageError(
            f"metric {metric.name} is already a {known.kind} with the labels "
            f"{', '.join(known.labels) or '(none)'}; give the new one another name"
        )
    _registry[metric.name] = metric


def counter(name: str, *, per: str | None = None, labels: Sequence[str] = ()) -> Counter:
    """Declare a counter. `per`: layer, sequence, ... Raises UsageError where it is another."""
    made = Counter(name, per, labels)
    _register(made)
    return made


def gauge(name: str, *, per: str | None = None, labels: Sequence[str] = ()) -> Gauge:
    """Declare a gauge."""
    made = Gauge(name, per, labels)
    _register(made)
    return made


def histogram(name: str, *, per: str | None = None, labels: Sequence[str] = ()) -> Histogram:
    """Declare a histogram."""
    made = Histogram(name, per, labels)
    _register(made)
    return made


def registered() -> list[Metric]:
    """All metrics declared so far."""
    return list(_registry.values())


#: How many requests wait. The collector opens a capture window when it grows.
QUEUE_LENGTH = gauge("queue.length")
#: How long the cosines of rotary embeddings took, in ms.
ROPE_COSINE_COMPUTE_MS = histogram("rope.cosine_compute_ms")
#: The largest inverse frequency in use, of each sequence.
ROPE_FREQ_INV_MAX = gauge("rope.freq_inv_max", per="sequence")
#: How often attention had to be computed anew, by layer.
FLASH_ATTN_RECOMPUTE_COUNT = counter("flash_attn.recompute_count", per="layer")
