"""What opens windows beside schedule, demand and a slow step: held-down clocks, a growing queue."""

from __future__ import annotations

import math
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.parser import text_string_to_metric_families
from spanlite.errors import UsageError

from spanlite_collectors.agent.convert import Sample
from spanlite_collectors.agent.layout import WindowReason

#: The gauge of `spanlite.instrument` that holds a queue's length.
QUEUE_METRIC = "queue.length"
#: What inference servers call theirs: vLLM, SGLang, TGI.
SERVER_METRICS = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size")
POLL_EVERY_S = 1.0
_PAGE_BYTES = 16 << 20


class Captures(Protocol):
    """What asks processes for windows: RingSource."""

    def capture(self, steps: int, reason: WindowReason) -> int:
        """Ask all of them; how many there were."""


class CaptureTrigger:
    """Asks all processes for a window, so that the slow minute is the one that is seen."""

    #: What holds a server back comes and goes many times a second, and one window tells enough.
    QUIET_S = 60.0
    STEPS = 20

    def __init__(
        self, rings: Captures, say: Callable[[str], None], what: str, reason: WindowReason
    ) -> None:
        self._rings, self._say, self._what, self._reason = rings, say, what, reason
        self._next = 0.0

    def __call__(self, text: str) -> None:
        """Capture, if the last one is long past."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.QUIET_S
        asked = self._rings.capture(self.STEPS, self._reason)
        self._say(f"{self._what} ({text}): asked {asked} processes for {self.STEPS} steps")


class QueueWatch:
    """Tells a queue that grows: twice its usual length, and at least `least` more."""

    #: Over how long the usual length is a mean, the newest weighing most.
    USUAL_S = 30.0
    MAX_QUEUES = 1000

    def __init__(
        self,
        grown: Callable[[str], None],
        metrics: Sequence[str] = (QUEUE_METRIC,),
        least: float = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grown, self._metrics, self._least, self._clock = grown, metrics, least, clock
        self._usual: dict[object, tuple[float, float]] = {}

    def take(self, resource: Mapping[str, Any], sample: Sample) -> None:
        """A value of a custom metric; all but the queues' gauges are left alone."""
        metric = sample.metric
        if metric.kind == "gauge" and metric.name in self._metrics:
            self.see((resource.get("process.pid"), metric.key), metric.key, sample.value)

    def see(self, queue: object, name: str, length: float) -> None:
        """It is so long now."""
        if not math.isfinite(length):
            return
        now = self._clock()
        if queue not in self._usual and len(self._usual) >= self.MAX_QUEUES:
            return
        at, usual = self._usual.get(queue, (now, length))
        if length >= max(2 * usual, usual + self._least):
            self._grown(f"{name} is {length:g}, usually {usual:.3g}")
        usual += (length - usual) * -math.expm1((at - now) / self.USUAL_S)
        self._usual[queue] = now, usual


class QueuePage:
    """Reads a server's own Prometheus page each second. A Source of the daemon without spans.

    Raises UsageError for what is no address.
    """

    def __init__(
        self, url: str, watch: QueueWatch, metrics: Sequence[str], say: Callable[[str], None]
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{url} is no page: give an http:// or https:// address")
        self._url, self._watch, self._metrics, self._say = url, watch, metrics, say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="queue page", daemon=True)
        self._quiet = False

    @property
    def url(self) -> str:
        """The page."""
        return self._url

    def start(self) -> None:
        """Read from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def read(self) -> int:
        """Read once; how many queues there were. A page that is away is told once."""
        try:
            with urllib.request.urlopen(self._url, timeout=POLL_EVERY_S) as page:
                text = page.read(_PAGE_BYTES).decode(errors="replace")
            found = [
                sample
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name in self._metrics
            ]
        except (OSError, ValueError) as error:
            self._complain(f"cannot be read ({error}); trying on")
            return 0
        for sample in found:
            labels = tuple(sorted(sample.labels.items()))
            self._watch.see((self._url, sample.name, labels), sample.name, sample.value)
        if found:
            self._quiet = False
        else:
            self._complain(f"has none of {', '.join(self._metrics)}")
        return len(found)

    def _complain(self, text: str) -> None:
        if not self._quiet:
            self._say(f"{self._url} {text}")
        self._quiet = True

    def _run(self) -> None:
        while not self._stop.wait(POLL_EVERY_S):
            self.read()
