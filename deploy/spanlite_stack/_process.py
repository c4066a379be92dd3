"""A process that outlives the command which started it, found again by pid and start time.

A pid alone may by now belong to somebody else; with the start time it cannot.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessMark:
    """Which process: its pid, and when it started in clock ticks since boot `boot_id`."""

    pid: int
    started_ticks: int
    boot_id: str


def _stat(pid: int) -> tuple[str, int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command's name may hold spaces and brackets: read on from the last bracket.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def mark_of(pid: int) -> ProcessMark | None:
    """The mark of a running process; None where there is none."""
    stat = _stat(pid)
    return ProcessMark(pid, stat[1], _boot_id()) if stat else None


def is_running(mark: ProcessMark | None) -> bool:
    """Whether that very process still runs. A zombie has ended."""
    if mark is None:
        return False
    stat = _stat(mark.pid)
    if stat is None or stat[1] != mark.started_ticks or _boot_id() != mark.boot_id:
        return False
    return stat[0] not in "ZX" or _has_threads(mark.pid)


def _has_threads(pid: int) -> bool:
    """Whether threads outlive the first one: a killed JVM holds its ports until the last."""
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except OSError:
        return False


def send(mark: ProcessMark, number: signal.Signals) -> None:
    """Send a signal, if it still runs."""
    if is_running(mark):
        try:
            os.kill(mark.pid, number)
        except ProcessLookupError:
            return


def wait_gone(mark: ProcessMark, timeout_s: float) -> bool:
    """Wait for its end; True when it has ended. Reaps it where it is our own child."""
    deadline = time.monotonic() + timeout_s
    while is_running(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    # Where another command started it, it is init's to reap.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(mark.pid, os.WNOHANG)
    return True
