"""An OTLP/HTTP receiver that any OpenTelemetry SDK can point at: POST /v1/traces.

One thread a connection, from the standard library: a host has a handful of exporters, each
with one connection that it keeps, and all time goes into decoding and delivery anyway.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol

from spanlite.errors import ServiceError

from spanlite_collectors.http_server import HttpServer
from spanlite_collectors.importers.otlp import convert_request
from spanlite_collectors.receiver import request as body
from spanlite_collectors.receiver.request import Refusal
from spanlite_collectors.sinks import SpanSink

DEFAULT_PORT = 4318
TRACES_PATH = "/v1/traces"
#: The OpenTelemetry collector's default limit is 20 MiB.
DEFAULT_BODY_BYTES = 20 << 20
#: What a gzip body may unpack to, as a multiple of the limit above.
UNPACK_FACTOR = 4
#: Connections served at once; further ones are told to come back.
MAX_CONNECTIONS = 128
#: A connection that says nothing for this long is closed.
IDLE_TIMEOUT_S = 60
RETRY_AFTER_S = 5
#: What a refused sender may still be sending is read and thrown away, so that it gets to the
#: answer: so many bytes and seconds at most.
DRAIN_BYTES = 256 << 20
DRAIN_S = 10
#: A length of more digits is larger than any limit.
_LENGTH_DIGITS = 18


class ReceiverMetrics(Protocol):
    """What the receiver tells while it works."""

    def request(self, status: int, seconds: float) -> None:
        """A request was answered."""
        ...

    def refused(self, reason: str, spans: int) -> None:
        """Spans of a request could not be kept."""
        ...


class NoMetrics:
    """Tells nobody."""

    def request(self, status: int, seconds: float) -> None:
        """Ignore it."""

    def refused(self, reason: str, spans: int) -> None:
        """Ignore it."""


class OtlpHttpServer(HttpServer):
    """Receives traces and writes them to a sink. `start`, then `stop`.

    `overloaded` is asked before a body is read: while it says yes, senders are told to
    come back, so that they keep their spans. Raises ServiceError where the port is taken.
    """

    request_queue_size = 64
    page = TRACES_PATH

    def __init__(
        self,
        sink: SpanSink,
        address: tuple[str, int],
        *,
        overloaded: Callable[[], bool] = lambda: False,
        max_body_bytes: int = DEFAULT_BODY_BYTES,
        metrics: ReceiverMetrics | None = None,
    ) -> None:
        self.sink, self.overloaded, self.max_body_bytes = sink, overloaded, max_body_bytes
        self.metrics: ReceiverMetrics = metrics or NoMetrics()
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._busy = 0
        self._idle = threading.Condition()
        self.stopping = False
        super().__init__(address, _Handler, "otlp")

    def stop(self, timeout_s: float = 5.0) -> None:
        """Take no more requests; return when those that are being read are answered."""
        self.stopping = True
        super().stop()
        with self._idle:
            self._idle.wait_for(lambda: self._busy == 0, timeout_s)

    def busy(self, change: int) -> None:
        """A handler starts (+1) or ends (-1) a request."""
        with self._idle:
            self._busy += change
            self._idle.notify_all()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, if there are not too many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        request.sendall(
            f"HTTP/1.1 503 Busy\r\nRetry-After: {RETRY_AFTER_S}\r\n"
            "Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Make room again when the connection ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks off is the sender's business; no traceback."""

    def server_close(self) -> None:
        """Close the port, and do not wait for connections that are merely kept open."""
        self.socket.close()


class _Handler(BaseHTTPRequestHandler):
    server: OtlpHttpServer
    protocol_version = "HTTP/1.1"
    server_version = "spanlite"
    sys_version = ""
    timeout = IDLE_TIMEOUT_S

    def do_POST(self) -> None:
        """Take one export request."""
        began = time.perf_counter()
        self.server.busy(+1)
        status = 500
        try:
            status = self._post()
        finally:
            self.server.busy(-1)
            self.server.metrics.request(status, time.perf_counter() - began)

    def do_GET(self) -> None:
        """Nothing is to be got here."""
        refusal = Refusal(404, f"POST traces to {TRACES_PATH}")
        if self.path.partition("?")[0] == TRACES_PATH:
            refusal = Refusal(405, "use POST")
        self._refuse(refusal)

    do_PUT = do_DELETE = do_HEAD = do_PATCH = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are counted, not logged."""

    def _post(self) -> int:
        try:
            refused = self._take()
        except Refusal as refusal:
            return self._refuse(refusal)
        except ServiceError as error:
            return self._refuse(Refusal(503, str(error), RETRY_AFTER_S))
        except OSError:
            raise  # of the connection: nobody is there to be told
        except Exception as error:
            # Ours, and never the sender's; it shows in the metrics as a status of 500.
            return self._refuse(Refusal(500, f"internal error: {type(error).__name__}"))
        kind = self._content_type
        self._answer(200, *body.encode(body.partial_success(refused), kind))
        return 200

    @property
    def _content_type(self) -> str:
        return self.headers.get("Content-Type", "")

    def _take(self) -> dict[str, int]:
        """Spans to the sink; the refused ones by reason."""
        server = self.server
        if self.path.partition("?")[0] != TRACES_PATH:
            raise Refusal(404, f"POST traces to {TRACES_PATH}")
        if server.stopping or server.overloaded():
            raise Refusal(503, "the collector is overloaded or stopping", RETRY_AFTER_S)
        encoding = self.headers.get("Content-Encoding", "").strip().lower()
        plain = body.unpack(self._read_body(), encoding, server.max_body_bytes * UNPACK_FACTOR)
        conversion = convert_request(body.read_request(plain, self._content_type))
        for spans, resource in conversion.batches:
            server.sink.write(spans, resource)
        for reason, count in conversion.refused.items():
            server.sink.drop(reason, count)
            server.metrics.refused(reason, count)
        return dict(conversion.refused)

    def _read_body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            # With both, two programs may read two different requests.
            given = "Content-Length" in self.headers
            raise Refusal(400 if given else 411, "send a Content-Length and no Transfer-Encoding")
        lengths = set(self.headers.get_all("Content-Length", []))
        if not lengths:
            raise Refusal(411, "send a Content-Length")
        length = lengths.pop()
        if lengths or not re.fullmatch("[0-9]+", length):
            raise Refusal(400, f"Content-Length '{length[:40]}' is not one number")
        limit = self.server.max_body_bytes
        if len(length.lstrip("0")) > _LENGTH_DIGITS or int(length) > limit:
            raise Refusal(413, f"the body is larger than the limit of {limit} bytes")
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            raise Refusal(400, f"{len(data)} of {length} bytes came")
        return data

    def _refuse(self, refusal: Refusal) -> int:
        # What is left of the body would be read as the next request.
        self.close_connection = True
        extra = {"Retry-After": str(refusal.retry_after_s)} if refusal.retry_after_s else {}
        self._answer(
            refusal.status, *body.encode_status(str(refusal), self._content_type), headers=extra
        )
        self._drain()
        return refusal.status

    def _drain(self) -> None:
        """Read what the sender is still sending: closing now would break its pipe unanswered."""
        deadline, left = time.monotonic() + DRAIN_S, DRAIN_BYTES
        with suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1)
            while left > 0 and time.monotonic() < deadline:
                data = self.connection.recv(1 << 16)
                if not data:
                    return
                left -= len(data)

    def _answer(
        self, status: int, data: bytes, kind: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
