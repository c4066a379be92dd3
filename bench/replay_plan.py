"""How fast spans become a plan with launch order, stream order and edges; CPU time, one core.

The recordings under tests/recordings/ are repeated, each copy with ids of its own, until they
hold a million spans. `replay.plan_spans_per_s.*` is from rows of the archive's table to the
plan and its work, the best of some rounds; reading Parquet is not part of it. `ratio`: to numpy
alone, without the loops that `_native` compiles, in turns with it.
"""

from __future__ import annotations

import argparse
import os
import time

from spanlite_replay import _native
from spanlite_replay.plan import PlanSettings, build_plan
from spanlite_replay.recording import Recording

from bench._recordings import RECORDINGS, repeated, rows_of
from bench._report import emit

GOAL_SPANS_PER_S = 5_000_000


def spans_per_s(table: object, deps: str, rounds: int) -> tuple[float, float]:
    """(with the compiled loops, with numpy alone)."""
    best = {"1": float("inf"), "0": float("inf")}
    for word in list(best) * rounds:
        os.environ[_native.VARIABLE] = word
        begin = time.process_time()
        recording = Recording.from_table(table)
        plan = build_plan(recording, PlanSettings()).with_work(deps)  # type: ignore[arg-type]
        best[word] = min(best[word], time.process_time() - begin)
    spans = len(plan.recording.start_ns)
    return spans / best["1"], spans / best["0"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    quick = parser.parse_args().quick
    spans, rounds = (300_000, 3) if quick else (1_000_000, 7)
    for name in ("eager_s1", "eager_s4", "graph_s4"):
        table = repeated(rows_of(RECORDINGS / f"{name}.json.gz"), spans)
        for deps in ("stream", "observed"):
            ours, plain = spans_per_s(table, deps, rounds)
            emit(
                f"replay.plan_spans_per_s.{deps}.{name}",
                ours,
                "spans/s",
                goal=GOAL_SPANS_PER_S,
                peer="numpy alone",
                ratio=ours / plain,
            )


if __name__ == "__main__":
    main()
