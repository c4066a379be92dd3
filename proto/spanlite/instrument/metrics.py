"""Custom metrics: values that belong to the range they are measured in.

    recomputes = metrics.counter("my.recomputes", per="layer")
    recomputes.add(1, layer=3)

Each value becomes an attribute of the innermost range of its thread, and a Prometheus series
of the collector on this host. `per` and `labels` say which labels every value must have.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spanlite.errors import UsageError
from spanlite.instrument import _nvtx
from spanlite.metric_names import OWN_LABELS, is_own, page_name, taken_names, twice

_log = logging.getLogger(__name__)
_registry: dict[str, Metric] = {}
#: Name on the Prometheus page -> the metric that has it.
_taken: dict[str, str] = {}
#: Label sets whose events are kept, in each thread.
_MAX_EVENTS = 4096
#: A text of the agent's holds 8 KiB.
_MAX_TEXT = 8000
_MAX_NAME, _MAX_LABEL = 200, 200
#: They have a meaning in the text of a value.
_MARKS = ",={};\0"


class _Events(threading.local):
    """An event is changed and sent, so each thread has its own."""

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], _nvtx.Event] = {}


_events = _Events()


class Metric:
    """One metric. Made by `counter`, `gauge` or `histogram`.

    A value that cannot be taken (wrong labels, no number) is left out, counted in `refused` and
    said once in the log: what is measured must not end what measures it.
    """

    kind = ""
    #: NaN and infinities would stay in every sum after them.
    _finite = True

    def __init__(self, name: str, per: str | None, labels: Sequence[str]) -> None:
        self.name, self.per = name, per
        self.labels = tuple(sorted({*labels, *([per] if per else [])}))
        self.refused = 0

    def _send(self, value: float, labels: dict[str, object]) -> None:
        if _nvtx.TOOL is None:
            return
        try:
            key = (self, *labels.items())
            event = _events.known.get(key)
            if event is None:
                event = self._event(labels)
                if len(_events.known) < _MAX_EVENTS:
                    _events.known[key] = event
            event.value = value
            good = not self._finite or math.isfinite(event.value)
        except Exception as error:  # also of a label's own `__str__`
            self._refuse(f"{type(error).__name__}: {error}")
            return
        if good:
            _nvtx.TOOL.mark(event)
        else:
            self._refuse(f"{value} is no finite number")

    def _refuse(self, why: str) -> None:
        self.refused += 1
        if self.refused == 1:
            _log.warning(
                "spanlite: values of metric %s are left out, said once: %s", self.name, why
            )

    def _event(self, labels: dict[str, object]) -> _nvtx.Event:
        if tuple(sorted(labels)) != self.labels:
            raise UsageError(
                f"metric {self.name} has the labels {_listed(self.labels)}, not "
                f"{_listed(sorted(labels))}"
            )
        inside = ",".join(f"{name}={_clean(labels[name])}" for name in self.labels)
        text = f"metric:{self.kind}:{self.name}" + (f"{{{inside}}}" if inside else "")
        if len(text.encode()) > _MAX_TEXT:
            raise UsageError(f"its name and labels have more than {_MAX_TEXT} bytes")
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
    _finite = False

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


_CLEAN = str.maketrans(_MARKS, "_" * len(_MARKS))


def _clean(value: object) -> str:
    """Half characters have no UTF-8, and become question marks."""
    text = str(value)[:_MAX_LABEL].translate(_CLEAN)
    return text if text.isascii() else text.encode(errors="replace").decode()


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels) or "(none)"


def _register(metric: Metric) -> None:
    known = _registry.get(metric.name)
    if known is None:
        _check_name(metric)
        _check_labels(metric)
        _taken.update(dict.fromkeys(taken_names(metric.kind, metric.name), metric.name))
    elif (known.kind, known.labels) != (metric.kind, metric.labels):
        raise UsageError(
            f"metric {metric.name} is already a {known.kind} with the labels "
            f"{_listed(known.labels)}; give the new one another name"
        )
    _registry[metric.name] = metric


def _check_name(metric: Metric) -> None:
    name = metric.name
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable() or "{" in name:
        raise UsageError(
            f"{name[:_MAX_NAME]!r} cannot name a metric: give it 1 to {_MAX_NAME} printable "
            "characters without {"
        )
    if is_own(metric.kind, name):
        raise UsageError(f"metric {name} is named as the collector's own are; give another name")
    for taken in taken_names(metric.kind, name):
        if taken in _taken:
            raise UsageError(
                f"metric {name} would be {taken} for Prometheus, as metric {_taken[taken]} is "
                "already; give the new one another name"
            )


def _check_labels(metric: Metric) -> None:
    for label in metric.labels:
        if not 0 < len(label) <= _MAX_NAME or not label.isprintable() or set(label) & set(_MARKS):
            raise UsageError(
                f"metric {metric.name}: {label[:_MAX_NAME]!r} cannot name a label: give it 1 to "
                f"{_MAX_NAME} printable characters, none of {_MARKS[:-1]}"
            )
        if page_name(label) in OWN_LABELS[metric.kind]:
            raise UsageError(
                f"metric {metric.name}: Prometheus gets a label {page_name(label)} from the "
                "collector; give yours another name"
            )
    if shared := twice(metric.labels):
        raise UsageError(f"metric {metric.name}: two labels would be {shared} for Prometheus")


def counter(name: str, *, per: str | None = None, labels: Sequence[str] = ()) -> Counter:
    """Declare a counter. `per`: layer, sequence, ...

    Raises UsageError where the name is that of another, or names cannot be told apart.
    """
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
