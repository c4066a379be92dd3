"""How late replay sends, beside MLPerf LoadGen, aiperf and asyncio, in turns on one core.

Each pacer runs in a process of its own (see `bench._pacers`), pinned to `--cpu`, in rounds; all
events of all rounds count, so a stall of the machine is in the figure. Errors are the time at
which the pacer calls what sends the event, minus the deadline. `ratio` is the peer's figure over
ours: above 1, we are closer. `late_wakes_pct` says how busy the machine was meanwhile: the
share of 1 ms sleeps that returned more than 1 ms late. The peers come from
`scripts/pacing-peers FOLDER` and `PYTHONPATH=FOLDER`; one that is missing is left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from spanlite_replay.pacing import quiet_core
from spanlite_replay.timing import drift_us_per_s, rate

from bench.__main__ import surroundings
from bench._gpu import ask
from bench._report import emit

I64 = npt.NDArray[np.int64]
QUANTILES = {"p50": 50.0, "p99": 99.0, "p99.9": 99.9}
#: At the rate of the issue: errors in us, drift in us a second.
GOAL_RATE = 100_000
GOALS_US = {"p50": 1.0, "p99": 10.0, "p99.9": 100.0}
GOAL_DRIFT_US_PER_S = 1.0
#: What is compared under one schedule.
TURNS = {"constant": ("ours", "aiperf", "asyncio"), "poisson": ("ours", "loadgen")}
#: Events a second: rounds, seconds each.
FULL = {100_000: (3, 2.5), 10_000: (1, 2.0), 1_000: (1, 1.0)}
QUICK = {100_000: (2, 1.0), 10_000: (1, 1.0)}


@dataclass
class Seen:
    """Deadlines and sends of one pacer, round after round."""

    version: str = ""
    due: list[I64] = field(default_factory=list)
    seen: list[I64] = field(default_factory=list)

    def error_us(self, quantile: float) -> float:
        """Of all events of all rounds."""
        errors = [s - d for s, d in zip(self.seen, self.due, strict=True)]
        return float(np.percentile(np.concatenate(errors), quantile) / 1e3)

    def drift(self) -> float:
        """The median of the rounds, each with its own sign."""
        pairs = zip(self.due, self.seen, strict=True)
        return float(np.median([drift_us_per_s(d, s - d) for d, s in pairs]))

    def per_s(self) -> float:
        """Events a second, as sent."""
        return float(np.median([rate(np.sort(s)) for s in self.seen]))


def measure(pacer: str, schedule: str, per_s: int, seconds: float, cpu: int | None) -> Seen | None:
    """One round of one pacer; None where it cannot run here."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seen.npz"
        command = [
            sys.executable, "-m", "bench._pacers", pacer, "--schedule", schedule,
            "--rate", str(per_s), "--count", str(int(per_s * seconds)), "--out", str(out),
        ]  # fmt: skip
        command += [] if cpu is None else ["--cpu", str(cpu)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{pacer} left out: {done.stderr.strip()[-300:]}", file=sys.stderr, flush=True)
            return None
        with np.load(out) as found:
            return Seen(str(found["version"]), [found["due_ns"]], [found["seen_ns"]])


def compare(
    schedule: str, per_s: int, rounds: int, seconds: float, cpu: int | None
) -> dict[str, Seen]:
    """All pacers of a schedule, in turns."""
    all_seen: dict[str, Seen] = {}
    for turn in range(rounds):
        for pacer in TURNS[schedule]:
            if turn and pacer not in all_seen:
                continue
            one = measure(pacer, schedule, per_s, seconds, cpu)
            if one is not None:
                mine = all_seen.setdefault(pacer, Seen(one.version))
                mine.due += one.due
                mine.seen += one.seen
    return all_seen


def report(schedule: str, per_s: int, all_seen: dict[str, Seen], busy: float) -> None:
    """A line a quantile and peer."""
    mine = all_seen.pop("ours", None)
    if mine is None:
        return
    end = f"{per_s}" if schedule == "constant" else f"{per_s}.{schedule}"
    goals = GOALS_US if per_s == GOAL_RATE else {}
    peers = all_seen or {"": None}
    for word, quantile in QUANTILES.items():
        value = mine.error_us(quantile)
        for peer in peers.values():
            theirs = None if peer is None else peer.error_us(quantile)
            emit(
                f"replay.dispatch_error_us.{word}.{end}",
                value,
                "us",
                goal=goals.get(word),
                peer=None if peer is None else peer.version,
                ratio=None if theirs is None else theirs / value,
                **({} if theirs is None else {"peer_value": round(theirs, 2)}),
                late_wakes_pct=round(busy, 1),
            )
    for peer in peers.values():
        emit(
            f"replay.drift_us_per_s.{end}",
            mine.drift(),
            "us/s",
            goal=GOAL_DRIFT_US_PER_S if goals else None,
            peer=None if peer is None else peer.version,
            **({} if peer is None else {"peer_value": round(peer.drift(), 3)}),
            achieved_per_s=round(mine.per_s()),
            **({} if peer is None else {"peer_achieved_per_s": round(peer.per_s())}),
        )


def gpu() -> str:
    """Which GPU is in this machine, if any; nothing here runs on it."""
    try:
        return ", ".join(ask("name", "driver_version").values())
    except (OSError, subprocess.SubprocessError):
        return ""


def late_wakes_pct(cpu: int | None, count: int = 300) -> float:
    """How busy the core is."""
    before = os.sched_getaffinity(0)
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    late = 0
    for _ in range(count):
        start = time.monotonic_ns()
        time.sleep(0.001)
        late += time.monotonic_ns() - start > 2_000_000
    os.sched_setaffinity(0, before)
    return 100 * late / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    parser.add_argument(
        "--cpu", type=int, help="core to pin to (default: the quietest of 4 or more)"
    )
    args = parser.parse_args()
    cpu = args.cpu
    if cpu is None and len(os.sched_getaffinity(0)) >= 4:
        cpu = quiet_core()
    busy = late_wakes_pct(cpu)
    told = " ".join(["python -m bench.replay_pacing", *sys.argv[1:]])
    emit("replay.pacing_bench", 1, "run", command=told, cpu=cpu, gpu=gpu(), **surroundings())
    for per_s, (rounds, seconds) in (QUICK if args.quick else FULL).items():
        for schedule in TURNS:
            report(schedule, per_s, compare(schedule, per_s, rounds, seconds, cpu), busy)


if __name__ == "__main__":
    main()
