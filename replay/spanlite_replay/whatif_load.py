"""What-if questions about load: arrivals k times as dense, and the rate that breaks an SLO."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from spanlite.errors import InputError

from spanlite_replay.plan import PlanSettings, build_plan
from spanlite_replay.recording import Recording
from spanlite_replay.sim import GpuModel, simulate
from spanlite_replay.whatif import fitted_model

F64 = npt.NDArray[np.float64]

#: Rates are tried on a grid of this many steps to a doubling: 2.2 % apart.
STEPS_OF_DOUBLING = 32
#: Rates beyond this many times (or this part of) the recorded one are not looked at.
WIDEST = 64
#: Resamples of the latencies for the noise of their p99.
RESAMPLES = 200
#: Speeds are ratios of small integers, so that times in ns stay within 64 bits.
_GRAIN = 1_000
ASSUMED = (
    "each arrival brings the work that it brought: no larger batches",
    "arrivals keep their recorded pattern, closer together",
    "calls of a thread go in the order in which they are due",
)


@dataclass(frozen=True)
class Loaded:
    """Latencies at a rate. Times in ns; arrivals are traces with device work."""

    qps: float
    times: float  # of the recorded rate
    arrivals: int
    p50_ns: float
    p99_ns: float
    low_p99_ns: float  # with the error
    high_p99_ns: float


@dataclass(frozen=True)
class Breaking:
    """The rate at which p99 breaks an SLO; None where it holds, or fails, at every rate tried."""

    slo_ns: float
    fails_always: bool
    qps: float | None
    low_qps: float | None
    high_qps: float | None
    holds_at: Loaded | None
    breaks_at: Loaded | None
    tried: int
    notes: list[str] = field(default_factory=list)


class Load:
    """A recording under other rates; remembers what it has simulated."""

    def __init__(self, recording: Recording, model: GpuModel | None = None) -> None:
        self.recording = _arrivals(recording)
        work = build_plan(self.recording, PlanSettings()).with_work("stream").work
        assert work is not None
        self.model = fitted_model(work, self.recording, model)
        starts = np.sort(self.recording.trace_starts())
        span_ns = int(starts[-1] - starts[0])
        if len(starts) < 2 or not span_ns:
            raise InputError("one arrival makes no rate: choose a window with two or more traces")
        self.base_qps = (len(starts) - 1) * 1e9 / span_ns
        self._seen: dict[Fraction, F64] = {}
        self.recorded = np.sort(self._recorded_latencies())
        simulated = self.latencies(Fraction(1))
        recorded_p99, self.noise = _p99(self.recorded), _p99_noise(self.recorded)
        self.simulator_error = abs(_p99(simulated) - recorded_p99) / recorded_p99

    @property
    def error(self) -> float:
        """Of a p99: chance and the simulator's own error, as a share."""
        return math.hypot(self.noise, self.simulator_error)

    def latencies(self, times: Fraction) -> F64:
        """From each arrival to its last end, in ns, at so many times the recorded rate."""
        if times not in self._seen:
            settings = PlanSettings(unit="trace", speed=times)
            plan = build_plan(self.recording, settings).with_work("stream")
            assert plan.work is not None
            ran = simulate(plan.work, self.recording, self.model, "open")
            trace = self.recording.trace[plan.work.row]
            due = np.full(self.recording.traces, np.iinfo(np.int64).max)
            done = np.full(self.recording.traces, np.iinfo(np.int64).min)
            np.minimum.at(due, trace, plan.work.start_ns)
            np.maximum.at(done, trace, ran.end_ns)
            self._seen[times] = (done - due).astype(np.float64)
        return self._seen[times]

    def at(self, times: Fraction) -> Loaded:
        """Latencies at a rate, scaled by what was recorded at its own rate."""
        found, base = self.latencies(times), self.latencies(Fraction(1))
        p50 = float(np.median(found) / np.median(base) * np.median(self.recorded))
        p99 = _p99(found) / _p99(base) * _p99(self.recorded)
        low, high = p99 * max(1 - self.error, 0), p99 * (1 + self.error)
        return Loaded(self.base_qps * float(times), float(times), len(found), p50, p99, low, high)

    def breaking(self, slo_ns: float) -> Breaking:
        """Search the rate at which p99 breaks the SLO, and those at which it may."""
        middle = self._first_over(lambda one: one.p99_ns > slo_ns)
        early = self._first_over(lambda one: one.high_p99_ns > slo_ns)
        late = self._first_over(lambda one: one.low_p99_ns > slo_ns)
        notes = list(ASSUMED)
        if len(self.recorded) < 100:
            notes.append(f"of {len(self.recorded)} arrivals the p99 is the largest")
        return Breaking(
            slo_ns,
            middle == -_LIMIT,
            self._qps(middle),
            self._qps(early),
            self._qps(late),
            None if middle is None or middle == -_LIMIT else self.at(_rate(middle - 1)),
            None if middle is None else self.at(_rate(middle)),
            len(self._seen),
            notes,
        )

    def _qps(self, place: int | None) -> float | None:
        if place is None or place == -_LIMIT:
            return None
        return self.base_qps * float(_rate(place))

    def _first_over(self, breaks: Callable[[Loaded], bool]) -> int | None:
        """The first place of the grid that breaks, by bisection; None: none does."""
        low, high = -_LIMIT, _LIMIT
        if not breaks(self.at(_rate(high))):
            return None
        while low < high:
            middle = (low + high) // 2
            if breaks(self.at(_rate(middle))):
                high = middle
            else:
                low = middle + 1
        return low

    def _recorded_latencies(self) -> F64:
        rec = self.recording
        done = np.full(rec.traces, np.iinfo(np.int64).min)
        np.maximum.at(done, rec.trace, rec.start_ns + np.maximum(rec.duration_ns, 0))
        return (done - rec.trace_starts()).astype(np.float64)


_LIMIT = int(math.log2(WIDEST)) * STEPS_OF_DOUBLING


def _rate(place: int) -> Fraction:
    return Fraction(2 ** (place / STEPS_OF_DOUBLING)).limit_denominator(_GRAIN)


def _arrivals(recording: Recording) -> Recording:
    """Traces with device work; of those only steps and requests, where such are named."""
    has = _with(recording, "kernel", "memcpy", "memset", "graph_launch")
    if not has.any():
        raise InputError("the window holds no kernels, copies or memsets: choose another")
    named = has & _with(recording, "step", "request")
    chosen = named if named.any() else has
    return recording if chosen.all() else recording.take(chosen)


def _with(recording: Recording, *kinds: str) -> npt.NDArray[np.bool_]:
    """Which traces hold a span of one of the kinds."""
    rows = np.logical_or.reduce([recording.is_kind(word) for word in kinds])
    has = np.zeros(recording.traces, np.bool_)
    has[recording.trace[rows]] = True
    return has


def _p99(values: F64) -> float:
    place = max(int(np.ceil(len(values) * 0.99)) - 1, 0)
    return float(np.partition(values, place)[place])


def _p99_noise(values: F64) -> float:
    """Standard deviation of the p99 of resamples, as a share of it. Seeded: always the same."""
    draw = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    found = np.array([_p99(values[one]) for one in draw])
    return float(found.std() / max(_p99(values), 1.0))
