"""A small HTTP server on a thread of its own: what the metrics pages and the receiver share."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from spanlite.errors import ServiceError


class HttpServer(ThreadingHTTPServer):
    """Listens from its making on, serves between `start` and `stop`.

    Raises ServiceError where the port is taken.
    """

    daemon_threads = True
    #: The page that `url` points at.
    page = ""

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], name: str
    ) -> None:
        try:
            super().__init__(address, handler)
        except (OSError, OverflowError) as error:
            raise ServiceError(
                f"cannot listen on {address[0]}:{address[1]}: {error}; give another port"
            ) from None
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name=name)

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}{self.page}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is no fault of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def start(self) -> None:
        """Serve from a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more connections and close the port."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
        self.server_close()
