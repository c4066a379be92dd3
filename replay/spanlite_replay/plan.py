"""From a recording to a plan: which event is due when, and what becomes of it.

An **event** is what a target is given at one deadline. `--unit` says what it is:

- `span`: each span at its own start. Speed changes starts and ends, so spans stay nested.
- `trace`: each trace at its first start. What is inside keeps its recorded times.
- `request`: as `trace`, for traces that hold a request; due when the first request starts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import IntEnum
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt
from spanlite.errors import UsageError
from spanlite.timewindow import format_time

from spanlite_replay import transforms
from spanlite_replay._columns import argsort
from spanlite_replay.looping import repeat
from spanlite_replay.recording import Recording
from spanlite_replay.work import Deps, Work, build_work

I64 = npt.NDArray[np.int64]
Unit = Literal["span", "trace", "request"]
Over = Literal["delay", "drop", "thin"]


class Fate(IntEnum):
    """What became of an event. Every event ends in exactly one of those above PLANNED."""

    PLANNED = 0
    LAUNCHED = 1
    DROPPED = 2
    THINNED = 3
    UNSUPPORTED = 4
    FAILED = 5


@dataclass(frozen=True)
class Count:
    """Events and the spans they stand for."""

    events: int
    spans: int


@dataclass(frozen=True)
class PlanSettings:
    """What the transforms are asked to do; the defaults change nothing.

    `qps` limits arrivals: traces for the units span and trace, requests for request;
    `service_qps` those of single services, before it. `loop`: play the window so many times.
    `smooth_ns`: space the arrivals within each window of this length evenly.
    """

    unit: Unit = "span"
    sample: Fraction = Fraction(1)
    seed: int = 0
    max_gap_ns: int | None = None
    speed: Fraction = Fraction(1)
    start_at_ns: int | None = None  # when the first event is due; None: as recorded
    qps: Fraction | None = None
    over: Over = "delay"
    burst: int | None = None
    service_qps: tuple[tuple[str, Fraction], ...] = ()
    loop: int = 1
    smooth_ns: int | None = None

    @property
    def burst_size(self) -> int:
        """Arrivals that may come at once under `qps`."""
        return self.burst_of(self.qps)

    def burst_of(self, qps: Fraction | None) -> int:
        """Arrivals that may come at once at a rate: 1 for delay, else one second's worth."""
        if self.burst is not None:
            return self.burst
        return 1 if self.over == "delay" or qps is None else max(1, int(qps))


@dataclass(frozen=True)
class Plan:
    """Events by deadline. Arrays have shape (events,)."""

    settings: PlanSettings
    recording: Recording
    due_ns: I64  # Unix time, sorted
    recorded_ns: I64  # when it was, in the recording
    duration_ns: I64  # after the transforms
    trace: I64  # row in the recording's trace arrays
    row: I64  # row in the recording: the span, or the first span of the trace
    spans: I64  # how many spans the event stands for
    fate: npt.NDArray[np.uint8]  # PLANNED, DROPPED or THINNED
    traces_sampled_out: int
    spans_sampled_out: int
    spans_not_of_unit: int
    work: Work | None = None  # see `with_work`

    def __len__(self) -> int:
        return len(self.due_ns)

    @property
    def size(self) -> Count:
        """How many events, and spans in them."""
        return Count(len(self), int(self.spans.sum()))

    def digest(self) -> str:
        """SHA-256 of what will happen, as hex: the same plan has the same digest anywhere."""
        seen = hashlib.sha256()
        rec = self.recording
        for values in (
            self.due_ns,
            self.duration_ns,
            rec.trace_low[self.trace],
            rec.trace_high[self.trace],
            rec.span_id[self.row],
            self.spans,
            self.fate,
        ):
            seen.update(np.ascontiguousarray(values).tobytes())
        if self.work is not None:
            self.work.update(seen)
        return seen.hexdigest()

    def with_work(self, deps: Deps) -> Plan:
        """The same with the order and the edges of its GPU work; needs WORK_COLUMNS."""
        return replace(self, work=build_work(self, deps))

    def moved_to(self, start_at_ns: int) -> Plan:
        """The same plan with its first event due at another time."""
        if not len(self):
            return self
        by_ns = start_at_ns - int(self.due_ns[0])
        transforms.check_times(self.due_ns, by_ns, f"--start-at {format_time(start_at_ns)}")
        work = None if self.work is None else self.work.moved(by_ns)
        return replace(self, due_ns=self.due_ns + by_ns, work=work)

    def span_rows(self, events: I64) -> tuple[I64, I64, I64, I64]:
        """The spans of `events`: (event, row, start_ns, duration_ns), each of shape (spans,)."""
        rec = self.recording
        if self.settings.unit == "span":
            return events, self.row[events], self.due_ns[events], self.duration_ns[events]
        order, first = _rows_by_trace(rec)
        counts = self.spans[events]
        event = np.repeat(events, counts)
        inside = np.arange(len(event)) - np.repeat(np.cumsum(counts) - counts, counts)
        row = order[first[self.trace[event]] + inside]
        start = self.due_ns[event] + (rec.start_ns[row] - self.recorded_ns[event])
        return event, row, start, rec.duration_ns[row]


