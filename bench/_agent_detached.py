"""What stays behind after a full detach: a difference of differences.

Two processes with the same load differ by more than what is asked about, but they do so all the
time. So one with the agent, CUPTI never attached, takes turns with two without; then CUPTI attaches
in it, records windows and detaches; then they take as many turns again. What the ratio of its step
times to theirs has changed by is the cost.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from spanlite_collectors.agent.layout import Level, WindowReason

from bench._agent_costs import F64, GOALS, RESAMPLES
from bench._agent_turns import Turn, Worker, ask_steps, take_turns
from bench._agent_windows import Windows
from bench._report import emit

#: Steps of the windows after which CUPTI detaches, and how often that is tried on a load.
WINDOW_STEPS, TRIES = 20, 5
MOST_ROUNDS = 10_000
#: Turns by phase, process and round.
Phases = tuple[list[list[Turn]], list[list[Turn]]]


def measure_detached(
    controls: list[Worker], opener: Windows, loads: list[str], seconds: float, turn_seconds: float
) -> None:
    """Rounds before, some seconds of each load, windows and a detach on each, as many rounds after;
    then the figures."""
    workers = [*controls, opener.worker]
    if opener.state("attached") or opener.state("detaches"):
        raise RuntimeError("CUPTI was attached before it was to be")
    before = {}
    for load in loads:
        before[load] = _rounds(workers, load, MOST_ROUNDS, turn_seconds, seconds)
    if opener.state("attached") or opener.state("detaches"):
        raise RuntimeError("CUPTI attached without a window")
    detaches = sum(detach(opener, load) for load in loads)
    attached = opener.state("attached")
    emit("agent.detached_state", attached, "attached", 0, detaches=detaches, loads=len(loads))
    for load in loads:
        after = _rounds(workers, load, len(before[load][0]), turn_seconds)
        report_detached(load, (before[load], after))


def _rounds(
    workers: list[Worker], load: str, rounds: int, turn_seconds: float, most_s: float = 3600
) -> list[list[Turn]]:
    take_turns(workers, load, rounds, turn_seconds, time.monotonic() + most_s, quiet=True)
    found = [worker.turns.pop(load) for worker in workers]
    print(f"{time.strftime('%T')} {load}: {len(found[0])} rounds", file=sys.stderr, flush=True)
    return found


def detach(opener: Windows, load: str) -> int:
    """Have a window opened on demand until CUPTI has detached after one; how often it has."""
    before = opener.state("detaches")
    opener.level(Level.WINDOWS)
    for _ in range(TRIES):
        opener.ring.capture(WINDOW_STEPS, WindowReason.DEMAND)
        ask_steps(opener.worker, load, 3 * WINDOW_STEPS)
        if opener.state("detaches") > before and not opener.state("attached"):
            break
    opener.level(Level.RANGES)
    ask_steps(opener.worker, load, WINDOW_STEPS)
    return opener.state("detaches") - before


def changes(phases: Phases, by: str) -> tuple[F64, F64]:
    """Of the last process's turn to the mean of the others' in the same round, in both phases.
    `by`: the turn's mean or median step."""
    figure = np.mean if by == "mean" else np.median
    ratios = []
    for phase in phases:
        times = np.array([[figure(turn.ns) for turn in turns] for turns in phase])
        ratios.append(times[-1] / times[:-1].mean(axis=0))
    return ratios[0], ratios[1]


def change(before: F64, after: F64, middle: bool) -> tuple[float, list[float]]:
    """Per cent that the ratio has grown by, with a 95 % bootstrap interval over rounds."""
    figure = np.median if middle else np.mean
    random = np.random.default_rng(7)
    drawn = []
    for ratios in (before, after):
        draws = random.integers(len(ratios), size=(RESAMPLES, len(ratios)))
        drawn.append(figure(ratios[draws], axis=1))
    edges = np.percentile((drawn[1] / drawn[0] - 1) * 100, [2.5, 97.5])
    found = float(figure(after) / figure(before) - 1) * 100
    return found, [round(float(edge), 3) for edge in edges]


def report_detached(load: str, phases: Phases) -> None:
    """The change of the agent's process against the others, and of one of these by itself."""
    before, after = changes(phases, "mean")
    cost, interval = change(before, after, False)
    middle, middle_interval = change(*changes(phases, "median"), True)
    steps = int(np.median([len(turn.ns) for turn in phases[0][-1]]))
    emit(f"agent.throughput_cost_pct.detached.{load}", cost, "%", GOALS["detached"],
         interval=interval, median=round(middle, 3), median_interval=middle_interval,
         rounds=[len(before), len(after)], steps_a_turn=steps,
         differs_before_pct=round(float(before.mean() - 1) * 100, 3),
         note="what its ratio to two processes without an agent changed by after windows and a "
              "full detach; before, CUPTI was never attached")  # fmt: skip
    controls = (phases[0][:-1], phases[1][:-1])
    if len(controls[0]) < 2:
        return
    nothing, interval = change(*changes(controls, "mean"), False)
    middle, middle_interval = change(*changes(controls, "median"), True)
    emit(f"agent.throughput_cost_pct.detached_nothing.{load}", nothing, "%", interval=interval,
         median=round(middle, 3), median_interval=middle_interval,
         note="the same for one of the processes without an agent against the other")  # fmt: skip
