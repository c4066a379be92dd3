"""Series of custom metrics: whatever a process sends, the page stays valid and bounded."""

from __future__ import annotations

import math
import os
import subprocess
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from spanlite_collectors.agent import metrics as module
from spanlite_collectors.agent.convert import UNPLACED, Sample
from spanlite_collectors.agent.messages import Metric
from spanlite_collectors.agent.metrics import CustomMetrics

HERE = {"service.name": "s", "process.pid": os.getpid()}


class Page:
    """A page of metrics and what was said meanwhile."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.custom = CustomMetrics(self.said.append)
        self._registry = CollectorRegistry()
        self._registry.register(self.custom)

    def take(self, kind: str, name: str, value: float, pid: int = 0, **labels: str) -> None:
        resource = HERE | ({"process.pid": pid} if pid else {})
        metric = Metric(kind, name, tuple(sorted(labels.items())))
        self.custom.take(resource, Sample(metric, value))

    def read(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """All series, as a strict parser reads them."""
        text = generate_latest(self._registry).decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def refused(self) -> dict[str, float]:
        name = "spanlite_custom_metrics_refused_total"
        return {labels[0][1]: value for (of, labels), value in self.read().items() if of == name}


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["counter", "histogram"])
def test_what_is_no_number_spoils_no_sum(page: Page, kind: str, value: float) -> None:
    page.take(kind, "hits", 5)
    page.take(kind, "hits", value)
    page.take(kind, "hits", 1)
    suffix = "total" if kind == "counter" else "sum"
    assert page.read()[f"hits_{suffix}", (("service", "s"),)] == 6
    assert page.refused() == {"not_finite": 1}
    assert len(page.said) == 1 and "'hits'" in page.said[0]


def test_a_gauge_may_be_infinite(page: Page) -> None:
    page.take("gauge", "q", math.inf)
    assert page.read()["q", (("pid", str(os.getpid())), ("service", "s"))] == math.inf


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("counter", "a.b"), ("counter", "a_b")),
        (("counter", "foo"), ("counter", "foo.total")),
        (("counter", "foo"), ("gauge", "foo")),
        (("histogram", "h"), ("counter", "h.count")),
    ],
)
def test_of_names_that_are_one_on_the_page_the_first_stays(
    page: Page, first: tuple[str, str], second: tuple[str, str]
) -> None:
    page.take(*first, 1)
    before = page.read()
    page.take(*second, 2)
    assert page.refused() == {"name_collides": 1}
    assert before.items() <= page.read().items()


def test_names_of_the_collectors_own_are_refused(page: Page) -> None:
    page.take("counter", "spanlite_received_spans", 1)
    assert page.refused() == {"name_of_collector": 1}


def test_a_users_label_stands_in_for_none_of_the_pages(page: Page) -> None:
    page.take("counter", "x", 1, service="u")
    page.take("histogram", "h", 1, le="u")
    page.take("counter", "y", 1, **{"a.b": "1", "a_b": "2"})
    series = page.read()
    assert series["x_total", (("exported_service", "u"), ("service", "s"))] == 1
    assert series["h_count", (("exported_le", "u"), ("service", "s"))] == 1
    assert page.refused() == {"labels_collide": 1}


def test_gauges_of_two_processes_are_two(page: Page) -> None:
    page.take("gauge", "queue.length", 40)
    page.take("gauge", "queue.length", 2, pid=os.getppid())
    gauges = [value for (name, _), value in page.read().items() if name == "queue_length"]
    assert sorted(gauges) == [2, 40]


def test_one_metric_does_not_take_the_room_of_others(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SERIES_OF_METRIC", 10)
    for number in range(15):
        page.take("counter", "many", 1, sequence=str(number))
    page.take("counter", "other", 1)
    assert sum(name == "many_total" for name, _ in page.read()) == 10
    assert page.read()["other_total", (("service", "s"),)] == 1
    assert page.refused() == {"too_many_series_of_metric": 5}


def test_all_of_them_have_a_bound(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 3)
    for number in range(5):
        page.take("counter", f"metric{number}", 1)
    assert page.refused() == {"too_many_series": 2}


def test_values_of_a_process_are_never_trusted(page: Page) -> None:
    odd: list[tuple[str, str, dict[str, Any]]] = [
        ("counter", "", {}),
        ("gauge", "9 lives\n", {"ü": "\n"}),
        ("histogram", '"', {"__name__": "x"}),
    ]
    for kind, name, labels in odd:
        page.take(kind, name, 1, **labels)
    assert page.refused() == {"name_empty": 1}  # raises where the page is not valid


def test_values_that_no_span_has_are_counted(page: Page) -> None:
    page.take(UNPLACED, "", 2)
    page.take(UNPLACED, "", 3)
    assert page.read()["spanlite_custom_metrics_unplaced_total", ()] == 5


def test_gauges_of_a_process_that_has_ended_are_let_go(page: Page) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        page.take("gauge", "depth", 1, pid=process.pid)
        page.take("counter", "hits", 1, pid=process.pid)
        page.take("gauge", "depth", 2)
        assert len([name for name, _ in page.read() if name == "depth"]) == 2
        process.kill()
    depths = {labels: value for (name, labels), value in page.read().items() if name == "depth"}
    assert list(depths.values()) == [2]
    assert page.read()["hits_total", (("service", "s"),)] == 1


def test_gauges_of_silent_processes_make_room(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of processes that cannot be seen from here; a name whose gauges are gone is free again."""
    now = 0.0
    monkeypatch.setattr(module, "MAX_SERIES", 2)
    page.custom._clock = lambda: now
    page.take("gauge", "old", 1, pid=1 << 30)
    page.take("gauge", "young", 1, pid=(1 << 30) + 1)
    page.take("gauge", "late", 1, pid=(1 << 30) + 2)
    assert page.refused() == {"too_many_series": 1}
    now = module.QUIET_S + 1
    page.take("gauge", "young", 2, pid=(1 << 30) + 1)
    page.take("gauge", "late", 1, pid=(1 << 30) + 2)
    assert {name for name, _ in page.read() if not name.startswith("spanlite")} == {"young", "late"}
    page.take("counter", "old", 1)
    assert page.refused() == {"too_many_series": 2}
