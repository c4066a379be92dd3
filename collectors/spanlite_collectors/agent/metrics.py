"""Prometheus series of the agents on a host and of the custom metrics in their spans."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from spanlite_collectors.agent.convert import Sample
from spanlite_collectors.agent.source import RingSource

#: Seconds, bytes or milliseconds alike: a decade each in three steps.
BUCKETS = tuple(factor * 10.0**power for power in range(-3, 6) for factor in (1, 2, 5))
#: Label sets a host keeps; a label that never repeats must not fill its memory.
MAX_SERIES = 10_000
_BAD = re.compile(r"[^a-zA-Z0-9_]")

_Key = tuple[str, str, tuple[tuple[str, str], ...]]


class AgentMetrics(Collector):
    """What each process's agent says of itself, whenever Prometheus asks."""

    def __init__(self, source: RingSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Family]:
        """One family a figure, one series a process."""
        processes = self._source.processes()
        labels = ["pid"]
        for name, text, field in (
            ("spanlite_agent_steps", "Steps seen", "steps"),
            ("spanlite_agent_steps_covered", "Whole steps in capture windows", "steps_covered"),
            ("spanlite_agent_windows", "Capture windows closed", "windows"),
            ("spanlite_agent_detaches", "Times that CUPTI was detached", "detaches"),
            ("spanlite_agent_records", "CUPTI records read", "records"),
        ):
            counter = CounterMetricFamily(name, text, labels=labels)
            for process in processes:
                counter.add_metric([str(process.pid)], getattr(process, field))
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
        for process in processes:
            cost.add_metric([str(process.pid)], process.cost_ppm / 1e6)
            attached.add_metric([str(process.pid)], float(process.attached))
        yield from (cost, attached)
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


class CustomMetrics(Collector):
    """Values that `spanlite.instrument.metrics` put into ranges, as series of this host."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[_Key, float] = {}
        self._counts: dict[_Key, list[int]] = {}
        self.refused = 0

    def take(self, resource: Mapping[str, Any], sample: Sample) -> None:
        """Add one value."""
        metric = sample.metric
        labels = (("service", str(resource.get("service.name", ""))), *metric.labels)
        key = (metric.kind, metric.name, labels)
        with self._lock:
            if key not in self._values and len(self._values) >= MAX_SERIES:
                self.refused += 1
                return
            before = self._values.get(key, 0.0)
            self._values[key] = sample.value + (before if metric.kind != "gauge" else 0.0)
            if metric.kind == "histogram":
                counts = self._counts.setdefault(key, [0] * (len(BUCKETS) + 1))
                counts[sum(sample.value > bound for bound in BUCKETS)] += 1

    def collect(self) -> Iterator[Family]:
        """One family a metric; a metric's label names may differ from value to value."""
        with self._lock:
            values, counts = dict(self._values), {k: list(v) for k, v in self._counts.items()}
        names = sorted({(kind, name) for kind, name, _ in values})
        for kind, name in names:
            mine = {key: value for key, value in values.items() if key[:2] == (kind, name)}
            words = sorted({word for _, _, labels in mine for word, _ in labels})
            family = _FAMILIES[kind](_name(name), f"Custom {kind} {name}", labels=map(_name, words))
            for key, value in mine.items():
                row = [dict(key[2]).get(word, "") for word in words]
                if kind == "histogram":
                    family.add_metric(row, _cumulated(counts[key]), value)
                else:
                    family.add_metric(row, value)
            yield family


_FAMILIES: dict[str, Callable[..., Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _name(text: str) -> str:
    return _BAD.sub("_", text)


def _cumulated(counts: list[int]) -> list[tuple[str, int]]:
    total, out = 0, []
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
        total += count
        out.append((bound, total))
    return out
