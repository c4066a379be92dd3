"""Records that CUPTI gave on an H200, replayed by the stand-in, come out of the ring unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import replay_file
from builds import Build, Hosts


@pytest.mark.parametrize("name", ["eager_s4", "graph_node_s1", "compile"])
def test_every_field_arrives(plain: Build, hosts: Hosts, shared_data: Path, name: str) -> None:
    rows = replay_file.read(shared_data / "cupti" / f"{name}.jsonl.gz")
    file = hosts.rings / "rows"
    replay_file.write(file, rows)
    host = ["env", f"STANDIN_REPLAY={file}", str(plain.program("host"))]
    process = hosts.start(plain, "steps=20", "kernels=0", command=host, level="continuous")
    hosts.end(process)
    reader = hosts.reader()
    reader.drain()
    assert reader.drops() == dict.fromkeys(reader.drops(), 0)
    records = reader.records
    kernels = [r for r in rows if r["t"] == "kernel"]
    assert records.names(records.kernel) == [r["name"] for r in kernels]
    expected = {
        "start": "start", "end": "end", "correlation": "corr", "stream": "stream",
        "node": "graph_node", "graph": "graph_id", "registers": "regs",
        "static_shared": "static_smem", "dynamic_shared": "dynamic_smem",
        "executed_shared": "smem_executed", "local": "local_per_thread",
        "launch_type": "launch_type", "device": "dev", "context": "ctx",
    }  # fmt: skip
    for ours, theirs in expected.items():
        assert records.kernel[ours].tolist() == [r[theirs] for r in kernels], ours
    for shape in ("grid", "block", "cluster"):
        ours = np.stack([records.kernel[f"{shape}_{axis}"] for axis in "xyz"], axis=1)
        assert ours.tolist() == [r[shape] for r in kernels], shape
    copies = [r for r in rows if r["t"] == "memcpy"]
    own = records.memcpy[records.memcpy["bytes"] != 4096]  # the host's own copies have 4,096
    assert own["bytes"].tolist() == [r["bytes"] for r in copies if r["bytes"] != 4096]
    calls = {r["corr"]: r["tid"] for r in rows if r["t"] == "api"}
    assert {
        int(c): int(t)
        for c, t in zip(records.api["correlation"], records.api["thread"], strict=True)
        if int(c) in calls
    }.keys() == calls.keys()


def test_capture_order_gives_graph_nodes_their_launch(shared_data: Path) -> None:
    """What docs/agent.md says of graphs: launches seen during the capture, in their order, are
    the nodes of the graph in the order of their ids."""
    rows = replay_file.read(shared_data / "cupti" / "graph_node_s1.jsonl.gz")
    every = replay_file.gzip.open(shared_data / "cupti" / "graph_node_s1.jsonl.gz", "rt")
    with every as file:
        launches = [
            row for line in file if (row := replay_file.json.loads(line))["t"] == "api"
            and "Launch" in row["name"]
        ]  # fmt: skip
    kernels = [r for r in rows if r["t"] == "kernel"]
    ran = {r["corr"] for r in kernels}
    captured = [r for r in launches if r["corr"] not in ran]
    nodes = {r["graph_node"] for r in kernels if r["graph_id"]}
    assert len(captured) == len(nodes) == 261