@dataclass(frozen=True)
class _Events:
    """Events in recorded time, sorted; arrays of shape (events,)."""

    start_ns: I64
    end_ns: I64
    trace: I64
    row: I64
    spans: I64


def build_plan(recording: Recording, settings: PlanSettings) -> Plan:
    """Apply the transforms to a recording. Raises UsageError where nothing is left."""
    kept = transforms.sample_traces(
        recording.trace_low, recording.trace_high, settings.sample, settings.seed
    )
    sampled = recording if kept.all() else recording.take(kept)
    sampled_rows = len(sampled.start_ns)
    sampled = repeat(sampled, settings.loop)
    events = _events(sampled, settings.unit)
    if not len(events.start_ns):
        raise UsageError(_nothing_left(recording, sampled, settings))
    due, duration = _move(events, settings)
    due, fate = _limit(sampled, events.trace, events.row, due, settings)
    columns = (due, events.start_ns, duration, events.trace, events.row, events.spans)
    if (due[1:] < due[:-1]).any():  # delayed traces overtake nothing, but their spans mix
        order = np.argsort(due, kind="stable")
        columns = tuple(column[order] for column in columns)  # type: ignore[assignment]
        fate = fate[order]
    due, recorded, duration, trace, row, spans = columns
    return Plan(
        settings,
        sampled,
        due,
        recorded,
        duration,
        trace,
        row,
        spans,
        fate,
        traces_sampled_out=int((~kept).sum()),
        spans_sampled_out=len(recording.start_ns) - sampled_rows,
        spans_not_of_unit=len(sampled.start_ns) - int(spans.sum()),
    )


def _nothing_left(recording: Recording, sampled: Recording, settings: PlanSettings) -> str:
    if not sampled.traces:
        return (
            f"--sample {settings.sample} with --seed {settings.seed} keeps none of "
            f"{recording.traces} traces: raise it"
        )
    return f"none of {sampled.traces} traces holds a request: use --unit span or --unit trace"


def _events(recording: Recording, unit: Unit) -> _Events:
    if unit == "span":
        row = _time_order(recording, recording.start_ns, None)
        start = recording.start_ns[row]
        end = start + recording.duration_ns[row]
        return _Events(start, end, recording.trace[row], row, np.ones(len(row), dtype=np.int64))
    order, first = _rows_by_trace(recording)
    counts = np.diff(np.append(first, len(order)))
    if not len(first):
        return _sorted_events(recording, order, order, order, counts)
    start = recording.start_ns[order][first]
    end = np.maximum.reduceat(_ends(recording)[order], first)
    row = order[first]
    if unit == "request":
        asked = recording.is_kind("request")[order]
        of_request = np.flatnonzero(asked)
        traces, where = np.unique(recording.trace[order][of_request], return_index=True)
        row = order[of_request[where]]
        start, end, counts = recording.start_ns[row], end[traces], counts[traces]
    return _sorted_events(recording, start, end, row, counts)


def _ends(recording: Recording) -> I64:
    return recording.start_ns + recording.duration_ns


def _rows_by_trace(recording: Recording) -> tuple[I64, I64]:
    """Rows sorted by trace, start and span id, and where each trace begins among them."""
    in_time = _time_order(recording, recording.start_ns, None)
    order = in_time[np.argsort(recording.trace[in_time], kind="stable")]
    return order, np.searchsorted(recording.trace[order], np.arange(recording.traces))


def _sorted_events(recording: Recording, start: I64, end: I64, row: I64, spans: I64) -> _Events:
    order = _time_order(recording, start, row)
    row = row[order]
    return _Events(start[order], end[order], recording.trace[row], row, spans[order])


