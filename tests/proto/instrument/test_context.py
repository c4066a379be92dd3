import pytest
from spanlite.errors import UsageError
from spanlite.instrument import metrics
from spanlite.instrument._context import new_traceparent, traceparent_of

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Context:
    trace_id, span_id = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7


class Span:
    def get_span_context(self):
        return Context()


@pytest.mark.parametrize(
    "context", [GOOD, GOOD.upper(), {"TraceParent": GOOD}, Context(), Span(), f" {GOOD} "]
)
def test_contexts_of_all_kinds(context):
    assert traceparent_of(context) == GOOD


@pytest.mark.parametrize(
    "context",
    ["", "nonsense", {}, {"traceparent": "00-0-0-00"}, f"00-{0:032x}-{1:016x}-01", object()],
)
def test_what_is_no_context(context):
    assert traceparent_of(context) is None


def test_new_contexts_are_valid_and_differ():
    made = {new_traceparent() for _ in range(100)}
    assert len(made) == 100
    assert all(traceparent_of(text) == text for text in made)


def test_a_metric_is_declared_once():
    first = metrics.gauge("test.gauge", per="layer")
    assert first.labels == ("layer",)
    metrics.gauge("test.gauge", labels=["layer"])
    with pytest.raises(UsageError, match="already a gauge"):
        metrics.counter("test.gauge", per="layer")
    with pytest.raises(UsageError, match="cannot go down"):
        metrics.counter("test.down").add(-1)


def test_the_ready_made_probes_are_registered():
    names = {metric.name: metric.per for metric in metrics.registered()}
    assert names["rope.freq_inv_max"] == "sequence"
    assert names["flash_attn.recompute_count"] == "layer"
    assert "rope.cosine_compute_ms" in names
