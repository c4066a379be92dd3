"""Waits, overheads and other libraries' ids; CUPTIs of several versions."""

from __future__ import annotations

import numpy as np
from builds import Build, Hosts
from rings import RingReader

LAZY_LOADING = 5 << 16


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
