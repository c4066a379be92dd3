"""Server spans of OpenTelemetry as requests: odd names, and spans that never end."""

import pytest

BEGIN = r"""
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind
from spanlite.instrument import otel
otel._MAX_OPEN = 3
provider = TracerProvider()
provider.add_span_processor(otel.SpanLiteSpanProcessor())
tracer = provider.get_tracer("t")
def serve(name): return tracer.start_span(name, kind=SpanKind.SERVER)
"""


@pytest.fixture
def served(spans):
    pytest.importorskip("opentelemetry.sdk")
    return lambda code: spans(BEGIN + code)


def test_a_name_without_utf_8_becomes_a_request(served):
    rows = served(r"""serve("caf\ud800").end(); serve("tea").end()""")
    assert [row["name"] for row in rows] == ["caf?", "tea"]


def test_the_oldest_is_given_up_where_too_many_are_open(served):
    rows = served(
        """
opened = [serve(str(number)) for number in range(5)]
for span in opened: span.end()
"""
    )
    rows.sort(key=lambda row: row["name"])
    assert [row["name"] for row in rows] == list("01234")
    begins = [row["start_ns"] for row in rows]
    ends = [row["start_ns"] + row["duration_ns"] for row in rows]
    for given_up in (0, 1):
        assert begins[given_up + 2] <= ends[given_up] <= begins[given_up + 3]
    assert min(ends[2:]) >= begins[4]


def test_what_is_open_ends_with_the_provider(served):
    rows = served("""opened = [serve("a"), serve("b")]; provider.shutdown(); opened[0].end()""")
    assert sorted(row["name"] for row in rows) == ["a", "b"]
