"""Tells a process that hangs, and has it say where."""

from __future__ import annotations

import signal
import subprocess
import threading
import time

#: One that has said nothing for so long hangs. Its start must not take that long.
QUIET_S = 40.0


class Watch:
    """Aborts a process that hangs."""

    def __init__(self, process: subprocess.Popen[str], ends: float) -> None:
        self._process, self._ends = process, ends
        self._heard = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def hear(self) -> None:
        """It has said something."""
        self._heard = time.monotonic()

    def stop(self) -> None:
        """It has ended."""
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(max(0.0, self._left())):
            if self._left() <= 0:
                _abort(self._process)
                return

    def _left(self) -> float:
        return min(self._ends, self._heard + QUIET_S) - time.monotonic()


def _abort(process: subprocess.Popen[str]) -> None:
    """Ask where it hangs, then end it."""
    if process.poll() is None:
        process.send_signal(signal.SIGABRT)
        time.sleep(2)
    if process.poll() is None:
        process.kill()
