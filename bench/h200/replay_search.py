"""Which tuning of a replay on this GPU comes closest to recordings of several streams.

Needs an NVIDIA GPU to itself. Runs each tuning of a grid on graphs of 4 and 8 streams until the
time is up, prints a figure for each (`replay.tuning.<tuning>`: the largest share of a goal that
any of its errors takes, mean over its runs), and writes the best to a file, for
`python -m bench.replay_fidelity --try`.

    python -m bench.h200.replay_search FOLDER [--seconds 60] [--results FILE]
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from spanlite_replay.commands._faithful import fidelity_of
from spanlite_replay.plan import Plan
from spanlite_replay.targets.gpu.tuning import Tuning

from bench.replay_fidelity import (
    MAKESPAN_GOAL_PCT,
    START_GOAL_US,
    keeper,
    plan_of,
    run_once,
    sim_error_pct,
    tuning_of,
)

NAMES = ("graph_s8", "graph_s4")
HELD = ("0", "all", "-0.5", "-1", "-2", "0.5")
PATIENCE_NS = (1_000_000, 10_000, 30_000)
STEER_NS = (0, 900, 2_000)
FEWEST = (100, 500)


def grid() -> Iterator[str]:
    """Tunings as `--try` takes them, the likely ones first."""
    for fewest, patience, held, steer in product(FEWEST, PATIENCE_NS, HELD, STEER_NS):
        is_likely = fewest == FEWEST[0] or held in ("0", "all")
        if is_likely and (held != "all" or not steer):  # what all blocks keep, is not steered
            yield f"{held},{fewest},{patience},450,{steer}"


def errors(plan: Plan, tuning: Tuning) -> list[float]:
    """Makespan in %, starts p99 in us, durations p95 of their limit, sim against the GPU in %."""
    report, _ = run_once(plan, "timing", "wall", False, tuning)
    seen = fidelity_of(plan, report, None)
    makespan = abs(seen.makespan_ms.error or 0.0)
    wrong = seen.lost + seen.violations
    sim = sim_error_pct(plan, report.observed)
    starts, lengths = seen.starts.p99_us or 0.0, seen.durations.p95_of_limit or 0.0
    return [makespan, starts, lengths, sim, float(wrong)]


def score(rows: list[list[float]]) -> float:
    """The worst share of a goal, of the mean over runs."""
    makespan, starts, lengths, sim, wrong = np.mean(rows, axis=0).tolist()
    shares = (makespan / MAKESPAN_GOAL_PCT["timing"], starts / START_GOAL_US, lengths, sim / 5)
    return float(max(shares) + 100 * wrong)


def search(seconds: float) -> dict[str, dict[str, list[list[float]]]]:
    """Errors of each tuning and recording; the better ones run more often."""
    plans = {name: plan_of(name) for name in NAMES}
    seen: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    until, turn, everything = time.monotonic() + seconds, 0, list(grid())
    while time.monotonic() < until:
        tunings = everything if not turn else ranked(seen)[: max(4, len(everything) >> turn)]
        for text, name in product(tunings, NAMES):
            if time.monotonic() >= until:
                break
            try:
                seen[text][name].append(errors(plans[name], tuning_of(text)))
            except Exception:  # one tuning that fails stops no other
                traceback.print_exc()
        turn += 1
    return seen


def ranked(seen: dict[str, dict[str, list[list[float]]]]) -> list[str]:
    """The best first; a tuning counts where all recordings ran."""
    whole = {text: rows for text, rows in seen.items() if len(rows) == len(NAMES)}
    return sorted(whole, key=lambda text: max(score(rows) for rows in whole[text].values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for best.txt (no steering) and steered.txt")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--results", type=Path, help="add the figures to this file")
    args = parser.parse_args()
    around: dict[str, Any] = {
        "command": f"python -m bench.h200.replay_search --seconds {args.seconds:g}",
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    put, seen = keeper(args.results, around), search(args.seconds)
    order = ranked(seen)
    words = ("makespan_pct", "start_p99_us", "duration_of_limit", "sim_pct", "wrong")
    for text in order:
        for name, rows in seen[text].items():
            means = dict(zip(words, np.mean(rows, axis=0).round(3).tolist(), strict=True))
            told: dict[str, Any] = {"tuning": text, "runs": len(rows), **means}
            put(f"replay.tuning.{name}", score(rows), "of a goal", **told)
    args.folder.mkdir(parents=True, exist_ok=True)
    for word, steers in (("best", False), ("steered", True)):
        mine = [text for text in order if (tuning_of(text).steer_ns > 0) == steers]
        (args.folder / f"{word}.txt").write_text(mine[0] if mine else "")
        print(f"{word}: {mine[:3]}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
