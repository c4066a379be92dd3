"""Ctrl-C while DuckDB runs a statement that would take hours."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import duckdb
import pytest
from spanlite_analytics.interrupts import interruptible
from spanlite_analytics.views import batches_of

HOURS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE hash(a.range, b.range) = 7"


def ways(con: duckdb.DuckDBPyConnection) -> dict[str, Callable[[], object]]:
    return {
        "execute": lambda: con.execute(HOURS).fetchall(),
        "frame": lambda: con.sql(HOURS).df(),
        "batches": lambda: list(batches_of(con.sql(HOURS))),
    }


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """A shell starts what runs in its background with SIGINT ignored, and Python keeps that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("way", ["execute", "frame", "batches"])
def test_ctrl_c_ends_it(way: str) -> None:
    con = duckdb.connect(config={"threads": 2})
    interrupt = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt), interruptible(con):
        ways(con)[way]()
    interrupt.join()
    assert con.execute("SELECT 1").fetchall() == [(1,)]


def test_an_interrupt_before_the_statement_is_told_again() -> None:
    """DuckDB forgets one that comes while nothing runs; the second statement would take hours."""
    con = duckdb.connect(config={"threads": 2})
    before = signal.signal(signal.SIGINT, lambda *_: None)  # as where a library swallows it
    try:
        with pytest.raises(KeyboardInterrupt), interruptible(con):
            os.kill(os.getpid(), signal.SIGINT)
            con.execute(HOURS).fetchall()
    finally:
        signal.signal(signal.SIGINT, before)
    assert con.execute("SELECT 1").fetchall() == [(1,)]


def test_nothing_stays_behind() -> None:
    con = duckdb.connect()
    threads = threading.active_count()
    with interruptible(con), interruptible(con):  # the inner one has nothing to do
        assert con.execute("SELECT 1").fetchall() == [(1,)]
    with pytest.raises(duckdb.Error), interruptible(con):
        con.execute("SELEC")
    assert threading.active_count() == threads
    assert signal.set_wakeup_fd(-1) == -1


def test_another_thread_may_read() -> None:
    rows: list[object] = []

    def read() -> None:
        con = duckdb.connect()
        with interruptible(con):
            rows.extend(con.execute("SELECT 1").fetchall())

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert rows == [(1,)]
