"""One client process of `--target http`: sends requests when told to, and notes when what came.

It is a process of its own, so that neither the pacing loop nor other clients take its
interpreter. All times are CLOCK_MONOTONIC, which processes of one machine share.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import struct
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from spanlite_replay.targets._http_prompts import PromptPool

I64 = npt.NDArray[np.int64]
#: How a request ended; what is not OK is a reason of failure.
OK = "ok"
#: Words to and from a client, none a multiple of four long: what is, is numbers of requests.
READY, GO, END, STOP = b"ready", b"go:", b"end", b"stop."


@dataclass(frozen=True)
class Job:
    """What a client needs. Arrays have shape (requests,), those of all clients."""

    url: str  # of the endpoint
    is_chat: bool
    model: str
    headers: dict[str, str]
    extra: dict[str, Any]  # of every body
    due_ns: I64  # after the plan's first event
    input_tokens: I64
    output_tokens: I64
    blocks: list[list[int]]  # of each request, or empty
    by_ids: bool
    seed: int
    timeout_s: float
    connections: int  # 0: no limit


@dataclass
class Seen:
    """Of the requests that a client sent; arrays have shape (sent,). 0: never came to it."""

    request: I64
    sent_ns: I64  # its headers were written
    first_ns: I64  # first token
    last_ns: I64  # last token
    end_ns: I64  # end of the answer, or of the failure
    status: I64  # of HTTP
    input_tokens: I64  # as the server counted, -1: it did not say
    output_tokens: I64
    pieces: I64  # pieces of text that came
    how: list[str]  # OK or why it failed
    gaps_ns: I64  # between pieces, of all requests, shape (gaps,)
    gaps_of: I64  # how many of them each request has, shape (sent,)


#: Letters of a server's words about a refusal.
_MOST_WORDS = 120


@dataclass
class _Request:
    """One that is on its way."""

    number: int
    sent_ns: int = 0
    end_ns: int = 0
    status: int = 0
    input_tokens: int = -1
    output_tokens: int = -1
    how: str = ""
    is_finished: bool = False
    pieces_ns: list[int] = field(default_factory=list)


def work(job: Job, orders: Connection) -> None:
    """The process: answers READY, then takes the origin, numbers of requests, and an end.

    Sends back a `Seen`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to end
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        seen = asyncio.run(_Client(job, orders).run())
        orders.send(seen)


