"""Writes recorded CUPTI records as the file that the stand-in CUPTI replays (replay.h)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {"kernel": 10, "memcpy": 1, "api": 5}
CALLS = {"cudaLaunchKernel_v7000": 211}
WORDS = (
    "kind device context stream correlation graph name grid_x grid_y grid_z block_x block_y "
    "block_z cluster_x cluster_y cluster_z registers static_shared dynamic_shared executed_shared "
    "local launch_type copy_kind thread call unused"
)
ROW = np.dtype(
    [(name, "u8") for name in ("start", "end", "bytes", "node")]
    + [(name, "u4") for name in WORDS.split()]
)


def read(path: Path) -> list[dict[str, Any]]:
    """The recorded rows of the kinds that are replayed."""
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    return [r for r in rows if r["t"] in KINDS and r.get("dom") != "driver"]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """`rows` of `read` as a replay file."""
    names: dict[str, int] = {"": 0}
    table = np.zeros(len(rows), ROW)
    for out, row in zip(table, rows, strict=True):
        _fill(out, row, names)
    with path.open("wb") as file:
        file.write(np.array([len(names), ROW.itemsize], "u4").tobytes())
        for name in names:
            text = name.encode()
            file.write(np.array([len(text)], "u4").tobytes() + text)
        file.write(table.tobytes())


def _fill(out: np.void, row: dict[str, Any], names: dict[str, int]) -> None:
    out["kind"] = KINDS[row["t"]]
    out["start"], out["end"], out["correlation"] = row["start"], row["end"], row["corr"]
    if row["t"] == "api":
        out["thread"], out["call"] = row["tid"], row["cbid"]
        return
    for ours, theirs in {"device": "dev", "context": "ctx", "stream": "stream"}.items():
        out[ours] = row[theirs]
    out["node"], out["graph"] = row["graph_node"], row["graph_id"]
    if row["t"] == "memcpy":
        out["bytes"], out["copy_kind"] = row["bytes"], row["copy_kind"]
        return
    out["name"] = names.setdefault(row["name"], len(names))
    for ours, theirs in {"grid": "grid", "block": "block", "cluster": "cluster"}.items():
        for axis, value in zip("xyz", row[theirs], strict=True):
            out[f"{ours}_{axis}"] = value
    out["registers"], out["launch_type"] = row["regs"], row["launch_type"]
    out["static_shared"], out["dynamic_shared"] = row["static_smem"], row["dynamic_smem"]
    out["executed_shared"], out["local"] = row["smem_executed"], row["local_per_thread"]
