"""What becomes of a torch.profiler trace before it is committed. Standard library only."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Everything else (operators, Python frames, flows, counters) would make files ten times as large.
KEPT = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "overhead")
#: Calls that neither launch nor wait say nothing about these faults.
_NO_MATTER = ("cudaStreamIsCapturing", "cudaEventQuery", "cudaGetDevice", "cudaStreamGetPriority")
#: Arguments that the importer leaves out, and ids that only link operators.
_LEFT_OUT = ("External id", "Ev Idx", "queued", "cbid", "est. achieved occupancy %")


def trim(trace: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a critical path needs: device work, calls, ranges of steps and requests."""
    events = [_shorter(event) for event in trace["traceEvents"] if _matters(event)]
    kept = {
        key: trace[key]
        for key in ("schemaVersion", "deviceProperties", "baseTimeNanoseconds", "displayTimeUnit")
        if key in trace
    }
    for gpu in kept.get("deviceProperties", []):
        gpu.pop("uuid", None)
    return {**kept, "traceName": name, "traceEvents": events}


def _matters(event: Mapping[str, Any]) -> bool:
    if event.get("ph") == "M":
        return event.get("name") in ("process_name", "thread_name")
    category = event.get("cat")
    if category == "user_annotation":
        return str(event["name"]).startswith(("step:", "request:"))
    return category in KEPT and not str(event["name"]).startswith(_NO_MATTER)


def _shorter(event: Mapping[str, Any]) -> dict[str, Any]:
    args = event.get("args", {})
    short = {key: value for key, value in args.items() if key not in _LEFT_OUT}
    return {key: value for key, value in event.items() if key != "args"} | {"args": short}


def annotate(trace: dict[str, Any], kernel: str, from_step: int, facts: Mapping[str, Any]) -> int:
    """Add measured facts to the kernels of a name from the start of a step on; returns how many."""
    begins = [
        float(event["ts"])
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"] == f"step:{from_step}"
    ]
    if not begins:
        return 0
    marked = [
        event
        for event in trace["traceEvents"]
        if event.get("cat") == "kernel"
        and kernel in event["name"]
        and float(event["ts"]) >= min(begins)
    ]
    for event in marked:
        event["args"] |= facts
    return len(marked)


def write(trace: Mapping[str, Any], path: Path) -> int:
    """Compressed, the same bytes for the same trace; returns their number."""
    packed = gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), 9, mtime=0)
    path.write_bytes(packed)
    return len(packed)


def read_conflicts(csv_text: str) -> float | None:
    """Bank conflicts a shared-memory request, from `ncu --csv --metrics`; None: not counted."""
    conflicts = requests = 0.0
    lines = [line for line in csv_text.splitlines() if line.startswith('"')]
    for row in csv.DictReader(lines):
        try:
            value = float(row["Metric Value"].replace(",", ""))
        except (KeyError, ValueError, AttributeError):
            continue
        if "bank_conflicts" in row["Metric Name"]:
            conflicts += value
        else:
            requests += value
    return conflicts / requests if requests else None