def _time_order(recording: Recording, start: I64, row: I64 | None) -> I64:
    """Order of events by start, then trace id and span id. `row` of each; None: all in order.

    Ties are broken by ids, never by where a row lies, so that a plan does not depend on how
    the archive is split into files. Only the ties are sorted by all three: they are few.
    """
    order = argsort(start)
    moments = start[order]
    same = moments[1:] == moments[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    among = order[tied]
    rows = among if row is None else row[among]
    ranked = np.lexsort((recording.span_id[rows], recording.trace[rows], start[among]))
    order[tied] = among[ranked]
    return order


def _move(events: _Events, settings: PlanSettings) -> tuple[I64, I64]:
    """Gap cap, speed and shift: (due_ns, duration_ns)."""
    start, end = events.start_ns, events.end_ns
    if settings.max_gap_ns is not None:
        removed = transforms.cap_gaps(start, end, settings.max_gap_ns)
        start, end = start - removed, end - removed
    origin = int(start[0])
    base = origin if settings.start_at_ns is None else settings.start_at_ns
    due = transforms.change_speed(start - origin, settings.speed)
    transforms.check_times(due, base, f"a start at {format_time(base)}")
    if settings.unit == "span":
        duration = transforms.change_speed(end - origin, settings.speed) - due
    else:
        duration = end - start
    return due + base, duration


def _limit(
    recording: Recording, trace: I64, row: I64, due: I64, settings: PlanSettings
) -> tuple[I64, npt.NDArray[np.uint8]]:
    """Smoothing and the QPS limits, on traces as a whole: (due_ns, fate)."""
    fate = np.full(len(due), Fate.PLANNED, dtype=np.uint8)
    if settings.qps is None and not settings.service_qps and settings.smooth_ns is None:
        return due, fate
    traces, first = np.unique(trace, return_index=True)
    in_time = np.argsort(first)
    arrivals = _Arrivals(recording, settings, traces[in_time], due[first[in_time]])
    if settings.smooth_ns is not None:
        arrivals.time_ns = transforms.smooth(arrivals.time_ns, settings.smooth_ns)
    if settings.service_qps:
        arrivals.limit_services(row[first[in_time]])
    if settings.qps is not None:
        arrivals.limit(np.arange(len(traces)), settings.qps)
    later = np.zeros(recording.traces, dtype=np.int64)
    later[arrivals.trace] = arrivals.time_ns - due[first[in_time]]
    lost = np.zeros(recording.traces, dtype=np.bool_)
    lost[arrivals.trace] = arrivals.is_lost
    fate[lost[trace]] = Fate.DROPPED if settings.over == "drop" else Fate.THINNED
    return due + later[trace], fate


class _Arrivals:
    """Traces by arrival. Arrays of shape (traces,)."""

    def __init__(
        self, recording: Recording, settings: PlanSettings, trace: I64, time_ns: I64
    ) -> None:
        self.recording, self.settings = recording, settings
        self.trace, self.time_ns = trace, time_ns
        self.is_lost = np.zeros(len(trace), dtype=np.bool_)

    def limit_services(self, row: I64) -> None:
        """Each service that has a limit; a trace is of the service of its first event (`row`)."""
        codes, words = self.recording.dictionary("service")
        for service, qps in self.settings.service_qps:
            if service not in words:
                raise UsageError(
                    f"--qps {service}={qps}: no such service; there are {', '.join(sorted(words))}"
                )
            self.limit(np.flatnonzero(codes[row] == words.index(service)), qps)

    def limit(self, which: I64, qps: Fraction) -> None:
        """Hold those at `which` to a rate: move them, or mark them lost."""
        which = which[~self.is_lost[which]]
        which = which[np.argsort(self.time_ns[which], kind="stable")]
        if not len(which):
            return
        asked, time_ns = self.settings, self.time_ns[which]
        size = asked.burst_of(qps)
        burst, window = min(size, len(which)), transforms.rate_window(qps, size)
        if asked.over == "delay":
            origin = time_ns[0]
            self.time_ns[which] = transforms.delay(time_ns - origin, burst, window) + origin
        elif asked.over == "drop":
            self.is_lost[which] = ~transforms.drop(time_ns, burst, window)
        else:
            ids, rec = self.trace[which], self.recording
            rank = transforms.seeded_rank(rec.trace_low[ids], rec.trace_high[ids], asked.seed + 1)
            self.is_lost[which] = ~transforms.thin(time_ns, rank, burst, window)
