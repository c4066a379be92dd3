"""Whether a replayed graph's kernels land on the right layer and stage.

    python -m bench.agent_overhead --parts attribution --keep FOLDER   # on the GPU
    python -m bench.agent_attribution FOLDER                            # anywhere: judges its ring

One process under the agent replays a graph of a decoder and then runs the same decoder eagerly.
The ring that it leaves behind is read by the daemon's own code. A kernel of an eager step has the
stage of the range around its launch, which is the truth; the same kernel of a replay (the same
place in the order of the device's time, the same name) must have been given the same.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from bench._report import emit

STEPS = 30


def attribution(stand_in: bool, keep: str | None) -> None:
    """Record; judge here where the daemon can run, else leave the ring in `keep`."""
    from bench._agent_turns import start

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        settings = {"LEVEL": "continuous", "RING_BYTES": str(8 << 20)}
        worker = start("attribution", settings, Path(folder), stand_in)
        for run in ("graphs_600us", "eager"):
            worker.ask(run=run, steps=STEPS)
            worker.answer()
        worker.end()
        (ring,) = Path(folder).glob("*.ring")
        if keep:
            shutil.copyfile(ring, Path(keep) / ring.name)
            emit("agent.attribution_ring", ring.stat().st_size, "B", file=ring.name)
        try:
            rows = spans_of(Path(folder))
        except ImportError as error:
            judge = f"python -m bench.agent_attribution {keep or 'FOLDER'}"
            emit("agent.attribution_recorded", int(keep is not None), "runs",
                 note=f"no {error.name} here; judge it with: {judge}")  # fmt: skip
            return
        report(rows)


def spans_of(folder: Path) -> list[dict[str, Any]]:
    """The kernels that the daemon makes of the rings in a folder, which it removes."""
    from spanlite.kinds import SpanKind
    from spanlite_collectors.agent.source import RingOptions, RingSource
    from spanlite_collectors.sinks import MemorySink

    sink = MemorySink()
    source = RingSource(sink, RingOptions([folder]))
    source.step()
    source.stop()
    columns = ["kind", "name", "start_ns", "duration_ns", "trace_id_low", "correlation_id",
               "graph_id", "attributes"]  # fmt: skip
    rows = [row for batch, _ in sink.written for row in batch.select(columns).to_pylist()]
    kernels = [row for row in rows if row["kind"] == SpanKind.KERNEL]
    for row in kernels:
        row["said"] = json.loads(row["attributes"]) if row["attributes"] else {}
    return kernels


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["start_ns"]))


def truth(kernels: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(name, stage) of each kernel of an eager step, in order: what most eager steps say."""
    steps: dict[int, list[dict[str, Any]]] = {}
    for row in kernels:
        if not row["graph_id"]:
            steps.setdefault(row["trace_id_low"], []).append(row)
    found = Counter(
        tuple((row["name"], row["said"].get("stage", "")) for row in _in_order(step))
        for step in steps.values()
        if any("stage" in row["said"] for row in step)
    )
    return list(found.most_common(1)[0][0]) if found else []


def report(kernels: list[dict[str, Any]]) -> None:
    """Shares of the kernel time of all replays: right, wrong, not known, without a counterpart."""
    order = truth(kernels)
    replays: dict[int, list[dict[str, Any]]] = {}
    for row in kernels:
        if row["graph_id"]:
            replays.setdefault(row["correlation_id"], []).append(row)
    time_ns: Counter[str] = Counter()
    for replay in replays.values():
        for row, expected in zip(
            _in_order(replay), _aligned(_in_order(replay), order), strict=True
        ):
            time_ns[_verdict(row, expected)] += row["duration_ns"]
    total = sum(time_ns.values())
    share = {word: round(100 * ns / total, 3) for word, ns in time_ns.items()} if total else {}
    emit("agent.attributed_pct.graphs", share.get("right", 0.0), "%", 99, replays=len(replays),
         kernels=sum(map(len, replays.values())), eager_kernels=len(order),
         shares=share)  # fmt: skip


def _aligned(replay: list[dict[str, Any]], order: list[tuple[str, str]]) -> list[str | None]:
    """For each kernel of a replay the stage of the eager step's, by name and order; None: none."""
    out: list[str | None] = []
    at = 0
    for row in replay:
        ahead = next((i for i in range(at, min(at + 4, len(order))) if order[i][0] == row["name"]),
                     None)  # fmt: skip
        out.append(None if ahead is None else order[ahead][1])
        at = at if ahead is None else ahead + 1
    return out


def _verdict(row: dict[str, Any], expected: str | None) -> str:
    if expected is None:
        return "no_counterpart"
    if row["said"].get("stage.unknown"):
        return "unknown"
    return "right" if row["said"].get("stage", "") == expected else "wrong"


def main() -> int:
    """Judge a ring that was brought along."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    rings = sorted(args.folder.glob("*.ring"))
    if not rings:
        print(f"{args.folder} holds no ring", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / rings[-1].name
        shutil.copyfile(rings[-1], copy)
        copy.chmod(0o600)
        report(spans_of(Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
