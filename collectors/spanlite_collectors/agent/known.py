"""What a daemon knows of a process, in two files beside its ring, for the daemon after it.

An agent sends each text once, and shows the capture of its graphs once. Without these files what
was recorded while no daemon ran had no names, and kernels of graphs no layer for the rest of the
process's life. Any user may write into the folder, so only files of our own are read or replaced.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from spanlite_collectors.agent.ring import entries

#: Of texts the ring's are bounded, and so are those that are kept of them; more is not ours.
_MAX_BYTES = 64 << 20
TEXTS, STAGES = ".texts", ".stages"
_DRAFT = ".draft"
_BESIDE = (TEXTS, STAGES, TEXTS + _DRAFT, STAGES + _DRAFT)
#: An agent's own draft is a ring a moment later.
_DRAFT_S = 60


class Known:
    """The files of one ring. `is_behind`: something could not be written; put all of it again."""

    def __init__(self, ring: Path, say: Callable[[str], None] = lambda text: None) -> None:
        self._ring, self._say, self._said = ring, say, False
        self.is_behind = False
        self._paths = {suffix: ring.with_name(ring.name + suffix) for suffix in (TEXTS, STAGES)}

    def texts(self) -> bytes:
        """String records of the ring, the last perhaps cut short; empty where there are none."""
        return self._read(TEXTS)

    def add_texts(self, records: bytes) -> None:
        """Texts that have come."""
        if records and not self.is_behind:
            self._try(lambda: _append(self._paths[TEXTS], records))

    def put_texts(self, records: bytes) -> None:
        """All texts that still count, in place of what is there."""
        self._try(lambda: _replace(self._paths[TEXTS], records))

    def stages(self) -> Any:
        """What `put_stages` was given; None where there is nothing that can be read."""
        try:
            return json.loads(self._read(STAGES))
        except ValueError:
            return None

    def put_stages(self, state: Any) -> None:
        """What was learned of the process's graphs, in place of what is there."""
        self._try(lambda: _replace(self._paths[STAGES], json.dumps(state).encode()))

    def put_all(self, texts: bytes, stages: Any) -> None:
        """Both, where something could not be written before."""
        self.is_behind = False
        self.put_texts(texts)
        self.put_stages(stages)
        self._said = self.is_behind

    def remove(self) -> None:
        """The ring is gone or nobody's: so is what was known."""
        for path in self._paths.values():
            _remove(path)

    def _read(self, suffix: str) -> bytes:
        try:
            with _open(self._paths[suffix], os.O_RDONLY) as file:
                return file.read(_MAX_BYTES)
        except OSError:
            return b""

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self.is_behind = True
            if not self._said:
                self._say(
                    f"what is known of {self._ring.name} cannot be kept for the daemon after this "
                    f"one, which would lack names: {error}; trying again"
                )
            self._said = True


def remove_strays(folder: Path) -> None:
    """Delete what is left of rings that are gone: agents delete old ones of dead processes."""
    for path in entries(folder):
        with suppress(OSError):  # the folder may be listed and not searched
            if _is_stray(path):
                path.unlink(missing_ok=True)


def _is_stray(path: Path) -> bool:
    name, _, suffix = path.name.rpartition(".ring")
    if suffix == ".new":
        return time.time() - path.stat().st_mtime > _DRAFT_S and _is_nobodys(path)
    return suffix in _BESIDE and not path.with_name(f"{name}.ring").exists()


def _is_nobodys(path: Path) -> bool:
    """Whether no process holds a ring that it began to make."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(number)  # and with it the lock
    return True


def _open(path: Path, flags: int) -> BinaryIO:
    """A plain file of our own, and nothing else: no link, no pipe. Raises OSError."""
    number = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    found = os.fstat(number)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return os.fdopen(number, "rb" if flags == os.O_RDONLY else "wb")
    os.close(number)
    raise PermissionError(f"{path} is no file of this user's")


def _append(path: Path, data: bytes) -> None:
    with _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
        file.write(data)


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(path.name + _DRAFT)
    draft.unlink(missing_ok=True)  # of a daemon that was killed
    try:
        with _open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            file.write(data)
        draft.replace(path)
    except OSError:
        _remove(draft)
        raise


def _remove(path: Path) -> None:
    with suppress(OSError):  # another user's
        path.unlink(missing_ok=True)
