"""What the daemon says while the broker is away."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from spanlite_collectors.daemon import Daemon
from spanlite_collectors.delivery import KafkaSink, Message, Numbering, Outbox, Spool
from spanlite_collectors.delivery.transport import Listener


class NoBroker:
    """It never answers."""

    def ready(self) -> bool:
        return False

    def send(self, message: Message) -> None:
        raise AssertionError("nothing is sent where there is no broker")

    def poll(self, listener: Listener) -> None:
        """Nothing has happened."""

    def close(self) -> None:
        """Nothing to let go of."""

    def discard(self) -> None:
        """The same."""


class StopAfter(threading.Event):
    """Is set once it has been waited for so many times."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self._rounds = rounds

    def wait(self, timeout: float | None = None) -> bool:
        self._rounds -= 1
        return self._rounds < 0


def log_without_a_broker(spool: Spool | None) -> list[str]:
    """What a daemon says that looks twice after its delivery."""
    said: list[str] = []
    sink = KafkaSink(Outbox(NoBroker(), spool, stall_s=0), Numbering("test", 4), block=False)
    daemon = Daemon(sink, [], None, say=said.append, broker="kafka-1:9092", shutdown_timeout_s=0)
    daemon.run(StopAfter(rounds=2))
    return said


def test_it_says_where_batches_are_kept_and_refuses_none(tmp_path: Path) -> None:
    said = log_without_a_broker(Spool(tmp_path))
    where = f"keeping batches on disk, in {tmp_path}"
    assert said[0] == f"the broker at kafka-1:9092 does not answer; {where}"
    assert not any("no room" in line for line in said)


def test_without_a_spool_what_has_no_way_out_is_refused() -> None:
    said = log_without_a_broker(None)
    assert said[:2] == [
        "the broker at kafka-1:9092 does not answer; keeping batches in memory",
        "no room: spans are refused; start the broker",
    ]


@pytest.fixture(autouse=True)
def _few_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's process keeps its own way of taking memory."""
    monkeypatch.setattr("spanlite_collectors.daemon.keep_little", lambda: None)
