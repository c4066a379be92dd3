"""Real launches: what torch.profiler and Nsight Compute said of them."""

import csv
import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spanlite.occupancy import limits_of, occupancy

DATA = Path(__file__).parents[4] / "shared" / "data"
NVIDIA = [p for p in sorted((DATA / "kineto").glob("*.json.gz")) if not p.name.startswith("vllm")]
NCU = sorted((DATA / "ncu").glob("ncu_full_*.csv.gz"))
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="the real traces are not in ../shared/data"
)


def load(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    with gzip.open(path) as file:
        document = json.load(file)
    events = (e["args"] for e in document["traceEvents"] if e.get("cat") == "kernel")
    return document["deviceProperties"][0], [e for e in events if "registers per thread" in e]


@pytest.mark.parametrize("path", NVIDIA, ids=lambda p: p.name.removesuffix(".json.gz"))
def test_kineto_estimates(path: Path) -> None:
    """torch.profiler's estimate is ours, but for one fault of its own.

    It is the first wave's occupancy: the smaller of what an SM holds and the grid over the SMs.
    It asks with the default limit of 48 KiB a block, so it says 0 for every kernel that opted
    in to more, although it ran.
    """
    device, kernels = load(path)
    sm = limits_of((device["computeMajor"], device["computeMinor"]))
    assert sm.shared_bytes == device["sharedMemPerMultiprocessor"]
    assert sm.shared_per_block_bytes == device["sharedMemPerBlockOptin"]
    assert sm.max_threads == device["maxThreadsPerMultiprocessor"]
    threads = np.array([math.prod(k["block"]) for k in kernels])
    grid = np.array([math.prod(k["grid"]) for k in kernels])
    shared = np.array([k["shared memory"] for k in kernels])
    estimate = np.array([k["est. achieved occupancy %"] for k in kernels])
    got = occupancy(sm, threads, [k["registers per thread"] for k in kernels], 0, shared)
    ours = 100 * np.minimum(got.blocks, grid / device["numSms"]) * threads / sm.max_threads
    assert (got.blocks > 0).all(), "it ran, so an SM holds a block of it"
    opted_in = shared > 48 * 1024
    assert (estimate[opted_in] == 0).all()
    assert (np.abs(ours - estimate)[~opted_in] <= 0.51).all()
    assert (~opted_in).sum() > 40


def ncu_rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt") as file:
        lines = file.read().splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    rows = list(csv.DictReader(lines[head:]))
    return rows[1:]  # the first has the units


@pytest.mark.parametrize("path", NCU, ids=lambda p: p.name.removesuffix(".csv.gz"))
def test_nsight_compute(path: Path) -> None:
    """Each limit that Nsight Compute gives on an H200, with the setting that the driver chose."""
    rows = ncu_rows(path)
    assert len(rows) >= 6

    def column(name: str) -> np.ndarray:
        return np.array([int(row[f"launch__{name}"].replace(",", "")) for row in rows])

    got = occupancy(
        "9.0",
        column("block_size"),
        column("registers_per_thread"),
        column("shared_mem_per_block_static"),
        column("shared_mem_per_block_dynamic"),
        barriers=column("barrier_count"),
        shared_config_bytes=column("shared_mem_config_size"),
    )
    assert got.blocks_by_warps.tolist() == column("occupancy_limit_warps").tolist()
    assert got.blocks_by_registers.tolist() == column("occupancy_limit_registers").tolist()
    assert got.blocks_by_shared.tolist() == column("occupancy_limit_shared_mem").tolist()
    assert got.blocks_by_blocks.tolist() == column("occupancy_limit_blocks").tolist()
    # Theirs are never more than the limit of blocks.
    barriers = np.minimum(got.blocks_by_barriers, got.blocks_by_blocks)
    assert barriers.tolist() == column("occupancy_limit_barriers").tolist()
    assert got.shared_per_block_bytes.tolist() == column("shared_mem_per_block_allocated").tolist()
    percent = [float(row["sm__maximum_warps_per_active_cycle_pct"]) for row in rows]
    assert np.allclose(got.fraction * 100, percent, atol=0.005)


def test_the_tools_on_a_real_trace(tmp_path: Path, make_sink: Any, spanlite: Any) -> None:
    """H200 decode steps, eager and as a graph: by way of the importer and an archive."""
    from spanlite_collectors.importers.kineto import import_kineto
    from spanlite_collectors.importers.options import ImportOptions

    sink = make_sink(tmp_path / "archive")
    import_kineto(DATA / "kineto" / "h200_decode_eager_and_graph.json.gz", sink, ImportOptions())
    where = ("--archive", tmp_path / "archive")
    code, out, err = spanlite("lab", "occupancy", *where, "--limit", "1000", "--json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert sum(row["launches"] for row in rows) == 1056
    for row in rows:
        assert (row["compute_capability"], row["sms"]) == ("9.0", 132)
        assert row["occupancy"]["blocks"] > 0, row
        assert row["grid"]["waves"] > 0
    gemms = [row for row in rows if row["kernel"].startswith("nvjet")]
    assert {row["occupancy"]["limiters"] for row in gemms} == {"registers, shared memory"}
    for name in sorted({row["kernel"] for row in rows})[:6]:
        code, out, err = spanlite("lab", "explain", "all", name, *where)
        assert (code, err) == (0, "")
        assert "\n1. " in out
