"""Prometheus metrics of a collector, and its health page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from spanlite_collectors.delivery import SinkStats
from spanlite_collectors.http_server import HttpServer

DEFAULT_PORT = 9464

#: SinkStats field -> (metric, what it means). Counters only grow, gauges say what is now.
_COUNTERS = {
    "received_spans": ("spanlite_received_spans", "Spans written to delivery"),
    "delivered_spans": ("spanlite_delivered_spans", "Spans that the broker has acknowledged"),
    "delivered_messages": ("spanlite_delivered_batches", "Batches acknowledged by the broker"),
    "delivered_bytes": ("spanlite_delivered_bytes", "Bytes acknowledged, before compression"),
    "lost_spans": ("spanlite_lost_spans", "Numbered spans that never reached the broker"),
    "spooled_messages": ("spanlite_spooled_batches", "Batches written to the disk spool"),
    "replayed_messages": ("spanlite_replayed_batches", "Batches sent from the disk spool"),
    "spool_torn_records": ("spanlite_spool_torn_batches", "Damaged batches found in the spool"),
    "producer_restarts": ("spanlite_producer_restarts", "Times the producer had to start anew"),
}
_GAUGES = {
    "waiting_spans": ("spanlite_waiting_spans", "Spans in batches that are not full yet"),
    "on_way_messages": ("spanlite_unacknowledged_batches", "Batches handed to the producer"),
    "on_way_bytes": ("spanlite_unacknowledged_bytes", "Bytes handed to the producer"),
    "spool_bytes": ("spanlite_spool_bytes", "Bytes of the disk spool"),
    "spool_messages": ("spanlite_spool_batches", "Batches in the disk spool"),
    "spooling": ("spanlite_spooling", "1 while new batches go to the disk spool"),
    "broker_away": ("spanlite_broker_away", "1 while the broker does not answer"),
}


class DeliveryMetrics(Collector):
    """Reads a sink's counts whenever Prometheus asks."""

    def __init__(self, stats: Callable[[], SinkStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """One family a count."""
        now = self._stats()
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=getattr(now, field))
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=float(getattr(now, field)))
        dropped = CounterMetricFamily(
            "spanlite_dropped_spans", "Spans not sent, as told in the ledger", labels=["reason"]
        )
        for reason, count in sorted(now.dropped_spans.items()):
            dropped.add_metric([reason], count)
        yield dropped


class OtlpMetrics:
    """Counts what the OTLP receiver tells."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "spanlite_otlp_requests", "OTLP requests answered", ["status"], registry=registry
        )
        self._refused = Counter(
            "spanlite_otlp_refused_spans", "OTLP spans refused", ["reason"], registry=registry
        )
        self._seconds = Histogram(
            "spanlite_otlp_request_seconds", "Time to answer a request", registry=registry
        )

    def request(self, status: int, seconds: float) -> None:
        """A request was answered."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def refused(self, reason: str, spans: int) -> None:
        """Spans of a request could not be kept."""
        self._refused.labels(reason).inc(spans)


class MetricsServer(HttpServer):
    """GET /metrics, /healthz (do delivery and the reading of rings go on), /readyz (for spans).

    Raises ServiceError where the port is taken.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        address: tuple[str, int],
        *,
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
    ) -> None:
        self.registry, self.healthy, self.ready = registry, healthy, ready
        super().__init__(address, _Handler, "metrics")


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version = "spanlite"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """One of the three pages."""
        page = self.path.partition("?")[0]
        if page == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, encode(self.server.registry), kind)
        elif page == "/healthz":
            self._say(self.server.healthy())
        elif page == "/readyz":
            self._say(self.server.ready())
        else:
            self._answer(404, b"see /metrics, /healthz, /readyz\n", "text/plain")

    def log_message(self, format: str, *args: Any) -> None:
        """Not worth a line each."""

    def _say(self, good: bool) -> None:
        self._answer(200 if good else 503, b"ok\n" if good else b"not ok\n", "text/plain")

    def _answer(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
