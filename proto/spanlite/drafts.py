"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path


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
