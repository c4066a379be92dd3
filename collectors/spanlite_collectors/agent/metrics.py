"""Prometheus series of the agents on a host and of the custom metrics in their spans."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from spanlite.metric_names import OWN_LABELS, family_name, is_own, page_name, taken_names

from spanlite_collectors.agent.convert import UNPLACED, Sample
from spanlite_collectors.agent.messages import Metric
from spanlite_collectors.agent.resource import start_ticks
from spanlite_collectors.agent.source import RingSource

#: Seconds, bytes or milliseconds alike: a decade each in three steps.
BUCKETS = tuple(factor * 10.0**power for power in range(-3, 6) for factor in (1, 2, 5))
#: Label sets that a host keeps, and of each metric: a label that never repeats must not fill its
#: memory, nor take the room of all other metrics.
MAX_SERIES, MAX_SERIES_OF_METRIC = 10_000, 2_000
#: Where there is no room, gauges of processes that have sent no value for so long are let go.
QUIET_S = 600.0

_Labels = tuple[tuple[str, str], ...]


class AgentMetrics(Collector):
    """What each process's agent says of itself, whenever Prometheus asks."""

    def __init__(self, source: RingSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Family]:
        """One family a figure, one series a process."""
        processes = self._source.processes()
        labels = ["pid"]
        for name, text, figure in (
            ("spanlite_agent_steps", "Steps seen", "steps"),
            ("spanlite_agent_steps_covered", "Whole steps in capture windows", "steps_covered"),
            ("spanlite_agent_windows", "Capture windows closed", "windows"),
            ("spanlite_agent_detaches", "Times that CUPTI was detached", "detaches"),
            ("spanlite_agent_records", "CUPTI records read", "records"),
        ):
            counter = CounterMetricFamily(name, text, labels=labels)
            for process in processes:
                counter.add_metric([str(process.pid)], getattr(process, figure))
            yield counter
        cost = GaugeMetricFamily(
            "spanlite_agent_cost_ratio",
            "Measured share of step time that capture costs",
            None,
            labels,
        )
        attached = GaugeMetricFamily(
            "spanlite_agent_attached", "Whether CUPTI is in the process now", None, labels
        )
        disabled = GaugeMetricFamily(
            "spanlite_agent_disabled", "1 where kernels are not recorded", labels=["pid", "reason"]
        )
        for process in processes:
            cost.add_metric([str(process.pid)], process.cost_ppm / 1e6)
            attached.add_metric([str(process.pid)], float(process.attached))
            if process.disabled:
                disabled.add_metric([str(process.pid), process.disabled], 1.0)
        yield from (cost, attached, disabled)
        lost = CounterMetricFamily(
            "spanlite_agent_dropped_records", "Records lost", labels=["pid", "reason"]
        )
        for process in processes:
            for reason, count in process.dropped.items():
                lost.add_metric([str(process.pid), reason], count)
        yield lost
        account = self._source.account()
        for name, text, value in (
            ("spanlite_agent_ring_records", "Records read from rings", account.records),
            ("spanlite_agent_ring_rows", "Records that become a span each", account.rows),
            ("spanlite_agent_spans", "Spans made of them", account.spans),
        ):
            yield CounterMetricFamily(name, text, float(value))
        yield GaugeMetricFamily(
            "spanlite_agent_waiting_rows",
            "Records that wait for what they belong to",
            float(account.waiting),
        )
        yield GaugeMetricFamily(
            "spanlite_agent_damaged_rings", "Rings set aside", float(self._source.damaged_rings)
        )
        yield GaugeMetricFamily(
            "spanlite_agent_reading_troubles",
            "Folders that cannot be searched now, rings that cannot be opened, and the like",
            float(self._source.troubles_now),
        )


class _RefusedError(Exception):
    """A value that cannot be on the page. Its text is the `reason` there."""


@dataclass
class _Series:
    value: float = 0.0
    #: Of a histogram: how many values each bucket has, and the last one those above all.
    counts: list[int] = field(default_factory=list)


@dataclass
class _Process:
    """A process that has gauges here, which end with it."""

    pid: int
    #: None: it cannot be seen from here, or has ended before its values came.
    ticks: int | None
    heard: float


class _Family:
    """One metric: the values of all its label sets."""

    def __init__(self, metric: Metric) -> None:
        self.kind, self.name = metric.kind, metric.name
        self.series: dict[_Labels, _Series] = {}

    def take(self, labels: _Labels, value: float) -> None:
        """Add a value. Raises _RefusedError where it would spoil the series."""
        known = self.series.get(labels) or _Series()
        if self.kind == "gauge":
            known.value = value
        else:
            total = known.value + value
            if not math.isfinite(total):
                raise _RefusedError("not_finite")
            if self.kind == "counter" and value < 0:
                raise _RefusedError("negative")
            known.value = total
        if self.kind == "histogram":
            known.counts = known.counts or [0] * (len(BUCKETS) + 1)
            known.counts[sum(value > bound for bound in BUCKETS)] += 1
        self.series[labels] = known

    def copy(self) -> Family:
        """As the page has it. Label names may differ from value to value."""
        words = sorted({word for labels in self.series for word, _ in labels})
        family = _FAMILIES[self.kind](
            family_name(self.kind, self.name), f"Custom {self.kind} {self.name}", labels=words
        )
        for labels, series in self.series.items():
            row = [dict(labels).get(word, "") for word in words]
            if self.kind == "histogram":
                # OpenMetrics has no sum below 0: that of values below 0 is left out.
                total = series.value if series.value >= 0 else None
                family.add_metric(row, _cumulated(series.counts), total)
            else:
                family.add_metric(row, series.value)
        made: Family = family
        return made


