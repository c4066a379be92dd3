"""The checkpoint that a run goes on from."""

from __future__ import annotations

from pathlib import Path

_METADATA = "_metadata"


def newest_checkpoint(folder: str | Path) -> Path | None:
    """The newest completed checkpoint or savepoint anywhere below a folder.

    Flink writes `_metadata` last, so a checkpoint that has it is whole.
    """
    root = Path(folder)
    found = [path for path in root.glob(f"**/{_METADATA}") if path.is_file()]
    if not found:
        return None
    return max(found, key=lambda path: (path.stat().st_mtime_ns, path.as_posix())).parent
