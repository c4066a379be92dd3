"""What PM sampling says of kernels whose counters are known, through the daemon's own sampler.

python -m bench.pm_truth                 on an NVIDIA GPU: what the daemon samples, and its CPU
python -m bench.pm_truth --candidates    other counters of the same things, too
python -m bench.pm_truth --names warp    what CUPTI knows by that name; needs no GPU
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from spanlite.errors import ServiceError
from spanlite_collectors.agent.pm import (
    METRICS,
    CuptiPmDevice,
    PmSampler,
    PmSamples,
    library_path,
)

from bench._pm_names import ABOUT, CANDIDATES, MetricNames
from bench._report import emit

#: A sample at an edge of the kernel's time is left out.
MARGIN_NS = 4_000_000
#: Somebody else may have the counters for a while.
PATIENCE_S = 12.0
CLOCK, BYTES = "sm__cycles_elapsed.avg.per_second", "dram__bytes.sum.per_second"


class Child:
    """The process that runs the kernels."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench._pm_kernels"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = self._line()

    def run(self, case: str) -> dict[str, Any]:
        """One case, from its begin to its end."""
        assert self.process.stdin is not None
        print(case, file=self.process.stdin, flush=True)
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the kernels' process ended with {self.process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def opened(metrics: list[str]) -> CuptiPmDevice:
    """A sampler of the first GPU, once nobody else has the counters."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return CuptiPmDevice(metrics=metrics)
        except ServiceError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def inside(samples: PmSamples, answer: dict[str, Any]) -> Any:
    """Values of the samples that lie in the kernel's time, shape (n, metrics)."""
    begin, end = answer["begin_ns"] + MARGIN_NS, answer["end_ns"] - MARGIN_NS
    return samples.values[(samples.start >= begin) & (samples.end <= end)]


def judge(child: Child, word: str, more: list[str]) -> None:
    """All cases while these are sampled, or, where there are none, the daemon's own."""
    metrics = list(dict.fromkeys([*(more or METRICS.values()), CLOCK, BYTES]))
    device = opened(metrics)
    try:
        for case in child.about["cases"]:
            if not case.startswith(ABOUT.get(word, "")):
                continue
            device.read()
            answer = child.run(case)
            time.sleep(0.01)
            samples = device.read()
            values: Any = inside(samples, answer) if "truth" in answer else ()
            if not len(values):
                emit(f"agent.pm_failed.{case}", 1, "cases", 0, metrics=word,
                     error=answer.get("failed", "no sample"))  # fmt: skip
                continue
            if case == "spin_64" and not more:
                edges(samples, answer)
            report(case, word, answer["truth"], dict(zip(metrics, values.T, strict=True)), more)
    finally:
        device.close()


def edges(samples: PmSamples, answer: dict[str, Any]) -> None:
    """How far the samples' begin and end of the activity are from the host's."""
    near = (samples.end > answer["begin_ns"] - MARGIN_NS) & (
        samples.start < answer["end_ns"] + MARGIN_NS
    )
    share = samples.values[near, list(METRICS).index("gpu.active_pct")] / 100
    busy = np.flatnonzero(share > 0.05)
    start, end = samples.start[near], samples.end[near]
    first, last = busy[0], busy[-1]
    begin_ns = end[first] - share[first] * (end[first] - start[first])
    end_ns = start[last] + share[last] * (end[last] - start[last])
    for word, found, host in (("begin", begin_ns, "begin_ns"), ("end", end_ns, "end_ns")):
        emit(f"agent.pm_edge_us.{word}", (found - answer[host]) / 1e3, "us",
             sample_us=round(float(end[first] - start[first]) / 1e3))  # fmt: skip


def report(
    case: str, word: str, truth: dict[str, float], found: dict[str, Any], more: list[str]
) -> None:
    """Each of ours against the truth, where there is one; the candidates as they are."""
    clock_hz = float(np.median(found[CLOCK]))
    if "tensor_cycles_per_s" in truth and clock_hz:
        truth["gpu.tensor_pct"] = 100 * truth["tensor_cycles_per_s"] / clock_hz
    for name, metric in METRICS.items() if not more else ():
        values = found[metric]
        middle = float(np.median(values))
        known: dict[str, Any] = {"quartiles": np.percentile(values, [25, 75]).round(2).tolist()}
        if name in truth:
            known |= {"truth": round(truth[name], 2), "error": round(middle - truth[name], 2)}
        emit(f"agent.pm_truth.{case}.{name}", middle, "%", samples=len(values), **known)
    shown = {m: float(f"{np.median(v):.5g}") for m, v in found.items()}
    if more or case.startswith(("dram", "matmul")):
        emit(f"agent.pm_counters.{case}", len(next(iter(found.values()))), "samples", metrics=word,
             truth=truth, median=shown)  # fmt: skip


def costs(seconds: float) -> None:
    """The sampler's own CPU, polled as the daemon does."""
    device = opened(list(METRICS.values()))
    sampler = PmSampler([device])
    sampler.start()
    began = time.monotonic()
    time.sleep(seconds)
    wall, cpu, count = time.monotonic() - began, sampler.cpu_seconds, sampler.samples
    sampler.stop()
    emit("agent.pm_cores", cpu / wall, "cores", 0.1, samples_per_s=round(count / wall),
         overflows=sampler.overflows)  # fmt: skip


def list_names(word: str) -> None:
    """What there is, whether it fits beside what the daemon samples, and its endings."""
    known = MetricNames()
    ours = list(METRICS.values())
    emit("agent.pm_passes", known.passes(ours), "passes", 1, metrics=ours)
    for name, (description, dimension) in known.names(word).items():
        subs = known.sub_metrics(name)
        if subs:
            emit(f"agent.pm_name.{name}", known.passes([*ours, name + subs[0]]), "passes", 1,
                 description=description, dimension=dimension, sub_metrics=len(subs))  # fmt: skip


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", action="store_true")
    parser.add_argument("--names", metavar="WORD")
    parser.add_argument("--quick", action="store_true", help="nothing is left out: it is short")
    args = parser.parse_args()
    if args.names is not None:
        list_names(args.names)
        return 0
    if not Path("/dev/nvidiactl").exists() or not library_path().exists():
        print("bench.pm_truth needs an NVIDIA GPU and `make agent`", file=sys.stderr)
        return 0
    child = Child()
    emit(
        "agent.pm_gpu", child.about["dram_peak_bytes_per_s"] / 1e12, "TB/s", sms=child.about["sms"]
    )
    try:
        for word, more in {"ours": [], **(CANDIDATES if args.candidates else {})}.items():
            try:
                judge(child, word, more)
                if not more:
                    costs(4)
            except Exception:  # the other sets are worth having
                traceback.print_exc()
    finally:
        child.process.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
