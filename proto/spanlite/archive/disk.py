"""Making things visible on disk all at once, and one maintainer at a time."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from spanlite.errors import ArchiveError

LOCK_FILE = "_maintenance.lock"


@contextmanager
def maintenance_lock(root: Path) -> Iterator[None]:
    """Held by compact and retain; it goes with the process, however that ends.

    Raises ArchiveError where another process holds it.
    """
    with (root / LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(
                f"another `spanlite archive` is at work in '{root}'; wait until it has ended"
            ) from None
        yield


def unique() -> str:
    """A word that no other file's name has."""
    return uuid.uuid4().hex[:16]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(file: BinaryIO) -> None:
    """Make what was written to a file last."""
    file.flush()
    os.fsync(file.fileno())


def put_file(folder: Path, name: str, data: bytes) -> Path:
    """A small file, visible at once and whole."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{name}.draft"
    with draft.open("wb") as file:
        file.write(data)
        sync_file(file)
    target = draft.rename(folder / name)
    sync_folder(folder)
    return target
