"""What a window costs on each load, against what the agent believes that it cost."""

from __future__ import annotations

import select
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from spanlite_collectors.agent.layout import Level, RecordType, WindowReason
from spanlite_collectors.agent.ring import Ring

from bench._agent_events import (
    AFTER,
    PARTS,
    Study,
    ratio_interval,
    study,
    tail_cost_pct,
    tail_interval,
    typical,
    typical_interval,
)
from bench._agent_rings import RingDrain
from bench._agent_turns import I64, WARM_UP_STEPS, Worker, ask_steps
from bench._report import emit

#: Asked for by the daemon of itself: such a window counts to the budget as one by schedule does.
REASON = WindowReason.QUEUE
#: Steps between two windows, some of them not the same each time, so that nothing keeps in step.
GAP, JITTER = AFTER + 30, 7
#: Windows in which the budget learns how long those of this load are.
PILOT, PILOT_STEPS = 4, 10
FEWEST_WINDOWS = 8
TRIES = 4
POLL_S = 0.0003
#: The default of SPANLITE_AGENT_WINDOW_SECONDS.
CLOSEST_S = 5.0


@dataclass
class Told:
    """What the agent said after each window."""

    cost_ns: list[int] = field(default_factory=list)
    #: The step time that its budget spreads the window over.
    spacing_s: list[float] = field(default_factory=list)
    steps: int = PILOT_STEPS