class _Client:
    def __init__(self, job: Job, orders: Connection) -> None:
        self.job, self.orders = job, orders
        self.pool = PromptPool.of_ids(job.seed) if job.by_ids else PromptPool.of_words(job.seed)
        shared = {"model": job.model, "stream": True, "stream_options": {"include_usage": True}}
        self.head = json.dumps(shared | job.extra)[:-1].encode()
        self.origin_ns = 0
        self.all: list[_Request] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[int, asyncio.TimerHandle] = {}

    async def run(self) -> Seen:
        import aiohttp

        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_on_sent)
        limit = self.job.connections
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(total=self.job.timeout_s),
            headers=self.job.headers,
            trace_configs=[trace],
            read_bufsize=1 << 20,
        ) as self.session:
            self.orders.send_bytes(READY)
            await self._take_orders()
            while self._tasks or self._timers:
                await asyncio.sleep(0.005)
        return self._seen()

    async def _take_orders(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def read() -> None:
            while self.orders.poll():
                try:
                    told = self.orders.recv_bytes()
                except (EOFError, OSError):
                    os._exit(1)  # the parent is gone, and nobody waits for what comes
                if told in (END, STOP):
                    self._end(told)
                    ended.set()
                else:
                    self._obey(told)

        loop.add_reader(self.orders.fileno(), read)
        await ended.wait()

    def _end(self, told: bytes) -> None:
        if told == STOP:  # what is not due yet is not sent any more
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    def _obey(self, told: bytes) -> None:
        if len(told) % 4:
            self.origin_ns = struct.unpack("<q", told[len(GO) :])[0]
            return
        loop = asyncio.get_running_loop()
        for number in np.frombuffer(told, np.int32).tolist():
            ahead_ns = self.origin_ns + int(self.job.due_ns[number]) - time.monotonic_ns()
            if ahead_ns > 0:  # a further request of a trace whose first is due now
                self._timers[number] = loop.call_later(ahead_ns / 1e9, self._later, number)
            else:
                self._start(number)

    def _later(self, number: int) -> None:
        del self._timers[number]
        self._start(number)

    def _start(self, number: int) -> None:
        request = _Request(number)
        self.all.append(request)
        task = asyncio.get_running_loop().create_task(self._send(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, request: _Request) -> None:
        import aiohttp

        try:
            async with self.session.post(
                self.job.url, data=self._body(request.number), trace_request_ctx=request
            ) as response:
                request.status = response.status
                if response.status != 200:
                    request.how = f"HTTP {response.status}" + _said(await response.read())
                    return
                if response.content_type != "text/event-stream":
                    request.how = "an answer that is no stream"
                    return
                await self._read(response.content, request)
                if not request.how:
                    request.how = OK if request.is_finished else "the answer was cut off"
        except TimeoutError:
            request.how = f"no end after {self.job.timeout_s:g} s"
        except aiohttp.ClientConnectorError as error:
            request.how = f"no connection: {error.os_error.strerror or error.os_error}"
        except (aiohttp.ClientError, OSError):
            request.how = "the connection broke" if request.sent_ns else "no connection"
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            request.how = "an answer that is none"
        finally:
            request.end_ns = time.monotonic_ns()

    def _body(self, number: int) -> bytes:
        job = self.job
        blocks = job.blocks[number] if job.blocks else ()
        prompt = self.pool.prompt(number, int(job.input_tokens[number]), blocks)
        end = f', "max_tokens": {job.output_tokens[number]}}}'.encode()
        if job.is_chat:
            prompt = b'[{"role": "user", "content": ' + prompt + b"}]"
        return self.head + (b', "messages": ' if job.is_chat else b', "prompt": ') + prompt + end

    async def _read(self, content: Any, request: _Request) -> None:
        """The server-sent events of an answer."""
        rest = b""
        async for chunk in content.iter_any():
            now = time.monotonic_ns()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip(), request, now)

    def _event(self, data: bytes, request: _Request, now_ns: int) -> None:
        if data == b"[DONE]":
            request.is_finished = True
            return
        event = json.loads(data)
        if not isinstance(event, dict):
            raise TypeError("no object")
        if event.get("error"):
            request.how = "the server reported an error in its answer"
        for choice in event.get("choices") or ():
            text = (choice.get("delta") or {}).get("content") if self.job.is_chat else None
            if text or choice.get("text") or (choice.get("delta") or {}).get("reasoning_content"):
                request.pieces_ns.append(now_ns)
            request.is_finished |= bool(choice.get("finish_reason"))
        if usage := event.get("usage"):
            request.input_tokens = _count(usage.get("prompt_tokens", -1))
            request.output_tokens = _count(usage.get("completion_tokens", -1))

    def _seen(self) -> Seen:
        sent = self.all

        def numbers(name: str) -> I64:
            return np.array([getattr(one, name) for one in sent], dtype=np.int64)

        pieces = [np.array(one.pieces_ns, dtype=np.int64) for one in sent]
        gaps = [np.diff(one) for one in pieces]
        return Seen(
            numbers("number"),
            numbers("sent_ns"),
            np.array([int(one[0]) if len(one) else 0 for one in pieces], dtype=np.int64),
            np.array([int(one[-1]) if len(one) else 0 for one in pieces], dtype=np.int64),
            numbers("end_ns"),
            numbers("status"),
            numbers("input_tokens"),
            numbers("output_tokens"),
            np.array([len(one) for one in pieces], dtype=np.int64),
            [one.how for one in sent],
            np.concatenate(gaps) if gaps else np.empty(0, np.int64),
            np.array([len(one) for one in gaps], dtype=np.int64),
        )


def _said(answer: bytes) -> str:
    """ ": " and what a server says of its refusal, where it says it as OpenAI does; numbers are
    left out, so that refusals of one kind count as one."""
    try:
        told = json.loads(answer)
        error = told.get("error", told)
        words = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    if not isinstance(words, str) or not words.strip():
        return ""
    printable = "".join(one if one.isprintable() else " " for one in words[:_MOST_WORDS])
    return ": " + re.sub(r"\d+", "#", printable).strip()


async def _on_sent(_session: Any, context: Any, _params: Any) -> None:
    context.trace_request_ctx.sent_ns = time.monotonic_ns()


def _count(value: Any) -> int:
    """A count of tokens; -1 is none told. Raises where it is no count."""
    count = int(value)
    if not -1 <= count < 2**63:
        raise ValueError(count)
    return count


def reasons(how: list[str]) -> dict[str, int]:
    """Why requests failed, and how many; the most frequent first."""
    return dict(Counter(one for one in how if one != OK).most_common())
