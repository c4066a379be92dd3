"""Waits and queries of a program that polls, as spans of the daemon, against what it did.

python -m bench.agent_waits              on an NVIDIA GPU
python -m bench.agent_waits --stand-in   without one
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from spanlite.kinds import CALL_KINDS, SpanKind
from spanlite_collectors.agent.source import RingOptions, RingSource
from spanlite_collectors.sinks import MemorySink

from bench._agent_turns import LIBRARY, ROOT, STAND_IN
from bench._report import emit

STEPS = 60


def poll_torch() -> dict[str, int]:
    """Steps that ask an event and a stream until their work is done; how often which answered."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    left = torch.randn((4096, 4096), device="cuda", dtype=torch.bfloat16)
    event, stream = torch.cuda.Event(), torch.cuda.current_stream()
    did = {"cudaEventQuery": 0, "cudaStreamQuery": 0, "still_running": 0}
    for number in range(STEPS):
        push(f"step:{number}")
        push("poll")
        for _ in range(4):
            torch.mm(left, left)
        event.record()
        while not event.query():
            did["still_running"] += 1
        did["cudaEventQuery"] += 1
        torch.mm(left, left)
        while not stream.query():
            did["still_running"] += 1
        did["cudaStreamQuery"] += 1
        torch.cuda.synchronize()
        pop()
        pop()
    return did


def poll_stand_in() -> dict[str, int]:
    """The same on the tests' stand-in device, which has no query of a stream."""
    cuda, shim = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvtx_shim.so")
    cuda.cuInit(0)
    cuda.standin_context(0)
    did = {"cudaEventQuery": 0, "still_running": 0}
    for number in range(STEPS):
        shim.shim_push(f"step:{number}".encode())
        shim.shim_push(b"poll")
        cuda.standin_launch(7, b"kernel", ctypes.c_uint64(300_000))
        while not cuda.standin_query() & 1:
            did["still_running"] += 1
            time.sleep(0.0001)
        did["cudaEventQuery"] += 1
        cuda.cuCtxSynchronize()
        shim.shim_pop()
        shim.shim_pop()
    return did


def record(stand_in: bool) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """What the program says, and all spans."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as rings:
        environment = os.environ | {
            "CUDA_INJECTION64_PATH": str(LIBRARY), "NVTX_INJECTION64_PATH": str(LIBRARY),
            "SPANLITE_AGENT_DIR": rings, "SPANLITE_AGENT_LEVEL": "continuous",
        }  # fmt: skip
        environment |= {"LD_LIBRARY_PATH": str(STAND_IN)} if stand_in else {}
        words = ["--work", *(["--stand-in"] if stand_in else [])]
        done = subprocess.run(
            [sys.executable, "-m", "bench.agent_waits", *words], env=environment, cwd=ROOT,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        sink = MemorySink()
        source = RingSource(sink, RingOptions([Path(rings)]))
        source.step()
        source.step()
    spans = [row for batch, _ in sink.written for row in batch.to_pylist()]
    return json.loads(done.stdout.splitlines()[-1]), spans


def judge(did: dict[str, int], spans: list[dict[str, Any]]) -> None:
    """Each query that found the work done has a call in its range, and a wait under the call."""
    by_id = {row["span_id"]: row for row in spans}
    waits = [row for row in spans if row["kind"] == int(SpanKind.SYNC)]
    queries = [row for row in spans if row["kind"] in CALL_KINDS and "Query" in row["name"]]
    nothing: dict[str, Any] = {"name": None, "start_ns": 0, "duration_ns": 0, "parent_span_id": 0}
    chains: Counter[str] = Counter()
    odd = 0
    for wait in waits:
        call = by_id.get(wait["parent_span_id"], nothing)
        range_ = by_id.get(call["parent_span_id"], nothing)
        chains[f"{wait['name']} < {call['name']} < {range_['name']}"] += 1
        end = wait["start_ns"] + wait["duration_ns"]
        inside = call["start_ns"] <= wait["start_ns"]
        odd += not (inside and end <= call["start_ns"] + call["duration_ns"])
    calls = Counter(row["name"] for row in queries)
    wrong = sum(abs(calls[name] - count) for name, count in did.items() if "Query" in name)
    parents = dict.fromkeys(calls, 0)
    for row in queries:
        parents[row["name"]] += by_id.get(row["parent_span_id"], nothing)["name"] == "poll"
    emit("agent.waits_queries_wrong", wrong, "spans", 0, did=did, calls=dict(calls),
         in_their_range=parents)  # fmt: skip
    emit("agent.waits_outside_their_call", odd, "spans", 0, waits=len(waits),
         chains=dict(chains.most_common(12)))  # fmt: skip


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stand-in", action="store_true", help="try it without a GPU")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="nothing is left out: it is short")
    args = parser.parse_args()
    if args.work:
        print(json.dumps(poll_stand_in() if args.stand_in else poll_torch()))
    elif args.stand_in or Path("/dev/nvidiactl").exists():
        judge(*record(args.stand_in))
    else:
        print("bench.agent_waits needs an NVIDIA GPU, or --stand-in", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
