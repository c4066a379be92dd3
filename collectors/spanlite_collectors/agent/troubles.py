"""What keeps rings from being read: what has been said of it, and when to try again."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

#: An agent makes the file first and its header a moment later.
UNREADY_S = 5.0


def is_curable(number: int | None) -> bool:
    """Whether a new start of this process may help against an error of this number."""
    return number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Troubles:
    """What keeps all rings, or those of one folder, from being read just now."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._of: dict[str, tuple[str, bool]] = {}

    def __len__(self) -> int:
        return len(self._of)

    @property
    def curable(self) -> bool:
        """Whether there is one that a new start of this process may end."""
        return any(curable for _, curable in self._of.values())

    def tell(self, where: str, text: str, *, curable: bool = True) -> None:
        """Once, though it is tried again and again."""
        if self._of.get(where) != (text, curable):
            self._of[where] = (text, curable)
            self._say(text)

    def over(self, where: str) -> None:
        """It went well."""
        if self._of.pop(where, None) is not None:
            self._say(f"{where}: read again")


@dataclass
class _Refusal:
    since: float
    tries: int = 0
    #: None: it is no trouble.
    curable: bool | None = None
    said: str = ""
    for_good: bool = False


class Refusals:
    """One entry a file. The same words are said once."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._of: dict[Path, _Refusal] = {}

    def __len__(self) -> int:
        return sum(refusal.curable is not None for refusal in self._of.values())

    @property
    def curable(self) -> bool:
        """Whether there is one that a new start of this process may end."""
        return any(refusal.curable for refusal in self._of.values())

    def worth_a_try(self, path: Path, seldom: bool) -> bool:
        """Whether to open it now. `seldom`: this time is one of those that come once a second."""
        refusal = self._of.get(path)
        return refusal is None or (seldom and not refusal.for_good)

    def for_now(self, path: Path, why: str, curable: bool | None) -> None:
        """It is tried again. `curable`: as of `Troubles`; None: all is well, another one reads it.

        A trouble is one, and said, the second time: the file may just be on its way out.
        """
        refusal = self._count(path)
        if curable is None or refusal.tries > 1:
            refusal.curable = curable
            self._tell(refusal, why)

    def unless_ready_soon(self, path: Path, why: str) -> None:
        """It may not be finished yet; after a while it is left alone."""
        refusal = self._count(path)
        if self._clock() - refusal.since >= UNREADY_S - 1 and refusal.tries > 1:
            refusal.for_good = True
            self._tell(refusal, f"{why}; leaving it alone")

    def for_good(self, path: Path, why: str) -> None:
        """It is not tried again while it lies there."""
        refusal = self._count(path)
        refusal.for_good = True
        self._tell(refusal, why)

    def forget(self, path: Path) -> None:
        """It has been opened."""
        self._of.pop(path, None)

    def keep(self, there: Collection[Path]) -> None:
        """Forget all files but these."""
        self._of = {path: refusal for path, refusal in self._of.items() if path in there}

    def paths_in(self, folder: Path) -> list[Path]:
        """Those of one folder."""
        return [path for path in self._of if path.parent == folder]

    def _count(self, path: Path) -> _Refusal:
        refusal = self._of.setdefault(path, _Refusal(self._clock()))
        refusal.tries += 1
        return refusal

    def _tell(self, refusal: _Refusal, text: str) -> None:
        if refusal.said != text:
            refusal.said = text
            self._say(text)