class Windows:
    """Opens windows in a process under the agent, whose level is `ranges` and which opens none by
    itself, and reads of its ring what it tells of them."""

    def __init__(self, worker: Worker, drain: RingDrain) -> None:
        self.worker, self._drain = worker, drain
        ring = drain.ring_of(worker.process.pid)
        if ring is None:
            raise RuntimeError(f"the process '{worker.name}' has no ring: its agent is off")
        self.ring: Ring = ring

    def state(self, name: str) -> int:
        """A figure of the ring's state."""
        return int(self.ring.state[name][0])

    def level(self, level: Level) -> None:
        """Change what is recorded."""
        self.ring.set_control("level", level)

    def run(self, load: str, steps: int, windows: int, window_steps: int) -> tuple[I64, Told]:
        """Run steps and open windows among them; the steps' edges (host time, ns), and what was
        told. The window after the last of these steps, if any, is closed by the next run."""
        self.level(Level.WINDOWS)
        self.worker.ask(run=load, steps=steps, marks=True, sum=False)
        told = Told()
        before_ns, opened = self.state("window_cost_ns"), self.state("windows")
        resume = self.state("steps") + GAP
        for number in range(windows):
            if not self._until(lambda at=resume: self.state("steps") >= at):
                break
            self.ring.capture(window_steps, REASON)
            if not self._until(lambda n=number: self.state("windows") > opened + n):
                break
            resume = self.state("steps") + GAP + number % JITTER
            # What it cost is told a moment after it has closed.
            self._until(lambda at=resume: self.state("steps") >= at - GAP // 2)
            now_ns = self.state("window_cost_ns")
            told.cost_ns.append(now_ns - before_ns)
            told.spacing_s.append(self.state("window_spacing_ms") / 1e3)
            before_ns = now_ns
        told.steps = self.state("window_steps")
        answer = self.worker.answer()
        self.level(Level.RANGES)
        return np.array(answer["marks"], np.int64), told

    def _until(self, happened: Any) -> bool:
        """Wait for something; False where the steps have come to their end before."""
        answers = self.worker.process.stdout
        assert answers is not None
        while not happened():
            if select.select([answers], [], [], 0)[0]:
                return bool(happened())
            time.sleep(POLL_S)
        return True

    def between(self, edges: I64) -> tuple[I64, I64]:
        """When the windows asked for opened and closed among these steps."""
        time.sleep(0.3)  # two drains
        rows = self._drain.drained[self.worker.process.pid].rows(RecordType.WINDOW)
        if rows is None:
            rows = np.zeros(0, [("open_ns", "u8"), ("close_ns", "u8"), ("reason", "u4")])
        mine = rows[(rows["reason"] == REASON) & (rows["open_ns"] >= np.uint64(edges[0]))]
        mine = mine[mine["close_ns"] <= np.uint64(edges[-1])]
        return mine["open_ns"].astype(np.int64), mine["close_ns"].astype(np.int64)


def report_windows(opener: Windows, load: str, most: int, seconds: float) -> None:
    """Measure windows of one load and print what one costs and what all of them cost."""
    usual_ns = float(np.median(ask_steps(opener.worker, load, WARM_UP_STEPS)["ns"]))
    steps = GAP + PILOT * (PILOT_STEPS + GAP + JITTER + 2) + AFTER
    _, pilot = opener.run(load, steps, PILOT, PILOT_STEPS)
    length = max(1, pilot.steps)
    each = length + GAP + JITTER + 2
    windows = max(FEWEST_WINDOWS, min(most, int(seconds * 1e9 / usual_ns / each)))
    detaches = opener.state("detaches")
    steps = GAP + windows * each + AFTER
    for attempt in range(TRIES):
        edges, told = opener.run(load, steps, windows, length)
        try:
            found = study(edges, *opener.between(edges))
            break
        except ValueError:  # nobody came to ask for windows in time: the machine is busy
            if attempt == TRIES - 1:
                raise
            steps *= 2
    report_study(load, found, told, detaches=opener.state("detaches") - detaches,
                 window_steps=length)  # fmt: skip
    print(f"{time.strftime('%T')} {load}: {len(found.usual)} windows of {length} steps",
          file=sys.stderr, flush=True)  # fmt: skip


def report_study(load: str, found: Study, told: Told, **more: Any) -> None:
    """The lines of one load."""
    whole, middle = found.whole, typical(found)
    emit(f"agent.window_cost_us.{load}", float(whole.mean()) / 1e3, "us",
         interval=ratio_interval(whole, 1.0, 1e-3), median=_us(np.median(whole)),
         by_median=_us(middle.sum()), by_median_interval=typical_interval(found),
         parts={part: _us(cost) for part, cost in zip(PARTS, found.costs.mean(0), strict=True)},
         parts_by_median={part: _us(cost) for part, cost in zip(PARTS, middle, strict=True)},
         step_us=_us(found.usual.mean()), windows=len(whole),
         steps_a_window=round(float(found.steps.mean()), 1), **more)  # fmt: skip
    if not told.cost_ns:
        return
    believed = float(np.mean(told.cost_ns))
    emit(f"agent.window_cost_ratio.{load}", float(whole.mean()) / believed, "",
         interval=ratio_interval(whole, believed, 1.0),
         by_median=round(float(middle.sum()) / believed, 3), told_us=_us(believed),
         note="what it cost over what the agent believes; 1.5 times that is spread")  # fmt: skip
    spacing_ns = float(np.mean(told.spacing_s)) * 1e9
    apart_ns = max(spacing_ns, CLOSEST_S * 1e9)
    emit(f"agent.throughput_cost_pct.windows_by_window.{load}",
         float(whole.mean()) / spacing_ns * 100, "%", 1.0,
         interval=ratio_interval(whole, spacing_ns, 100),
         by_median=round(float(middle.sum()) / spacing_ns * 100, 3),
         spacing_s=round(spacing_ns / 1e9, 3),
         at_default=round(float(whole.mean()) / apart_ns * 100, 3),
         note="a window's cost over the step time that the budget spreads it over")  # fmt: skip
    touched = float(found.steps.mean() + AFTER) * float(found.usual.mean()) / spacing_ns
    emit(f"agent.p99_cost_pct.windows_by_window.{load}",
         tail_cost_pct(found.calm, found.touched, touched), "%", 2.0,
         interval=tail_interval(found, touched), touched_share=round(touched, 5),
         steps=len(found.touched), steps_calm=len(found.calm),
         note="of all steps, where windows come as the budget spreads them")  # fmt: skip


def _us(ns: Any) -> float:
    return round(float(ns) / 1e3, 1)
