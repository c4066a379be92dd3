"""Who made the spans of a ring: OpenTelemetry resource attributes, as far as /proc tells."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
#: What is read of a process's environment, and nothing else of it.
_ENVIRONMENT = {
    "OTEL_SERVICE_NAME": "service.name",
    "POD_NAME": "k8s.pod.name",
    "POD_NAMESPACE": "k8s.namespace.name",
    "NODE_NAME": "k8s.node.name",
    "CUDA_VISIBLE_DEVICES": "cuda.visible_devices",
}


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """When a process started, in clock ticks since boot; None where there is none such."""
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def host_pid(pid: int, ticks: int, proc: Path = Path("/proc")) -> int | None:
    """The pid on this host of a process that calls itself `pid`, maybe in a container."""
    if start_ticks(pid, proc) == ticks:
        return pid
    for status in proc.glob("[0-9]*/status"):
        try:
            inner = re.search(r"^NSpid:.*?(\d+)$", status.read_text(), re.M)
        except OSError:
            continue
        outer = int(status.parent.name)
        if inner and int(inner[1]) == pid and start_ticks(outer, proc) == ticks:
            return outer
    return None


def describe(
    executable: str, pid: int, seen_as: int | None, proc: Path = Path("/proc")
) -> dict[str, Any]:
    """Resource attributes of a process; `seen_as` is its pid on this host, if it lives."""
    name = Path(executable).name or f"pid-{pid}"
    out: dict[str, Any] = {
        "host.name": socket.gethostname(),
        "process.pid": pid,
        "process.executable.name": name,
    }
    if seen_as is not None:
        out |= _of_cgroup(_read(proc / str(seen_as) / "cgroup"))
        out |= _of_environment(_read(proc / str(seen_as) / "environ"))
        if seen_as != pid:
            out["process.host_pid"] = seen_as
    out.setdefault("service.name", name)
    return out


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _of_cgroup(text: str) -> Mapping[str, str]:
    found = {}
    if container := _CONTAINER.search(text):
        found["container.id"] = container[1]
    if pod := _POD.search(text):
        found["k8s.pod.uid"] = pod[1].replace("_", "-")
    return found


def _of_environment(text: str) -> Mapping[str, str]:
    values = dict(part.partition("=")[::2] for part in text.split("\0"))
    found = {
        pair.partition("=")[0].strip(): pair.partition("=")[2].strip()
        for pair in values.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
        if "=" in pair
    }
    return found | {ours: values[name] for name, ours in _ENVIRONMENT.items() if values.get(name)}
