"""Ends the process where a kernel does not end, so that it does not spin on the GPU for ever."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType

from spanlite_analytics.lab.scan.spec import Config
from spanlite_analytics.lab.scan.store import Journal, Row

#: As a ServiceError's.
EXIT_CODE = 2


class Deadline:
    """While it is open, a configuration has so many seconds; then it is kept as one that hangs.

    A launch that never ends cannot be taken back, and Python gets no signal while a call of the
    driver waits for it: the process must go, and its context with it.
    """

    def __init__(self, seconds: float, config: Config, journal: Journal) -> None:
        self._seconds, self._config, self._journal = seconds, config, journal
        self._timer = threading.Timer(seconds, self._late)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()

    def _late(self) -> None:
        words = f"did not end within {self._seconds:g} s"
        row = Row(self._config, None, (), 0, None, None, {}, words)
        self._journal.add(row)
        print(
            f"\nspanlite: {row.key} {words}: this process ends, and its kernel with it; the same "
            "command goes on after it",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_CODE)
