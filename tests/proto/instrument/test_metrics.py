"""Custom metrics are declared in words that Prometheus can tell apart."""

import pytest
from spanlite.errors import UsageError
from spanlite.instrument import metrics


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(metrics, "_registry", dict(metrics._registry))
    monkeypatch.setattr(metrics, "_taken", dict(metrics._taken))


@pytest.mark.parametrize("name", ["", "n" * 201, "two\nlines", "a{b}"])
def test_a_name_is_short_printable_and_without_a_brace(name):
    with pytest.raises(UsageError, match="cannot name a metric"):
        metrics.counter(name)


@pytest.mark.parametrize("label", ["", "l" * 201, "a,b", "a=b", "a;b", "{a", "\t"])
def test_a_label_is_short_printable_and_without_marks(label):
    with pytest.raises(UsageError, match="cannot name a label"):
        metrics.gauge("fine", labels=[label])


def test_names_of_the_collectors_own_are_refused():
    with pytest.raises(UsageError, match="as the collector's own are"):
        metrics.counter("spanlite_agent_steps")


@pytest.mark.parametrize(
    ("make", "label"), [("gauge", "pid"), ("counter", "service"), ("histogram", "le")]
)
def test_labels_that_the_collector_adds_are_refused(make, label):
    with pytest.raises(UsageError, match="from the collector"):
        getattr(metrics, make)("fine", labels=[label])


def test_two_names_that_are_one_on_the_page_are_refused():
    metrics.counter("my.hits")
    with pytest.raises(UsageError, match=r"as metric my\.hits is already"):
        metrics.counter("my_hits")
    with pytest.raises(UsageError, match="two labels would be a_b"):
        metrics.gauge("fine", labels=["a.b", "a_b"])


def test_the_same_metric_may_be_declared_again_and_no_other_of_its_name():
    metrics.counter("again", per="layer")
    assert metrics.counter("again", labels=["layer"]).labels == ("layer",)
    with pytest.raises(UsageError, match=r"is already a counter with the labels layer"):
        metrics.gauge("again", per="layer")
    with pytest.raises(UsageError, match="is already a counter"):
        metrics.counter("again")


def test_what_is_refused_leaves_no_name_taken():
    with pytest.raises(UsageError):
        metrics.histogram("fresh", labels=["le"])
    metrics.counter("fresh")
