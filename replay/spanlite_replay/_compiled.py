"""C++ of this package, compiled where it runs: once, into the user's cache folder."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

_COMPILE_S = 60.0


def compiled(source: Path, word: str, options: Sequence[str]) -> ctypes.CDLL | None:
    """The library of a source, under a name that its text and options decide; None where there
    is no compiler (`$CXX` or g++) or it fails: whoever asks can do without."""
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        return None
    name = sha256(source.read_bytes() + " ".join(options).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spanlite"
    path = folder / f"{word}-{name}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _compile(compiler, options, source, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError):
        return None


def _compile(compiler: str, options: Sequence[str], source: Path, path: Path) -> None:
    """In a folder of its own first, so that nobody loads half a file."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        draft = Path(folder) / path.name
        command = [compiler, *options, "-o", str(draft), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=_COMPILE_S)
        draft.replace(path)
