"""Ctrl-C ends a statement of DuckDB that runs, too."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

#: An interrupt that comes between two statements, or before one has begun, is forgotten by DuckDB:
#: it is told again until the block has ended.
_AGAIN_S = 0.05


@contextmanager
def interruptible(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Ctrl-C within this stops what runs on the connection, and raises KeyboardInterrupt.

    Python handles a signal once the main thread is back from DuckDB, which may be hours later.
    The wakeup file descriptor tells another thread at once. Does nothing in other threads and
    where somebody else has that descriptor.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
    seen = threading.Event()

    def watch() -> None:
        while True:
            try:
                byte = ours.recv(1)
            except TimeoutError:
                con.interrupt()
                continue
            if not byte:
                return
            if byte[0] == signal.SIGINT:
                seen.set()
                con.interrupt()
                ours.settimeout(_AGAIN_S)

    thread = threading.Thread(target=watch, name="interrupts", daemon=True)
    thread.start()
    try:
        yield
    except Exception:
        if seen.is_set():
            raise KeyboardInterrupt from None
        raise
    finally:
        if before == -1:
            signal.set_wakeup_fd(-1)
        theirs.close()
        thread.join()
        ours.close()
