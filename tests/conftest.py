"""Fixtures that several folders share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from spanlite_stack import Stack, StackInfo
from spanlite_stack.stack import QUICK_START

# A slow machine is no failure.
settings.register_profile("spanlite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("spanlite")


@pytest.fixture(scope="session")
def local_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The session's broker as an object. Do not stop it: a chaos test makes its own `Stack`."""
    stack = Stack(tmp_path_factory.mktemp("stack"), jvm_options=QUICK_START)
    stack.up()
    yield stack
    stack.remove()


@pytest.fixture(scope="session")
def stack(local_stack: Stack) -> StackInfo:
    """A real broker with spans.raw and spans.dead, shared by the session: `stack.bootstrap`."""
    info = local_stack.status()
    assert info is not None
    return info


@pytest.fixture
def new_topic(local_stack: Stack) -> Callable[[int], str]:
    """`new_topic(partitions)` makes a topic of the test's own and returns its name."""

    def make(partitions: int = 8) -> str:
        name = f"test.{uuid.uuid4().hex[:12]}"
        local_stack.create_topic(name, partitions)
        return name

    return make


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real traces beside the project; skips the test where it is missing."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real traces are not at {folder}")
    return folder
