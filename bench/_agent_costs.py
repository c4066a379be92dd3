"""Costs of the agent's levels: each turn against the turn without an agent of the same round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bench._agent_turns import I64, Turn, Worker
from bench._report import emit

GOALS = {"ranges": 0.2, "windows": 1.0, "detached": 0.3}
P99_GOALS = {"windows": 2.0}
RESAMPLES = 2000
F64 = npt.NDArray[np.float64]


def interval(values: F64, figure: Callable[..., Any] = np.mean) -> list[float]:
    """95 % bootstrap interval of a figure over rounds."""
    draws = np.random.default_rng(7).integers(len(values), size=(RESAMPLES, len(values)))
    edges = np.percentile(figure(values[draws], axis=1), [2.5, 97.5])
    return [round(float(edge), 3) for edge in edges]


def step_means(worker: Worker, workload: str) -> F64:
    """Mean ns of a step, by round."""
    return np.array([turn.ns.mean() for turn in worker.turns[workload]])


def costs(worker: Worker, base: Worker, workload: str) -> F64:
    """Per cent more than `base`, round by round, in the mean of the step times."""
    pairs = step_means(worker, workload) / step_means(base, workload)
    return np.asarray((pairs - 1) * 100)


def _tail(rounds: list[I64]) -> float:
    return float(np.percentile(np.concatenate(rounds), 99))


def tail_cost(mine: list[I64], theirs: list[I64]) -> tuple[float, list[float]]:
    """Per cent more in the p99 of all steps, with its interval over rounds."""
    random, count = np.random.default_rng(7), len(mine)
    found = []
    for _ in range(200):
        draw = random.integers(count, size=count)
        found.append(_tail([mine[i] for i in draw]) / _tail([theirs[i] for i in draw]) - 1)
    edges = [round(float(edge) * 100, 3) for edge in np.percentile(found, [2.5, 97.5])]
    return (_tail(mine) / _tail(theirs) - 1) * 100, edges


def step_times(worker: Worker, workload: str) -> list[I64]:
    """Step times in ns, by round."""
    return [turn.ns for turn in worker.turns[workload]]


def _cpu_a_step(turns: list[Turn]) -> float:
    return sum(turn.cpu_s for turn in turns) / sum(len(turn.ns) for turn in turns)


def _thirds_us(turns: list[Turn]) -> list[float]:
    """Median step of the first, middle and last third of turns: whether a recording grows dear."""
    parts = [np.array_split(turn.ns, 3) for turn in turns]
    return [
        round(float(np.median(np.concatenate(part))) / 1e3, 1) for part in zip(*parts, strict=True)
    ]


def report_costs(workers: list[Worker], workload: str) -> None:
    """Throughput, p99, resting cost and CPU of each level."""
    base, *others = workers = [worker for worker in workers if workload in worker.turns]
    quiet = np.concatenate([turn.ns for turn in base.turns[workload]])
    emit(f"agent.step_us.{workload}", float(np.median(quiet)) / 1e3, "us",
         p99=round(float(np.percentile(quiet, 99)) / 1e3, 1))  # fmt: skip
    for worker in others:
        name, rounds = worker.name, costs(worker, base, workload)
        emit(f"agent.throughput_cost_pct.{name}.{workload}", float(rounds.mean()), "%",
             GOALS.get(name), interval=interval(rounds), median=round(float(np.median(rounds)), 3),
             median_interval=interval(rounds, np.median), rounds=len(rounds))  # fmt: skip
        tail, edges = tail_cost(step_times(worker, workload), step_times(base, workload))
        emit(f"agent.p99_cost_pct.{name}.{workload}", tail, "%", P99_GOALS.get(name),
             interval=edges)  # fmt: skip
        pairs = zip(worker.turns[workload], base.turns[workload], strict=True)
        resting = [np.median(mine.ns) / np.median(theirs.ns) - 1 for mine, theirs in pairs]
        emit(f"agent.median_cost_pct.{name}.{workload}", float(np.median(resting)) * 100, "%",
             thirds_us=_thirds_us(worker.turns[workload]))  # fmt: skip
        more_s = _cpu_a_step(worker.turns[workload]) - _cpu_a_step(base.turns[workload])
        emit(f"agent.cpu_pct.{name}.{workload}", more_s * 1e9 / float(quiet.mean()) * 100, "%",
             note="of one core, more than without")  # fmt: skip
    _compare_with_kineto(base, {worker.name: worker for worker in others}, workload)


def report_long(worker: Worker, workload: str, windows: int) -> None:
    """Throughput and p99 where windows open by schedule; how many there were in these turns."""
    trios = worker.between[workload]
    name = worker.name
    rounds = np.array([
        (turn.ns.mean() / ((before.ns.mean() + after.ns.mean()) / 2) - 1) * 100
        for before, turn, after in trios
    ])  # fmt: skip
    medians = [
        (np.median(turn.ns) / ((np.median(before.ns) + np.median(after.ns)) / 2) - 1) * 100
        for before, turn, after in trios
    ]
    mine = [turn.ns for _, turn, _ in trios]
    theirs = [trios[0][0].ns, *(after.ns for *_, after in trios)]
    tail = (_tail(mine) / _tail(theirs) - 1) * 100
    emit(f"agent.throughput_cost_pct.{name}.{workload}", float(rounds.mean()), "%",
         GOALS.get(name), interval=interval(rounds), rounds=len(rounds), windows=windows,
         steps=sum(map(len, mine)))  # fmt: skip
    emit(f"agent.p99_cost_pct.{name}.{workload}", tail, "%", P99_GOALS.get(name),
         p99_us=round(_tail(mine) / 1e3, 1), steps=sum(map(len, mine)),
         steps_without=sum(map(len, theirs)))  # fmt: skip
    emit(f"agent.median_cost_pct.{name}.{workload}", float(np.mean(medians)), "%",
         note="between windows")  # fmt: skip


def whole_costs(worker: Worker, base: Worker, workload: str) -> F64:
    """Per cent more than `base`, round by round, its start and stop outside steps taken in."""
    whole = [(turn.ns.sum() + turn.outside_ns) / len(turn.ns) for turn in worker.turns[workload]]
    return np.asarray((np.array(whole) / step_means(base, workload) - 1) * 100)


def _compare_with_kineto(base: Worker, workers: dict[str, Worker], workload: str) -> None:
    """How much less `continuous` costs than torch.profiler, in the same rounds."""
    switched = [w for w in workers.values() if w.profile or w.switch is not None]
    for worker in switched:
        whole, turns = whole_costs(worker, base, workload), worker.turns[workload]
        emit(f"agent.throughput_cost_pct.{worker.name}_with_stop.{workload}",
             float(whole.mean()), "%", interval=interval(whole),
             median=round(float(np.median(whole)), 3), steps_a_turn=len(turns[0].ns),
             stop_ms=round(float(np.mean([turn.outside_ns for turn in turns])) / 1e6, 2),
             records=sum(turn.records for turn in turns),
             note="its start and stop, in which it parses what it kept, taken in")  # fmt: skip
    if (peer := workers.get("kineto")) is None:
        return
    theirs = costs(peer, base, workload)
    for worker in workers.values():
        if worker.profile or not worker.name.startswith("continuous"):
            continue
        mine = costs(worker, base, workload)
        _emit_cheaper(worker.name, theirs, mine, workload)
        if worker.switch is not None:
            _emit_cheaper("continuous_whole", whole_costs(peer, base, workload),
                          whole_costs(worker, base, workload), workload)  # fmt: skip


def _emit_cheaper(name: str, theirs: F64, mine: F64, workload: str) -> None:
    less = theirs - mine
    ratio = float(theirs.mean() / mine.mean()) if mine.mean() > 0 else None
    emit(f"agent.cheaper_than_kineto_pct.{name}.{workload}", float(less.mean()), "%", 0,
         "kineto", ratio, interval=interval(less), median=round(float(np.median(less)), 3),
         median_interval=interval(less, np.median), rounds=len(less))  # fmt: skip


def report_ranges(workers: dict[str, Worker], workload: str, stages: int) -> None:
    """What `ranges` costs by counting: ranges in a step times what one costs more than without."""
    if not {"nothing", "ranges"} <= workers.keys():
        return
    answers = {}
    for name in ("nothing", "ranges"):
        workers[name].ask(run=workload, ranges=20_000)
        answers[name] = workers[name].answer()
    step_ns = float(np.median(np.concatenate([t.ns for t in workers["nothing"].turns[workload]])))
    more = {word: answers["ranges"][word] - answers["nothing"][word] for word in ("step", "stage")}
    emit(f"agent.ranges_cost_by_calls_pct.{workload}",
         (more["step"] + stages * more["stage"]) / step_ns * 100, "%", 0.2,
         ranges_a_step=1 + stages, step_range_ns=round(more["step"], 1),
         stage_range_ns=round(more["stage"], 1), step_us=round(step_ns / 1e3, 1))  # fmt: skip
