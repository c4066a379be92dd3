"""The console that reports go to."""

from __future__ import annotations

import sys

from rich.console import Console

#: Wider than any table: what is piped is never cut or wrapped.
_WIDE = 10_000


def stdout_console() -> Console:
    """The terminal as wide as it is; a pipe or a file takes whole lines, without colours."""
    if sys.stdout.isatty():
        return Console(file=sys.stdout)
    return Console(file=sys.stdout, width=_WIDE, color_system=None)
