"""What else a replay on a GPU can run: a small workload for each feature, checked by CUPTI.

Needs an NVIDIA GPU. `clusters`, `mover` (kernels that move the bytes that were recorded), `copies`
(each direction), `memsets` and `allreduce` (ops mode) are generated plans of 40 launches; `core`:
kernels compiled through cuda-core, without CuPy; `command` is `spanlite replay ARCHIVE --target gpu
--aa` with all its files. Each feature prints how many spans ran (of how many) and how far their
durations were off: `replay.feature_ran.<name>`, `replay.feature_duration_error_us.p95.<name>`.

    python -m bench.h200.replay_features --results bench/results/replay_features.jsonl
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from spanlite.archive import schema
from spanlite.archive.layout import INCOMING, Archive
from spanlite.archive.writer import SpanFileBuilder
from spanlite.codec import Batch, BatchView, encode_batch
from spanlite.v1 import spanlite_pb2 as pb
from spanlite_collectors.importers import import_file
from spanlite_collectors.sinks import MemorySink
from spanlite_replay.commands._faithful import fidelity_of
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording
from spanlite_replay.runner import run_plan
from spanlite_replay.targets.gpu.driver import Launch, StandIn
from spanlite_replay.targets.gpu.open import open_target
from spanlite_replay.targets.gpu.structs import LaunchAttribute
from spanlite_replay.targets.gpu.target import GpuTarget

from bench._recordings import RECORDINGS
from bench._report import emit

HOUR_NS = 1_796_108_400_000_000_000
LAUNCHES, US = 40, 1_000
GRID = dict.fromkeys(("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"), 1) | {
    "grid_x": 64, "block_x": 128, "registers_per_thread": 32, "static_shared_bytes": 0,
    "dynamic_shared_bytes": 0,
}  # fmt: skip
_ROW = {"name": "k", "status": "unset", "service": "s", "host": "h", "process_id": 1, "flags": 0,
        "resource": "{}", "sampling_weight": 1.0, "clock_offset_ns": 0,
        "clock_uncertainty_ns": 0}  # fmt: skip
AROUND: dict[str, Any] = {}
RESULTS: Path | None = None


def put(metric: str, value: float, unit: str, **more: Any) -> None:
    emit(metric, value, unit, **more)
    if RESULTS is not None:
        with RESULTS.open("a", encoding="utf-8") as file:
            row = {"metric": metric, "value": round(float(value), 4), "unit": unit}
            file.write(json.dumps(row | more | AROUND) + "\n")


def plan_of(spans: list[dict[str, Any]]) -> Plan:
    """Each span behind a call of its own, 100 us apart."""
    rows: list[dict[str, Any]] = []
    for number, span in enumerate(spans):
        at = HOUR_NS + number * 100 * US
        call = {"kind": "runtime_call", "name": "cudaLaunch", "thread_id": 1, "start_ns": at,
                "duration_ns": 2 * US}  # fmt: skip
        if "operator" in span:
            told = json.dumps(span.pop("told"))
            rows.append({"kind": "operator", "name": span.pop("operator"), "thread_id": 1,
                         "start_ns": at - US, "duration_ns": 4 * US,
                         "attributes": told})  # fmt: skip
            call["parent_span_id"] = len(rows)
        device = {"device": 0, "context": 1, "stream": 7, "start_ns": at + 5 * US,
                  "parent_span_id": len(rows) + 1}  # fmt: skip
        rows += [call, device | span]
    full = [
        {"trace_id": f"{1:032x}", "span_id": number + 1, **_ROW, **row}
        for number, row in enumerate(rows)
    ]
    columns = [pa.array([row.get(item.name) for row in full], item.type) for item in schema.SPANS]
    table = pa.Table.from_arrays(columns, schema=schema.SPANS)
    return build_plan(Recording.from_table(table), PlanSettings()).with_work("stream")


def kernels(lengths_us: list[int], **more: Any) -> list[dict[str, Any]]:
    """As many as LAUNCHES."""
    return [
        {"kind": "kernel", "duration_ns": lengths_us[i % len(lengths_us)] * US, **GRID, **more}
        for i in range(LAUNCHES)
    ]


def clusters() -> list[dict[str, Any]]:
    """Of 2, 4, 8 and 16 blocks (16 is more than is portable)."""
    sizes = [2, 4, 8, 16]
    return [
        span | {"cluster_x": sizes[i % 4], "cluster_y": 1, "cluster_z": 1}
        for i, span in enumerate(kernels([5, 12, 30]))
    ]


def mover() -> list[dict[str, Any]]:
    """4 to 64 MiB, read and written, at half of the memory's speed."""
    spans = []
    for i, span in enumerate(kernels([1])):
        size = 4 << 20 << i % 5
        spans.append(span | {"grid_x": 264, "block_x": 512, "bytes": size,
                             "duration_ns": 4_000 + size * 1_000 // 2_000_000})  # fmt: skip
    return spans


def mover_alone() -> list[dict[str, Any]]:
    """64 MiB in no time: as fast as the mover is."""
    return [span | {"duration_ns": US, "bytes": 64 << 20} for span in mover()]


def copies() -> list[dict[str, Any]]:
    """64 KiB to 16 MiB each way; recorded durations are those of PCIe 5 and of HBM."""
    ways = {"htod": 50, "dtoh": 50, "dtod": 1_500}
    spans = []
    for i in range(LAUNCHES):
        way, size = list(ways)[i % 3], 64 << 10 << i // 3 % 5 * 2
        spans.append({"kind": "memcpy", "copy_kind": way, "bytes": size,
                      "duration_ns": 2_000 + size // ways[way]})  # fmt: skip
    return spans


def memsets() -> list[dict[str, Any]]:
    """64 KiB to 16 MiB."""
    return [
        {"kind": "memset", "bytes": 64 << 10 << i % 5 * 2, "duration_ns": 2_000 + (i % 5) * 1_000}
        for i in range(LAUNCHES)
    ]


def allreduce() -> list[dict[str, Any]]:
    """NCCL's kernels of 8 MiB with their operator, for ops mode: one pass stands in for each."""
    size = 8 << 20
    told = {"Input Dims": [[size // 2]], "Input type": ["c10::BFloat16"]}
    more = {"name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "grid_x": 24, "block_x": 640,
            "registers_per_thread": 96, "dynamic_shared_bytes": 80 << 10, "bytes": size,
            "operator": "c10d::allreduce_", "told": told}  # fmt: skip
    return [span | more for span in kernels([8])]


FEATURES: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "clusters": clusters,
    "mover": mover,
    "mover_alone": mover_alone,
    "copies": copies,
    "memsets": memsets,
    "allreduce": allreduce,
}


#: Those whose recorded durations are to be kept; copies and memsets take what they take.
TIMED = ("clusters", "mover", "core", "cuda12")


def run_feature(name: str) -> None:
    """Run it in timing mode, and print what came of it."""
    spans = FEATURES[name]()
    plan = plan_of([dict(span) for span in spans])
    target = open_target(f"feature-{name}", "ops" if name == "allreduce" else "timing")
    clusters_seen = watch_clusters(target)
    report = run_plan(plan, target)
    fidelity = fidelity_of(plan, report, None)
    AROUND.update({key: report.facts[key] for key in ("gpu", "driver") if key in report.facts})
    put(f"replay.feature_ran.{name}", fidelity.spans - fidelity.lost, "spans", of=LAUNCHES)
    put(f"replay.feature_violations.{name}", fidelity.violations, "edges", goal=0)
    if name in TIMED:
        put(f"replay.feature_duration_error_us.p95.{name}", fidelity.durations.p95_us, "us")
    if name == "allreduce":
        put(f"replay.feature_coverage_pct.{name}", target.coverage.count_pct, "%", goal=100)
    if clusters_seen:
        same = sum(asked == found for asked, found in clusters_seen)
        put(f"replay.feature_clusters.{name}", same, "nodes", of=len(clusters_seen))
    assert report.observed is not None and plan.work is not None
    seen = report.observed.sort_by("planned_start_ns")
    took = (seen["end_ns"].to_numpy() - seen["start_ns"].to_numpy()) / US
    size = plan.recording.integers("bytes", plan.work.row[plan.work.is_device], 0)
    print(name, "took us", took.round(1).tolist(), json.dumps(report.facts), file=sys.stderr)
    if size.any() and len(size) == len(took):
        ways = np.array([span.get("copy_kind", "") for span in spans])
        for way in np.unique(ways).tolist():
            mine = ways == way
            best = float((size[mine] / took[mine] / 1e3).max())
            word = f"{name}.{way}" if way else name
            put(f"replay.feature_moved_gb_s.{word}", best, "GB/s", largest=int(size[mine].max()))


def watch_clusters(target: GpuTarget) -> list[tuple[object, object]]:
    """Ask CUDA for the cluster of each stand-in as it is added: (asked for, found)."""
    driver, seen = target.driver, []
    add = driver.add_stand_in

    def added(graph: int, after: Sequence[int], launch: Launch, work: StandIn) -> int:
        node = add(graph, after, launch, work)
        if any(launch.cluster):
            value = LaunchAttribute()
            pointer = ctypes.c_void_p(node)
            driver._call("cuGraphKernelNodeGetAttribute", pointer, 4, ctypes.byref(value))  # type: ignore[attr-defined]
            seen.append((launch.cluster, tuple(value.cluster)))
        return node

    driver.add_stand_in = added  # type: ignore[method-assign]
    return seen


def write_archive(root: Path, recording: Path) -> Path:
    """The recording as an archive."""
    archive, sink = Archive.create(root, 1), MemorySink()
    import_file(recording, sink)
    builder = SpanFileBuilder()
    header = pb.BatchHeader(bucket=0, bucket_count=1, producer="bench")
    for batch, resource in sink.written:
        builder.add(BatchView(encode_batch(Batch(header, batch, resource))))
    for number, (hour, data, _) in enumerate(builder.finish()):
        folder = archive.root / INCOMING / hour / "bucket=0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"part-{number}.parquet").write_bytes(data)
    return root


def run_command(keep: Path | None) -> None:
    """`spanlite replay` from an archive, in both modes, with every file that it can write."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        archive = write_archive(root / "archive", RECORDINGS / "eager_s1.json.gz")
        for mode in ("timing", "ops"):
            files = [root / f"{mode}.{end}" for end in ("html", "json", "parquet")]
            begin = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "spanlite", "replay", str(archive), "--target", "gpu",
                 "--mode", mode, "--aa", "--html", str(files[0]), "--chrome", str(files[1]),
                 "--out", str(files[2]), "--replay-id", f"bench-{mode}", "--json"],
                capture_output=True, text=True, timeout=45, check=False,
            )  # fmt: skip
            put(f"replay.command_exit.{mode}", done.returncode, "exit code", goal=0)
            put(f"replay.command_seconds.{mode}", time.monotonic() - begin, "s")
            print(done.stderr[-1500:], file=sys.stderr)
            if done.returncode:
                print(done.stdout[-2000:], file=sys.stderr)
                continue
            fidelity = json.loads(done.stdout)["fidelity"]
            put(
                f"replay.command_grade.{mode}", "ABCDF".index(fidelity["grade"]["letter"]), "0 is A"
            )
            for path in files:
                put(f"replay.command_bytes.{mode}.{path.suffix[1:]}", path.stat().st_size, "bytes")
                if keep is not None:
                    (keep / path.name).write_bytes(path.read_bytes())


def run_core() -> None:
    """Kernels through cuda-core, without CuPy."""
    from spanlite_replay.targets.gpu import compiling

    original = compiling._with_cupy

    def without(*_: Any) -> bytes:
        raise ImportError("CuPy is left out")

    compiling._with_cupy = without
    compiling.compiled.cache_clear()
    try:
        FEATURES["core"] = lambda: kernels([3, 10, 40])
        run_feature("core")
    finally:
        compiling._with_cupy = original
        compiling.compiled.cache_clear()


def run_cuda12(folder: Path, cupti: Path) -> None:
    """Kernels that CUDA 12's NVRTC compiled elsewhere, measured by CUDA 12's CUPTI."""
    from spanlite_replay.targets.gpu import compiling
    from spanlite_replay.targets.gpu import cupti as measuring

    def read(_: str, __: str, options: tuple[str, ...]) -> bytes:
        return (folder / f"registers_{options[-1].rpartition('=')[2]}.cubin").read_bytes()

    library = ctypes.CDLL(str(cupti))  # the one that is mapped is taken
    version = ctypes.c_uint32()
    library.cuptiGetVersion(ctypes.byref(version))
    AROUND["cupti"] = version.value
    compiling._with_cupy = read
    compiling.compiled.cache_clear()
    FEATURES["cuda12"] = lambda: kernels([3, 10, 40])
    run_feature("cuda12")
    mapped = list(measuring._mapped())
    print(f"CUPTI {version.value} of {mapped}", file=sys.stderr)


def main() -> int:
    global RESULTS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the command")
    parser.add_argument("--only", help="one of them")
    parser.add_argument("--results", type=Path, help="add the figures to this file")
    parser.add_argument("--keep", type=Path, help="folder for the files of the command")
    parser.add_argument(
        "--cubins", type=Path, help="of bench/h200/replay_cubins.py: run `cuda12` alone"
    )
    parser.add_argument("--cupti", type=Path, help="libcupti.so.12, for `cuda12`")
    args = parser.parse_args()
    RESULTS = args.results
    AROUND.update(
        command="python -m bench.h200.replay_features",
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    failed = 0
    parts: list[tuple[str, Callable[[], None]]] = [
        (name, lambda name=name: run_feature(name)) for name in FEATURES
    ]
    parts.insert(0, ("core", run_core))
    if not args.quick:
        parts.append(("command", lambda: run_command(args.keep)))
    if args.cubins:
        parts = [("cuda12", lambda: run_cuda12(args.cubins, args.cupti))]
    for name, part in parts:
        if args.only not in (None, name):
            continue
        try:
            part()
        except Exception:
            failed += 1
            print(f"{name}:", file=sys.stderr)
            traceback.print_exc()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
