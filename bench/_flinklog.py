"""When a Flink job began and ended its work, from its log and from its files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

LOG4J = Path(__file__).parent / "log4j.properties"
#: A task's operators are open by then, Python's workers included.
_BEGIN = "switched from INITIALIZING to RUNNING"


def environment(logs: Path) -> dict[str, str]:
    """Variables that make PyFlink's JVM write its log into this folder."""
    logs.mkdir(parents=True, exist_ok=True)
    return os.environ | {"FLINK_LOG_DIR": str(logs), "LOG4J_PROPERTIES": LOG4J.as_uri()}


def began_s(logs: Path) -> float:
    """Unix time at which the last task had started."""
    lines = [line for path in logs.glob("*.log") for line in path.read_text().splitlines()]
    times = [int(line.split()[0]) for line in lines if _BEGIN in line]
    if not times:
        raise RuntimeError(f"no task has started, says Flink's log in {logs}")
    return max(times) / 1000


def committed_s(files: Iterable[Path]) -> float:
    """Unix time of the last commit: a commit is a rename, which sets the change time."""
    return max(path.stat().st_ctime for path in files)
