"""The host daemon: sources on one side, delivery on the other, until told to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Protocol

from spanlite_collectors.delivery import KafkaSink
from spanlite_collectors.free_memory import give_back, keep_little
from spanlite_collectors.metrics import MetricsServer

#: Kubernetes and systemd give 30 and 90 s before they kill.
SHUTDOWN_TIMEOUT_S = 10.0
#: It takes some milliseconds.
GIVE_BACK_EVERY_S = 10.0


class Source(Protocol):
    """Something that spans come from, with a life of its own: a receiver, an agent's rings."""

    @property
    def url(self) -> str:
        """Where it listens or reads, for the log."""
        ...

    def start(self) -> None:
        """Begin to write to the sink it was made with; return at once."""
        ...

    def stop(self) -> None:
        """Write nothing more; return when the last write is done."""
        ...


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set the event for as long as this lasts. Main thread only."""

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Daemon:
    """Runs sources until `stop` is set; then everything taken is delivered or spooled."""

    def __init__(
        self,
        sink: KafkaSink,
        sources: Sequence[Source],
        pages: MetricsServer | None,
        *,
        say: Callable[[str], None],
        broker: str = "",
        shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S,
    ) -> None:
        self._sink, self._sources, self._pages, self._say = sink, sources, pages, say
        self._broker = f"the broker at {broker}" if broker else "the broker"
        self._timeout_s = shutdown_timeout_s

    def run(self, stop: threading.Event) -> None:
        """Serve until then. Raises ServiceError where spans are lost at the end."""
        keep_little()
        with ExitStack() as stack:
            # Undone in reverse: sources stop, delivery empties, the pages go last.
            if self._pages is not None:
                self._pages.start()
                stack.callback(self._pages.stop)
                self._say(f"metrics on {self._pages.url}/metrics")
            stack.callback(self._close)
            for source in self._sources:
                source.start()
                stack.callback(source.stop)
                self._say(f"taking spans on {source.url}")
            self._watch(stop)
            self._say("stopping")

    def _watch(self, stop: threading.Event) -> None:
        away, full, give_back_at = False, False, 0.0
        while not stop.wait(0.5):
            if time.monotonic() >= give_back_at:
                give_back()
                give_back_at = time.monotonic() + GIVE_BACK_EVERY_S
            stats = self._sink.stats()
            if stats.broker_away != away:
                away = stats.broker_away
                what = (
                    f"does not answer; keeping batches {self._sink.refuge}" if away else "is back"
                )
                self._say(f"{self._broker} {what}")
            if self._sink.overloaded != full:
                full = not full
                what = f"no room: spans are refused; {self._sink.cure}" if full else "room again"
                self._say(what)
            if not self._sink.alive:
                return

    def _close(self) -> None:
        try:
            self._sink.close(self._timeout_s)
        finally:
            self._account()

    def _account(self) -> None:
        stats = self._sink.stats()
        dropped = sum(stats.dropped_spans.values())
        self._say(
            f"{stats.received_spans} spans taken, {stats.delivered_spans} delivered, "
            f"{stats.spool_messages} batches in the spool, {dropped} spans dropped, "
            f"{stats.lost_spans} lost"
        )
