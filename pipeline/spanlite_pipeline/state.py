"""What the job remembers of a bucket between checkpoints: one map from text to bytes.

Everything a bucket must not forget is in its store; whatever else it holds in memory can
be computed again from there. So a restart is: read the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Store(Protocol):
    """A small part of Flink's MapState[str, bytes], so that tests need no Flink."""

    def put(self, key: str, value: bytes) -> None:
        """Set one entry."""
        ...

    def remove(self, key: str) -> None:
        """Delete one entry."""
        ...

    def items(self) -> Iterable[tuple[str, bytes]]:
        """All entries, in any order."""
        ...


class MemoryStore:
    """A store in memory, for tests and profiling. `snapshot` is a checkpoint."""

    def __init__(self, entries: dict[str, bytes] | None = None) -> None:
        self.entries = dict(entries or {})

    def put(self, key: str, value: bytes) -> None:
        """Set one entry."""
        self.entries[key] = bytes(value)

    def remove(self, key: str) -> None:
        """Delete one entry."""
        self.entries.pop(key, None)

    def items(self) -> Iterable[tuple[str, bytes]]:
        """All entries."""
        return list(self.entries.items())

    def snapshot(self) -> MemoryStore:
        """A copy that later changes do not touch."""
        return MemoryStore(self.entries)
