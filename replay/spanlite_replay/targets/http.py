"""`--target http`: requests to an OpenAI-compatible server, at the recorded times and sizes.

The loop is open: a request goes out when it is due, however slow the answers to those before it
are, and every latency counts from that moment. So a server that falls behind shows.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import resource
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
from spanlite.errors import InputError, ServiceError, SpanLiteError, UsageError

from spanlite_replay.pacing import Stop
from spanlite_replay.plan import Plan
from spanlite_replay.targets import _http_client
from spanlite_replay.targets._http_client import Job, Seen
from spanlite_replay.targets._http_requests import Requests, requests_of
from spanlite_replay.targets._http_results import (
    Spans,
    check_out,
    figures,
    joined,
    spans_of_requests,
    succeeded,
)
from spanlite_replay.targets.base import I64, Outcome

PATHS = {"completions": "/completions", "chat": "/chat/completions"}
CONNECT_S = 10.0
START_S = 60.0
#: A pipe takes so many bytes at once without being cut.
_ORDER = 1024


@dataclass(frozen=True)
class Server:
    """Where requests go, and how they are written.

    `url`: of the API, such as http://host:8000/v1. `model` None: the only one that it serves.
    `api`: of PATHS. `ids`: prompts are token ids, else words. `extra`: added to every body.
    """

    url: str
    model: str | None = None
    api: str = "completions"
    ids: bool = True
    ignore_eos: bool = True
    extra: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0
    connections: int = 0
    clients: int = 1

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
            is_address = is_address and parts.port != 0  # reading it refuses what is no port
        except ValueError:
            is_address = False
        if not is_address:
            raise UsageError(f"--url '{self.url}' is no address: write http://HOST:8000/v1")
        if self.api == "chat" and self.ids:
            raise UsageError("chat takes a text, no token ids: leave --prompt ids out")

    @property
    def shown_url(self) -> str:
        """Without a name and password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@dataclass
class _Client:
    """A process and the way to it."""

    process: Any  # of multiprocessing, spawned
    orders: Connection


