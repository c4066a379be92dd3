"""The HTTP side: `/v1/models`, `/v1/completions` and `/v1/chat/completions`, streamed or not."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from spanlite.errors import ServiceError

from spanlite_replay.testserver.engine import Engine, QueueFullError, Sequence, Served, Speed

WORDS = ("time", "year", "work", "life", "hand", "part", "case", "week", "home", "room")
MAX_BODY_BYTES = 256 << 20


@dataclass(frozen=True)
class Faults:
    """Every so many requests, counted from 1: `refuse` with 503, `cut` after the first token."""

    refuse: int = 0
    cut: int = 0


@dataclass(frozen=True)
class Asked:
    """A request, checked."""

    is_chat: bool
    prompt_tokens: int
    max_tokens: int
    ignore_eos: bool
    stream: bool
    usage_at_end: bool


class Refused(Exception):  # noqa: N818 (an answer to the client, no error of the server)
    """The status and the words of an answer in OpenAI's form."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message

    def response(self) -> web.Response:
        """What the client gets."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        body = {"error": {"message": self.message, "type": kind, "param": None, "code": None}}
        return web.json_response(body, status=self.status)


def read_request(body: Any, model: str, is_chat: bool) -> Asked:
    """Check what a client sent. Raises Refused."""
    if not isinstance(body, dict):
        raise Refused(400, "the body is not a JSON object")
    if body.get("model") != model:
        raise Refused(404, f"the model '{body.get('model')}' does not exist")
    if body.get("n", 1) != 1:
        raise Refused(400, "n: this server gives one answer")
    wanted = body.get("max_completion_tokens") if is_chat else None
    wanted = body.get("max_tokens", 16) if wanted is None else wanted
    if not isinstance(wanted, int) or wanted < 1:
        raise Refused(400, "max_tokens must be 1 or more")
    text = _chat_text(body.get("messages")) if is_chat else body.get("prompt")
    options = body.get("stream_options") or {}
    return Asked(
        is_chat,
        count_tokens(text),
        wanted,
        bool(body.get("ignore_eos", False)),
        bool(body.get("stream", False)),
        bool(options.get("include_usage", False)),
    )


def count_tokens(prompt: Any) -> int:
    """Token ids count as they are; of text, each word is a token. Raises Refused."""
    if isinstance(prompt, str):
        return len(prompt.split())
    is_list = isinstance(prompt, list) and bool(prompt)
    if is_list and all(isinstance(one, int) for one in prompt):
        return len(prompt)
    raise Refused(400, "prompt must be a text or a list of token ids")


def _chat_text(messages: Any) -> str:
    try:
        return " ".join(str(message["content"]) for message in messages)
    except (TypeError, KeyError):
        raise Refused(400, "messages must be a list of messages with content") from None


class Api:
    """The routes over an engine."""

    def __init__(self, speed: Speed, model: str, faults: Faults) -> None:
        self.engine = Engine(speed)
        self.model, self.faults = model, faults
        self._requests = 0

    def app(self) -> web.Application:
        """To be run by aiohttp, with handlers cancelled where a client leaves."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.cleanup_ctx.append(self._running)
        return app

    async def _running(self, _app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self.engine.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def _models(self, _request: web.Request) -> web.Response:
        one = {"id": self.model, "object": "model", "created": 0, "owned_by": "spanlite"}
        return web.json_response({"object": "list", "data": [one]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, is_chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, is_chat=True)

    async def _answer(self, request: web.Request, is_chat: bool) -> web.StreamResponse:
        self._requests += 1
        number = self._requests
        try:
            if self.faults.refuse and number % self.faults.refuse == 0:
                raise Refused(503, "asked to refuse this one")
            asked = read_request(await _json(request), self.model, is_chat)
            sequence = self._add(asked)
        except Refused as refused:
            return refused.response()
        reply = Reply(asked, sequence.served, self.model, f"cmpl-{number}", int(time.time()))
        try:
            if not asked.stream:
                words = [word(token) async for token in sequence.tokens()]
                return web.json_response(reply.whole("".join(words)))
            cut = self.faults.cut and number % self.faults.cut == 0
            return await _stream(request, reply, sequence, bool(cut))
        finally:
            sequence.is_gone = True

    def _add(self, asked: Asked) -> Sequence:
        try:
            return self.engine.add(asked.prompt_tokens, asked.max_tokens, asked.ignore_eos)
        except QueueFullError:
            raise Refused(429, "too many requests wait") from None


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except ValueError:
        raise Refused(400, "the body is not JSON") from None


async def _stream(
    request: web.Request, reply: Reply, sequence: Sequence, cut: bool
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    with suppress(ConnectionResetError):  # the client left: nobody to tell
        await response.prepare(request)
        await _write(response, request, reply, sequence, cut)
    return response


async def _write(
    response: web.StreamResponse, request: web.Request, reply: Reply, sequence: Sequence, cut: bool
) -> None:
    if reply.asked.is_chat:
        await response.write(_event(reply.piece("", role=True)))
    async for token in sequence.tokens():
        await response.write(_event(reply.piece(word(token))))
        if cut and request.transport is not None:
            request.transport.abort()
    await response.write(_event(reply.piece("", finish=reply.finish)))
    if reply.asked.usage_at_end:
        await response.write(_event(reply.base() | {"choices": [], "usage": reply.usage()}))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()


def word(token: int) -> str:
    """What the made-up model says: each token a word."""
    return " " + WORDS[token % len(WORDS)]


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


@dataclass(frozen=True)
class Reply:
    """The JSON of one answer."""

    asked: Asked
    served: Served
    model: str
    id: str
    created: int

    @property
    def finish(self) -> str:
        """Why the answer ended."""
        return "length" if self.served.tokens >= self.asked.max_tokens else "stop"

    def base(self, whole: bool = False) -> dict[str, Any]:
        """What every object has."""
        kind = "text_completion"
        if self.asked.is_chat:
            kind = "chat.completion" if whole else "chat.completion.chunk"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def piece(self, text: str, finish: str | None = None, role: bool = False) -> dict[str, Any]:
        """A chunk of a stream."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        if self.asked.is_chat:
            start = {"role": "assistant", "content": ""} if role else {}
            choice["delta"] = start | ({"content": text} if text else {})
        else:
            choice["text"] = text
        return self.base() | {"choices": [choice]}

    def whole(self, text: str) -> dict[str, Any]:
        """The answer at once."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.finish, "logprobs": None}
        if self.asked.is_chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return self.base(whole=True) | {"choices": [choice], "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Tokens in and out."""
        tokens, prompt = self.served.tokens, self.served.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
        }


@dataclass
class Running:
    """A server on a thread of its own."""

    api: Api
    url: str = ""
    _stop: asyncio.Event | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _ready: threading.Event = field(default_factory=threading.Event)
    _error: OSError | None = None

    async def serve(self, host: str, port: int) -> None:
        """Listen until `stop`. Raises OSError where the port is taken."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runner = web.AppRunner(
            self.api.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, backlog=4096)
            await site.start()
            self.url = f"http://{host}:{runner.addresses[0][1]}/v1"
            self._ready.set()
            await self._stop.wait()
        except OSError as error:
            self._error = error
        finally:
            self._ready.set()
            await runner.cleanup()

    def stop(self) -> None:
        """From any thread."""
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)

    def wait_ready(self) -> None:
        """Raises ServiceError where it cannot listen."""
        self._ready.wait()
        if self._error is not None:
            raise ServiceError(f"cannot listen: {self._error}; give another --port")


@contextmanager
def running(
    speed: Speed, model: str = "test", faults: Faults | None = None, host: str = "127.0.0.1",
    port: int = 0,
) -> Iterator[Running]:  # fmt: skip
    """A server while the block runs. Raises ServiceError where the port is taken."""
    server: list[Running] = []
    made = threading.Event()

    def serve() -> None:
        async def main() -> None:
            # Here, since the engine's queue belongs to this loop.
            server.append(Running(Api(speed, model, faults or Faults())))
            made.set()
            await server[0].serve(host, port)

        asyncio.run(main())

    thread = threading.Thread(target=serve, name="testserver", daemon=True)
    thread.start()
    made.wait()
    try:
        server[0].wait_ready()
        yield server[0]
    finally:
        server[0].stop()
        thread.join()
