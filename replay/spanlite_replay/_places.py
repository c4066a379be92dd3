"""Places that are to be written to, looked at before the work begins."""

from __future__ import annotations

import os
from pathlib import Path

from spanlite.errors import UsageError


def check_place(flag: str, path: Path) -> None:
    """Raises UsageError where no file can be made there."""
    folder = path.parent
    if not folder.is_dir():
        why = f"there is no folder '{folder}'"
    elif path.is_dir():
        why = "it is a folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = f"the folder '{folder}' lets nobody write there"
    else:
        return
    raise UsageError(f"{flag} '{path}' cannot be written: {why}")
