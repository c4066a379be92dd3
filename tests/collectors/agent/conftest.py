"""Builds the agent with its stand-in CUPTI, and runs host programs under it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from builds import Build, Hosts, make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a build compiles it, which takes minutes on a busy machine."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def plain() -> Build:
    """The build as it ships."""
    return make("plain")


@pytest.fixture(scope="session", params=["plain", "asan", "tsan"])
def build(request: pytest.FixtureRequest) -> Build:
    """Each build in turn: as it ships, and with each sanitizer."""
    return make(request.param)


@pytest.fixture
def hosts(plain: Build, tmp_path: Path) -> Iterator[Hosts]:
    """Runs programs; ends what a failed test left running."""
    hosts = Hosts(tmp_path, plain.libraries / "libspanlite_ring.so")
    yield hosts
    for process in hosts.running:
        if process.poll() is None:
            process.kill()
            process.wait()
    for reader in hosts.readers:
        reader.close()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for something that must come about, however slow the machine is."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    return wait
