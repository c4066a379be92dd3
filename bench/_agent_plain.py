"""A plain CUDA program (bench/h200/agent_plain.cpp) under the agent, with several CUPTIs.

What arrives is compared with what the program says it launched. The same program shows the other
activities (waits, overheads, ids of other libraries) and what opens windows: a slow step, a queue
that grows, the GPU's own clocks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from spanlite_collectors.agent.layout import RecordType, WindowReason

from bench._agent_rings import Drained, RingDrain, account, whole_steps
from bench._agent_turns import LIBRARY
from bench._report import emit

STEPS, SLOW_STEP = 200, 100


def plain(folder: Path) -> None:
    """Each program with each libcupti of the folder and with the machine's own; then triggers."""
    found = {str(path.parent.relative_to(folder)): path for path in folder.rglob("libcupti.so.1*")}
    cuptis = {name.replace(".", "_").strip("_") or "beside": p for name, p in sorted(found.items())}
    programs = sorted(folder.glob("agent_plain_*"))
    parts: dict[str, Callable[[], None]] = {}
    for program in programs:
        for word, path in (cuptis | {"machine": machine_cupti()}).items():
            pair = f"{program.name.removeprefix('agent_plain_')}.{word}"
            parts[pair] = partial(records, program, path, pair)
            parts[f"{pair}.windows"] = partial(windows, program, path, pair)
    parts["slo"] = partial(slow_step, programs[-1])
    parts["queue"] = partial(growing_queue, programs[-1])
    parts["nvml"] = clocks
    for word, part in parts.items():
        try:
            part()
        except Exception as error:  # the others are worth having
            emit(f"agent.plain_failed.{word}", 1, "failures", 0,
                 error=f"{type(error).__name__}: {error}"[:500])  # fmt: skip


def machine_cupti() -> Path | None:
    """The one of the Python packages; None: the agent looks for the toolkit's."""
    found = [p for base in sys.path for p in Path(base).glob("nvidia/*/lib/libcupti.so.1*")]
    return found[0] if found else None


def _environment(rings: str, cupti: Path | None, **settings: str) -> dict[str, str]:
    own = {
        "CUDA_INJECTION64_PATH": str(LIBRARY),
        "NVTX_INJECTION64_PATH": str(LIBRARY),
        "SPANLITE_AGENT_DIR": rings,
        "SPANLITE_AGENT_ACTIVITIES": "sync,overhead,external",
    }
    if cupti is not None:
        own["SPANLITE_AGENT_CUPTI"] = str(cupti)
    return os.environ | own | {f"SPANLITE_AGENT_{key}": value for key, value in settings.items()}


def _run(program: Path, cupti: Path | None, slow: int, **settings: str) -> tuple[Any, Drained]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as rings:
        command = [str(program), str(STEPS), str(slow)]
        done = subprocess.run(command, env=_environment(rings, cupti, **settings),
                              capture_output=True, text=True, timeout=60)  # fmt: skip
        drain = RingDrain(Path(rings))
        drain.stop()
    if done.returncode != 0:
        raise RuntimeError(f"{done.returncode}: {done.stderr}")
    if not drain.drained:
        raise RuntimeError(f"no ring: {done.stderr}")
    return json.loads(done.stdout) | {"said": done.stderr}, next(iter(drain.drained.values()))


def records(program: Path, cupti: Path | None, word: str) -> None:
    """Every kernel, copy and id that the program launched, and its waits."""
    launched, mine = _run(program, cupti, -1, LEVEL="continuous")
    expected = {"kernel": launched["kernels"], "memcpy": launched["copies"],
                "external": launched["external"], "step": launched["steps"]}  # fmt: skip
    missing = {kind: wanted - mine.seen.get(kind, 0) for kind, wanted in expected.items()}
    emit(f"agent.plain_missing.{word}", sum(map(abs, missing.values())), "records", 0,
         missing={k: n for k, n in missing.items() if n}, seen=mine.seen, drops=mine.drops,
         runtime=launched["runtime"], driver=launched["driver"], cupti=mine.cupti_version,
         said=launched["said"])  # fmt: skip


def windows(program: Path, cupti: Path | None, word: str) -> None:
    """Windows one after the other, each ending in a detach, and the result of the program."""
    launched, mine = _run(
        program, cupti, -1, LEVEL="windows", WINDOW_STEPS="5", WINDOW_SECONDS="0",
        BUDGET_PCT="100000", DETACH_MIB_PER_DAY="0",
    )  # fmt: skip
    expected = 0.0
    for _ in range(STEPS):
        expected = expected / 8 + 8
    wrong = abs(launched["first"] - expected) > 1e-4
    emit(f"agent.plain_detaches.{word}", mine.state["detaches"], "detaches",
         windows=mine.state["windows"], wrong_results=int(wrong), drops=mine.drops,
         whole_steps=len(whole_steps(mine)), lacking=account(mine).lacking,
         said=launched["said"])  # fmt: skip


def _reasons(mine: Drained) -> dict[str, int]:
    windows = mine.rows(RecordType.WINDOW)
    found: dict[str, int] = {}
    for window in windows if windows is not None else ():
        word = WindowReason(int(window["reason"])).name.lower()
        found[word] = found.get(word, 0) + int(window["steps"])
    return found


def slow_step(program: Path) -> None:
    """A step over its SLO opens a window."""
    _, mine = _run(program, machine_cupti(), SLOW_STEP, LEVEL="windows", STEP_SLO_MS="10",
                   LEARN_SECONDS="0", WINDOW_SECONDS="1000000")  # fmt: skip
    emit("agent.trigger_steps.slo", _reasons(mine).get("slo", 0), "steps",
         windows=_reasons(mine))  # fmt: skip


def growing_queue(program: Path) -> None:
    """A queue that grows asks for a window, through the daemon's own code."""
    from spanlite_collectors.agent.triggers import CaptureTrigger, QueueWatch

    with tempfile.TemporaryDirectory(dir="/dev/shm") as rings:
        environment = _environment(
            rings, machine_cupti(), LEVEL="windows", WINDOW_SECONDS="1000000"
        )
        drain, said = RingDrain(Path(rings)), list[str]()
        process = subprocess.Popen([str(program), "60000"], env=environment,
                                   stdout=subprocess.PIPE, text=True)  # fmt: skip
        asks = CaptureTrigger(drain, said.append, "queue", WindowReason.QUEUE)
        watch = QueueWatch(asks)
        deadline = time.monotonic() + 10
        while not any(m.state.get("windows") for m in drain.drained.values()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        for length in (2, 2, 40):
            watch.see("queue", "queue.length", length)
        process.wait(60)
        drain.stop()
        mine = next(iter(drain.drained.values()))
        emit("agent.trigger_steps.queue", _reasons(mine).get("queue", 0), "steps",
             asked=said, windows=_reasons(mine))  # fmt: skip


def clocks() -> None:
    """What NVML says about clocks held down, at this moment."""
    from spanlite_collectors.agent.nvml import open_nvml

    said: list[str] = []
    sampler = open_nvml(said.append)
    if sampler is None:
        emit("agent.trigger_nvml", 0, "readings", said=said)
        return
    held: list[str] = []
    sampler.on_throttle = held.append
    sampler.sample()
    readings = [sample for family in sampler.collect() for sample in family.samples]
    throttled = [sample for sample in readings if sample.name == "hw_gpu_throttled"]
    emit("agent.trigger_nvml", len(readings), "readings", reasons=len(throttled), held=held,
         said=said)  # fmt: skip