def _say(text: str) -> None:
    print(f"spanlite: {text}", file=sys.stderr, flush=True)


class CustomMetrics(Collector):
    """Values that `spanlite.instrument.metrics` put into ranges, as series of this host.

    They come from any process, so nothing about them is taken on trust: what would make the page
    invalid or endless is left out and counted.
    """

    def __init__(
        self,
        say: Callable[[str], None] = _say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._clock = say, clock
        self._lock = threading.Lock()
        self._families: dict[tuple[str, str], _Family] = {}
        #: Name on the page -> the family that has it: the first that came.
        self._taken: dict[str, tuple[str, str]] = {}
        self._processes: dict[str, _Process] = {}
        self._refused: Counter[str] = Counter()
        self._unplaced = 0.0
        self._count = 0

    @property
    def refused(self) -> int:
        """Values that are not on the page."""
        return self._refused.total()

    def take(self, resource: Mapping[str, Any], sample: Sample) -> None:
        """Add one value."""
        metric = sample.metric
        with self._lock:
            if metric.kind == UNPLACED:
                self._unplaced += sample.value
                return
            try:
                self._take(resource, metric, sample.value)
            except _RefusedError as error:
                self._refuse(str(error), metric)

    def _refuse(self, reason: str, metric: Metric) -> None:
        self._refused[reason] += 1
        if self._refused[reason] == 1:
            self._say(
                f"a value of the custom metric {metric.name[:80]!r} is not on the page of metrics: "
                f"{reason}; all such are counted in spanlite_custom_metrics_refused_total"
            )

    def _take(self, resource: Mapping[str, Any], metric: Metric, value: float) -> None:
        if metric.kind != "gauge" and not math.isfinite(value):
            raise _RefusedError("not_finite")
        key = (metric.kind, metric.name)
        family = self._families.get(key) or self._new_family(metric)
        pid = str(resource.get("process.host_pid", resource.get("process.pid", "")))
        labels = _page_labels(metric, str(resource.get("service.name", "")), pid)
        if metric.kind == "gauge":
            self._hear(pid)
        new = labels not in family.series
        if new:
            self._make_room(family)
        family.take(labels, value)
        self._count += new
        if key not in self._families:
            self._families[key] = family
            self._taken.update(dict.fromkeys(taken_names(*key), key))

    def _new_family(self, metric: Metric) -> _Family:
        if not metric.name:
            raise _RefusedError("name_empty")
        if is_own(metric.kind, metric.name):
            raise _RefusedError("name_of_collector")
        if any(name in self._taken for name in taken_names(metric.kind, metric.name)):
            raise _RefusedError("name_collides")
        return _Family(metric)

    def _make_room(self, family: _Family) -> None:
        if self._why_full(family):
            since = self._clock() - QUIET_S
            self._let_go({pid for pid, of in self._processes.items() if of.heard < since})
        if reason := self._why_full(family):
            raise _RefusedError(reason)

    def _why_full(self, family: _Family) -> str:
        if len(family.series) >= MAX_SERIES_OF_METRIC:
            return "too_many_series_of_metric"
        return "too_many_series" if self._count >= MAX_SERIES else ""

    def _hear(self, pid: str) -> None:
        known = self._processes.get(pid)
        if known is None:
            number = int(pid) if pid.isdecimal() else 0
            known = self._processes[pid] = _Process(number, start_ticks(number), 0.0)
        known.heard = self._clock()

    def _let_go(self, pids: set[str]) -> None:
        """Gauges say what is now: those of processes that are no more say nothing."""
        if not pids:
            return
        for pid in pids:
            del self._processes[pid]
        for key, family in list(self._families.items()):
            if family.kind != "gauge":
                continue
            stay = {k: v for k, v in family.series.items() if dict(k).get("pid", "") not in pids}
            self._count -= len(family.series) - len(stay)
            family.series = stay
            if not stay:
                del self._families[key]
                for name in taken_names(*key):
                    del self._taken[name]

    def _ended(self) -> set[str]:
        return {
            pid
            for pid, process in self._processes.items()
            if process.ticks is not None and start_ticks(process.pid) != process.ticks
        }

    def collect(self) -> Iterator[Family]:
        """One family a metric, and what is on none of them."""
        with self._lock:
            self._let_go(self._ended())
            families = [family.copy() for _, family in sorted(self._families.items())]
            counts, unplaced = dict(self._refused), self._unplaced
        refused = CounterMetricFamily(
            "spanlite_custom_metrics_refused",
            "Values of custom metrics that are not on this page",
            labels=["reason"],
        )
        for reason, count in sorted(counts.items()):
            refused.add_metric([reason], count)
        yield refused
        yield CounterMetricFamily(
            "spanlite_custom_metrics_unplaced",
            "Values of custom metrics that no span has: of too many open ranges or too many of one",
            unplaced,
        )
        yield from families


def _page_labels(metric: Metric, service: str, pid: str) -> _Labels:
    """A series' labels; Prometheus takes an empty one for none. Raises _RefusedError."""
    own = OWN_LABELS[metric.kind]
    # A user's label never stands in for one of ours: renamed as Prometheus does it.
    pairs: dict[str, str] = {}
    for label, text in metric.labels:
        name = page_name(label)
        if name in own or name.startswith("__"):
            name = f"exported_{name}"
        if name in pairs:
            raise _RefusedError("labels_collide")
        pairs[name] = text
    pairs["service"] = service
    if metric.kind == "gauge":
        pairs["pid"] = pid
    return tuple(sorted((name, text) for name, text in pairs.items() if name and text))


_FAMILIES: dict[str, Callable[..., Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _cumulated(counts: list[int]) -> list[tuple[str, int]]:
    total, out = 0, []
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
        total += count
        out.append((bound, total))
    return out
