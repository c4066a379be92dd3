"""Waits, overheads and other libraries' ids; CUPTIs of several versions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from builds import Build, Hosts
from rings import RingReader

Until = Callable[[Callable[[], bool]], None]
LAZY_LOADING = 5 << 16
EVENT_QUERY, EVENT_SYNCHRONIZE = 138, 1


def run(hosts: Hosts, build: Build, *words: str, env: tuple[str, ...] = (), **settings: object):
    command = ["env", *env, str(build.program("host"))]
    ended = hosts.end(hosts.start(build, *words, command=command, level="continuous", **settings))
    reader: RingReader = hosts.reader()
    reader.drain()
    return ended.reports["host"], reader


def test_waits_overheads_and_ids_of_other_libraries(build: Build, hosts: Hosts) -> None:
    words = ["steps=50", "kernels=3", "step_us=200", "external=1"]
    _, reader = run(hosts, build, *words, activities="sync,overhead,external")
    records = reader.records
    assert len(records.sync) >= 50  # one a step
    assert set(records.overhead["kind"]) == {LAZY_LOADING}
    assert set(records.external["external_id"]) == set(range(1000, 1050))
    launches = records.external[records.external["external_id"] == 1007]["correlation"]
    assert np.isin(launches, records.api["correlation"]).all()


def test_none_of_them_where_they_are_not_asked_for(plain: Build, hosts: Hosts) -> None:
    _, reader = run(hosts, plain, "steps=20", "external=1", activities="none")
    assert len(reader.records.sync) == len(reader.records.overhead) == 0
    assert len(reader.records.external) == 0 < len(reader.records.kernel)


def test_an_older_cupti_has_shorter_overheads(build: Build, hosts: Hosts) -> None:
    """Of CUDA 12.1: what follows the record is not taken for its correlation id, and the events
    that come with waits are no loss."""
    report, reader = run(hosts, build, "steps=50", "kernels=3", env=("STANDIN_VERSION=18",),
                          activities="sync,overhead")  # fmt: skip
    assert set(reader.records.overhead["correlation"]) == {0}
    assert len(reader.records.kernel) == report["launched"] == 150
    assert reader.drops() == dict.fromkeys(reader.drops(), 0)


def test_of_queries_those_that_found_the_work_done(build: Build, hosts: Hosts) -> None:
    """CUPTI records each as a wait; each kept one has its call, so none hangs in the air."""
    words = ["steps=30", "kernels=3", "step_us=300", "query=1"]
    _, reader = run(hosts, build, *words)
    asked = reader.records.api[reader.records.api["call"] == EVENT_QUERY]
    found = reader.records.sync[reader.records.sync["kind"] == EVENT_SYNCHRONIZE]
    assert len(asked) == len(found) == 30
    assert set(asked["correlation"]) == set(found["correlation"])


def test_windows_leave_copies_out_and_detach(build: Build, hosts: Hosts) -> None:
    """The stand-in ends a process that detaches once copies were recorded, as the real one did."""
    words = ["steps=600", "kernels=4", "step_us=300"]
    settings = {"window_seconds": 0.02, "window_steps": 10, "budget_pct": 100}
    ended = hosts.run(build, *words, **settings)
    reader = hosts.reader()
    reader.drain()
    assert ended.reports["host"]["finalize"] >= 1
    assert (
        len(reader.records.memcpy) == len(reader.records.memset) == 0 < len(reader.records.kernel)
    )


def test_copies_that_are_asked_for_keep_it_attached(build: Build, hosts: Hosts) -> None:
    words = ["steps=600", "kernels=4", "step_us=300"]
    settings = {"window_seconds": 0.02, "window_steps": 10, "budget_pct": 100}
    ended = hosts.run(build, *words, **settings, activities="sync,copies")
    reader = hosts.reader()
    reader.drain()
    assert ended.reports["host"]["finalize"] == 0 < len(reader.records.window)
    assert len(reader.records.memcpy) > 0 < len(reader.records.memset)


def test_continuous_from_the_start_has_copies_and_never_detaches(
    plain: Build, hosts: Hosts, until: Until
) -> None:
    words = ["steps=100000000", "kernels=4", "step_us=400"]
    process = hosts.start(plain, *words, level="continuous", window_seconds=0, window_steps=5)
    reader = hosts.reader()
    until(lambda: reader.state()["steps_covered"] > 50)
    reader.control(level=2)
    until(lambda: reader.state()["windows"] > 5)
    until(lambda: (reader.drain(), len(reader.records.memcpy) > 0)[1])
    assert reader.state()["detaches"] == 0
    assert process.poll() is None
