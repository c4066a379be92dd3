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
def only_one(path: Path, otherwise: str) -> Iterator[None]:
    """Hold a lock file; it is free again when the process ends, however that comes.

    Raises ArchiveError with the text `otherwise` where another process holds it.
    """
    try:
        file = path.open("a")
    except OSError as error:
        raise ArchiveError(f"cannot write '{path}': {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(otherwise) from None
        yield


@contextmanager
def maintenance_lock(root: Path) -> Iterator[None]:
    """Held by compact and retain. Raises ArchiveError where another process holds it."""
    other = f"another `spanlite archive` is at work in '{root}'; wait until it has ended"
    with only_one(root / LOCK_FILE, other):
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
