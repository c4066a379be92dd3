"""What a long replay says meanwhile, on the standard error."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

#: A step shorter than this says nothing when it ends.
LONG_S = 2.0


class Progress:
    """Plain lines; on a terminal also one that counts. Draws nothing while events go out:
    a thread that draws would take the interpreter from the pacing loop."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_terminal = stream.isatty()
        self._last = 0.0

    def say(self, text: str) -> None:
        """One line."""
        print(text, file=self.stream, flush=True)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Name a step: at once on a terminal, else when it took long."""
        begin = time.monotonic()
        if self.is_terminal:
            print(f"{what} ...", file=self.stream, flush=True)
        yield
        took = time.monotonic() - begin
        if took > LONG_S:
            self.say(f"{what}: {took:.1f} s")

    def count(self, done: int, total: int) -> None:
        """How far the encoding is, twice a second on a terminal."""
        now = time.monotonic()
        if self.is_terminal and (now - self._last > 0.5 or done == total):
            self._last = now
            end = "\n" if done == total else ""
            print(f"\rencoding batch {done:,} of {total:,}", end=end, file=self.stream, flush=True)
