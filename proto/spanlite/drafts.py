"""Files that appear whole or not at all."""

from __future__ import annotations

import fcntl
import itertools
import os
from contextlib import suppress
from pathlib import Path

from spanlite.errors import InputError


class FileBusyError(InputError):
    """Another process writes that file."""


class Draft:
    """A file in the making, locked for as long as it is one. Write to `path`, then `put` it.

    Raises FileBusyError where another process makes the same file, OSError where it cannot be made.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self.path = draft_of(target)
        self._lock = None if self.path == target else _lock(self.path, target)

    def put(self) -> None:
        """Make it visible. Raises OSError."""
        put(self.path, self._target)
        self.release()

    def discard(self) -> None:
        """Leave nothing of it; after `put` this does nothing."""
        if self._lock is not None:
            discard(self.path, self._target)
        self.release()

    def release(self) -> None:
        """Leave it as it is."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(draft: Path, target: Path) -> int:
    while True:
        number = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if _is_locked(number, fcntl.LOCK_EX):
            os.close(number)
            raise FileBusyError(
                f"'{target}' is being written by another process; name another file, or wait"
            )
        with suppress(FileNotFoundError):
            if os.fstat(number).st_ino == draft.stat().st_ino:
                return number
        os.close(number)  # of a writer that has just ended; make our own


def _is_locked(number: int, kind: int) -> bool:
    """Whether another one holds a lock; else we have it, where the file system knows locks."""
    try:
        fcntl.flock(number, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def is_written(draft: Path) -> bool:
    """Whether a process is still at it. Raises OSError."""
    number = os.open(draft, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _is_locked(number, fcntl.LOCK_SH)
    finally:
        os.close(number)


def unused(path: Path) -> Path:
    """`path`, or the first of `NAME.1.EXT`, `NAME.2.EXT`, ... that replaces nothing.

    Neither a file nor what a killed process left of one, nor one that is being made.
    """
    if draft_of(path) == path:
        return path
    names = (path.with_name(f"{path.stem}.{i}{path.suffix}") for i in itertools.count(1))
    return next(name for name in itertools.chain([path], names) if not _is_used(name))


def _is_used(path: Path) -> bool:
    draft = draft_of(path)
    if os.path.lexists(path):
        return True
    try:
        return draft.stat().st_size > 0 or is_written(draft)
    except FileNotFoundError:
        return False


def draft_of(path: Path) -> Path:
    """Where to write what `put` shall make visible as `path`.

    A file beside it; or `path` itself where a rename would put a file in place of what it is: a
    device (/dev/null), a pipe, a link (/dev/stdout).
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return path
    return path.with_name(f".{path.name}.part")


def is_draft(path: Path) -> bool:
    """Whether it has the name of one, which its writer did not finish."""
    return path.name.startswith(".") and path.name.endswith(".part")


def put(draft: Path, path: Path) -> None:
    """Make the finished draft visible."""
    if draft != path:
        draft.replace(path)


def discard(draft: Path, path: Path) -> None:
    """Leave no draft; also where there is none."""
    if draft != path:
        draft.unlink(missing_ok=True)
