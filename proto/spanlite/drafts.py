"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from spanlite.errors import InputError

#: As Linux follows at most.
_MOST_LINKS = 40
#: What interrupted processes have left of one file.
_MOST_LEFT = 1000


class FileBusyError(InputError):
    """Another process writes that file."""


class Draft:
    """A file in the making, locked for as long as it is one. Write to `path`, then `put` it.

    In a `with` it is discarded at the end, unless it was put before. What an interrupted process
    has left of such a file stays: this one then has another name. Raises FileBusyError where
    another process makes the same file, OSError where it cannot be made.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self.path = draft_of(target)
        self._lock: int | None = None
        if self.path != target:
            self.path, self._lock = _lock(self.path, target)

    def put(self) -> None:
        """Make it visible, in place of what is there. Raises OSError."""
        if self._lock is not None:
            self._check(self._lock)
            self.path.replace(_real(self._target) or self._target)
        self.release()

    def put_beside(self) -> Path:
        """Make it visible without replacing anything: as `unused` names it. Raises OSError."""
        if self._lock is None:
            return self._target
        self._check(self._lock)
        name = next(name for name in _numbered(self._target) if _linked(self.path, name))
        self.path.unlink(missing_ok=True)
        self.release()
        return name

    def discard(self) -> None:
        """Leave nothing of it; after `put` this does nothing."""
        if self._lock is not None and self._is_ours(self._lock):
            self.path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Leave it as it is."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        """The draft."""
        return self

    def __exit__(self, *_: object) -> None:
        """Discard it."""
        self.discard()

    def _check(self, lock: int) -> None:
        if not self._is_ours(lock):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))

    def _is_ours(self, lock: int) -> bool:
        """Not where somebody has deleted it, and perhaps another process has made its own."""
        try:
            return os.path.samestat(os.fstat(lock), self.path.stat())
        except OSError:
            return False


def _lock(first: Path, target: Path) -> tuple[Path, int]:
    stem = first.name.removesuffix(".part")
    others = (first.with_name(f"{stem}.{i}.part") for i in range(1, _MOST_LEFT))
    for draft in itertools.chain([first], others):
        number = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if _is_locked(number, fcntl.LOCK_EX):
            os.close(number)
            raise FileBusyError(
                f"'{target}' is being written by another process; name another file, or wait"
            )
        mine = os.fstat(number)
        with suppress(FileNotFoundError):
            if mine.st_size == 0 and os.path.samestat(mine, draft.stat()):
                return draft, number
        os.close(number)  # left by another process, or of one that has just ended
    raise FileBusyError(f"'{target}': too many drafts are left beside it; delete '{stem}*.part'")


def _linked(draft: Path, name: Path) -> bool:
    """Give the draft a name, too; False where there is something of that name."""
    try:
        os.link(draft, name)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if os.path.lexists(name):
            return False
        draft.replace(name)
    return True


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
    return next(name for name in _numbered(path) if not _is_used(name))


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    for i in itertools.count(1):
        yield path.with_name(f"{path.stem}.{i}{path.suffix}")


def _is_used(path: Path) -> bool:
    if os.path.lexists(path):
        return True
    draft = draft_of(path)
    try:
        return draft.stat().st_size > 0 or is_written(draft)
    except FileNotFoundError:
        return False


def draft_of(path: Path) -> Path:
    """Where to write what `put` shall make visible as `path`.

    A file beside it, and beside what a link leads to; or `path` itself where a rename would put a
    file in place of what it is: a device (/dev/null), a pipe, what is open already (/dev/stdout).
    """
    real = _real(path)
    if real is None or (real.exists() and not real.is_file()):
        return path
    return real.with_name(f".{real.name}.part")


def _real(path: Path) -> Path | None:
    """What links lead to; None where one leads to what is no file of a folder."""
    for _ in range(_MOST_LINKS):
        top = path.absolute().parts[1:3]
        if top[:1] == ("proc",) or (top[:1] == ("dev",) and top != ("dev", "shm")):
            return None
        if not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def is_draft(path: Path) -> bool:
    """Whether it has the name of one, which its writer did not finish."""
    return path.name.startswith(".") and path.name.endswith(".part")