class HttpTarget:
    """Sends a plan of unit `request`. `out`: where to write the requests as spans."""

    name = "http"

    def __init__(
        self,
        server: Server,
        replay_id: str,
        out: Path | None = None,
        on_wait: Callable[[int], None] | None = None,
    ) -> None:
        if out is not None:
            check_out(out)
        self.server, self.replay_id, self.out, self.on_wait = server, replay_id, out, on_wait
        self._clients: list[_Client] = []
        self._origin_ns = 0
        self._to_unix_ns = 0
        self._interrupt = Stop()
        self._launched = np.zeros(0, dtype=np.bool_)  # events of the plan

    def prepare(self, plan: Plan, events: I64) -> npt.NDArray[np.bool_]:
        """Ask the server for its model and start the clients. Raises ServiceError, UsageError."""
        if plan.settings.unit != "request":
            raise UsageError("--target http sends requests: make the plan with --unit request")
        self._plan, self._requests = plan, requests_of(plan, events)
        self._bounds = self._requests.bounds(len(plan))
        if not self._requests.supported.any():
            raise InputError(
                f"none of {len(events):,} traces has a request with token counts of its prompt and "
                "its answer, so there is nothing to send: choose a window with such requests"
            )
        self._model = asyncio.run(find_model(self.server))
        self._raise_file_limit()
        context = multiprocessing.get_context("spawn")
        job = self._job(self._requests)
        for _ in range(self.server.clients):
            mine, theirs = context.Pipe()
            process = context.Process(target=_http_client.work, args=(job, theirs), daemon=True)
            process.start()
            theirs.close()
            self._clients.append(_Client(process, mine))
        for client in self._clients:
            self._wait_ready(client)
        self._launched = np.zeros(len(plan), dtype=np.bool_)
        return self._requests.supported

    def _job(self, requests: Requests) -> Job:
        server = self.server
        eos = {"ignore_eos": True} if server.ignore_eos else {}
        return Job(
            server.url.rstrip("/") + PATHS[server.api],
            server.api == "chat",
            self._model,
            {"Content-Type": "application/json"} | server.headers,
            eos | server.extra,
            requests.due_ns,
            requests.input_tokens,
            requests.output_tokens,
            requests.blocks,
            server.ids,
            self._plan.settings.seed,
            server.timeout_s,
            server.connections,
        )

    def _raise_file_limit(self) -> None:
        """Each request in flight is a connection: as many as the system lets one have."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def _wait_ready(self, client: _Client) -> None:
        with suppress(EOFError, OSError):  # it died
            if client.orders.poll(START_S) and client.orders.recv_bytes() == _http_client.READY:
                return
        self._stop()
        raise ServiceError("a client process of the replay did not start; see the lines above")

    def begin_at(self, origin_ns: int, stop: Stop) -> None:
        """The plan's first event is due then, on CLOCK_MONOTONIC."""
        self._origin_ns, self._interrupt = origin_ns, stop
        self._to_unix_ns = time.time_ns() - time.monotonic_ns()
        self._tell(_http_client.GO + struct.pack("<q", origin_ns))

    def _tell(self, word: bytes) -> None:
        for client in self._clients:
            with suppress(OSError):  # it died: `drain` says so
                client.orders.send_bytes(word)

    def launch(self, events: I64) -> None:
        """Tell the clients, in turns."""
        self._launched[events] = True
        first, last = self._bounds[events], self._bounds[events + 1]
        if (last - first == 1).all():
            numbers = first
        else:
            parts = [np.arange(a, b) for a, b in zip(first, last, strict=True)]
            numbers = np.concatenate(parts)
        clients = len(self._clients)
        for at, client in enumerate(self._clients):
            mine = numbers[numbers % clients == at] if clients > 1 else numbers
            for begin in range(0, len(mine), _ORDER):
                with suppress(OSError):  # it died: `drain` says so
                    client.orders.send_bytes(mine[begin : begin + _ORDER].astype("<i4").tobytes())

    def drain(self) -> Outcome:
        """Wait for the answers to what was sent; after Ctrl-C, later requests of a trace are not
        sent any more."""
        if self.on_wait is not None:
            self.on_wait(int(self._launched.sum()))
        try:
            self._tell(_http_client.END)
            parts = [seen for one in self._clients if (seen := self._result(one)) is not None]
        finally:
            self._stop()
        return self._outcome(joined(parts) if parts else None, len(self._clients) - len(parts))

    def _result(self, client: _Client) -> Seen | None:
        """What a client saw; None where it died. In short turns, so that Ctrl-C is answered."""
        while True:
            try:
                if client.orders.poll(0.2):
                    return client.orders.recv()  # type: ignore[no-any-return]
            except (EOFError, OSError):
                return None
            if self._interrupt.requested:
                self._tell(_http_client.STOP)

    def _stop(self) -> None:
        for client in self._clients:
            client.orders.close()
            client.process.join(0.5)
            client.process.kill()

    def _outcome(self, seen: Seen | None, dead: int) -> Outcome:
        facts: dict[str, int | str] = {"replay_id": self.replay_id}
        requests = self._requests
        done = np.zeros(len(requests), dtype=np.bool_)
        if seen is not None:
            done[seen.request] = succeeded(seen)
        failed = np.unique(requests.event[~done & self._launched[requests.event]])
        why = f"{dead} of {len(self._clients)} client processes ended early" if dead else ""
        if seen is None:
            return Outcome(failed=failed, facts=facts, why=why)
        intended = self._origin_ns + requests.due_ns[seen.request]
        url = self.server.shown_url
        if self.out is not None and len(seen.request):
            spans = spans_of_requests(
                self._plan, requests, seen, intended, self._to_unix_ns, self.replay_id, url
            )
            facts["spans"] = _written(spans, self.out)
        told = figures(seen, requests, self._origin_ns, url, self._model)
        reasons = {**told.failed_why}
        if not dead and (unsent := int(self._launched[requests.event].sum()) - len(seen.request)):
            reasons["not due yet at the interrupt"] = unsent
        if reasons and not why:
            why = "; ".join(f"{word}: {count:,}" for word, count in reasons.items())
        return Outcome(failed=failed, facts=facts, why=why, requests=told)


def _written(spans: Spans, out: Path) -> str:
    """Where they are. The report comes even where the disk is full."""
    try:
        spans.write(out)
    except (OSError, SpanLiteError) as error:
        return f"not written: {error}"
    return str(out)


async def find_model(server: Server) -> str:
    """The model to ask for. Raises ServiceError where no server answers, UsageError where it
    has no such model, or several and none was named."""
    import aiohttp

    url = server.url.rstrip("/") + "/models"
    try:
        timeout = aiohttp.ClientTimeout(total=CONNECT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=server.headers) as session,
            session.get(url) as response,
        ):
            status, text = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        detail = str(error) or f"nothing for {CONNECT_S:g} s"
        raise ServiceError(
            f"no server answers at {server.shown_url} ({detail}); "
            "`spanlite testserver` starts one here"
        ) from None
    if status in (401, 403):
        raise ServiceError(
            f"{server.shown_url} answers {status}: name the key's variable with --api-key-env"
        )
    names = _model_names(text) if status == 200 else []
    if not names and server.model is not None:
        return server.model  # a server without a list of models
    if not names:
        raise UsageError(
            f"{server.shown_url} names no models (HTTP {status}): is it the address of the API, "
            "such as http://HOST:8000/v1? Else give --model"
        )
    if server.model is None and len(names) == 1:
        return names[0]
    if server.model not in names:
        told = "give --model" if server.model is None else f"it has no '{server.model}'"
        raise UsageError(f"{server.shown_url} serves {', '.join(names[:20])}: {told}")
    return str(server.model)


def _model_names(text: bytes) -> list[str]:
    try:
        names = [str(one["id"]) for one in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    # Half a character is in no request's text.
    return [name for name in names if name.encode(errors="ignore").decode() == name]


def default_clients() -> int:
    """One process for each three cores: the pacing loop and the server want some too."""
    return max(1, min(16, (os.cpu_count() or 1) // 3))
