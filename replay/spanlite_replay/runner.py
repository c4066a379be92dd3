"""Run a plan on a target, and account for every event of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from spanlite_replay.pacing import NEVER, Clock, Paced, Pacing, RealClock, Stop, pace, prepared
from spanlite_replay.plan import Fate, Plan
from spanlite_replay.report import Report, count_fates
from spanlite_replay.targets.base import I64, Target, Timed
from spanlite_replay.timing import Timing

#: Time between the end of the preparations and the first deadline.
LEAD_NS = 20_000_000
#: Without waiting, events go out in runs of this many, so that a stop is answered.
RUN = 8_192


def run_plan(
    plan: Plan,
    target: Target,
    pacing: Pacing | None = None,
    clock: Clock | None = None,
    start_at_ns: int | None = None,
    on_start: Callable[[], None] | None = None,
) -> Report:
    """Prepare, pace, drain, report.

    `pacing` None: do not wait for deadlines. `start_at_ns`: Unix time before which the
    plan does not begin; it begins at once where that has passed. `on_start` is called when
    all is prepared. Ctrl-C then ends the run early, and the report still adds up.
    """
    fate = plan.fate.copy()
    events = np.flatnonzero(fate == Fate.PLANNED)
    supported = target.prepare(plan, events)
    fate[events[~supported]] = Fate.UNSUPPORTED
    events = events[supported]
    if on_start is not None:
        on_start()
    stop = Stop()
    with stop.on_interrupt():
        paced = _run(plan, events, target, pacing, clock or RealClock(), start_at_ns, stop)
        outcome = target.drain()
    dropped_why = _settle(fate, events, paced)
    fate[outcome.failed] = Fate.FAILED
    return Report(
        target=target.name,
        unit=plan.settings.unit,
        digest=plan.digest(),
        planned=plan.size,
        fates=count_fates(plan, fate),
        dropped_why=dropped_why,
        traces=len(np.unique(plan.trace)),
        left_out={
            "spans of traces not in the sample": plan.spans_sampled_out,
            "spans of traces without a request": plan.spans_not_of_unit,
        },
        moved_ns=paced.moved_ns,
        interrupted=paced.interrupted,
        timing=None
        if pacing is None
        else Timing.of(plan.due_ns[events], paced, pacing.tolerance_ns),
        facts=outcome.facts,
        why_failed=outcome.why,
        observed=outcome.observed,
        requests=outcome.requests,
    )


def _run(
    plan: Plan,
    events: I64,
    target: Target,
    pacing: Pacing | None,
    clock: Clock,
    start_at_ns: int | None,
    stop: Stop,
) -> Paced:
    def launch(first: int, last: int) -> None:
        target.launch(events[first:last])

    due_ns = plan.due_ns[events]
    if pacing is None or not len(events):
        return _at_once(len(events), launch, stop)
    pacing = prepared(pacing, clock)
    ahead_ns = 0 if start_at_ns is None else start_at_ns - time.time_ns()
    # The plan's first event may not be among those to run.
    first_ns = int(due_ns[0] - plan.due_ns[0])
    start_ns = clock.now_ns() + max(ahead_ns, LEAD_NS)
    if isinstance(target, Timed):
        target.begin_at(start_ns, stop)
    origin_ns = start_ns + first_ns
    return pace(due_ns, launch, clock, pacing, origin_ns, stop)


def _settle(fate: npt.NDArray[np.uint8], events: I64, paced: Paced) -> dict[str, int]:
    """Give each event that was to run its fate; returns why events were dropped."""
    by_rate = int((fate == Fate.DROPPED).sum())
    went = paced.observed_ns != NEVER
    fate[events[went]] = Fate.LAUNCHED
    fate[events[~went]] = Fate.DROPPED
    # The loop goes in order, so what lies behind the last dispatch was never reached.
    reached = int(np.flatnonzero(went)[-1]) + 1 if went.any() else 0
    end = len(events) if not paced.interrupted else reached
    late = int((~went[:end]).sum())
    return {
        "above --qps": by_rate,
        "too late": late,
        "not reached before the interrupt": len(events) - end,
    }


def _at_once(count: int, launch: Callable[[int, int], None], stop: Stop) -> Paced:
    result = Paced(np.full(count, NEVER, dtype=np.int64))
    for first in range(0, count, RUN):
        if stop.requested:
            result.interrupted = True
            break
        last = min(first + RUN, count)
        result.observed_ns[first:last] = 0
        launch(first, last)
    return result
