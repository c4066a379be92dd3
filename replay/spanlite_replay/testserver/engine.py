"""Continuous batching with known speeds, and no model: when each token of each request comes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


class QueueFullError(Exception):
    """No room for one more request."""


@dataclass(frozen=True)
class Speed:
    """How fast the engine is.

    `prefill_per_s`: tokens of a prompt; it holds up the batch, as without chunked prefill.
    `decode_per_s`: steps a second, one token of each running request a step. `slots`: requests
    that run at a time. `queue`: requests that may wait; None: any number. `stop_after`: tokens
    after which the made-up model ends its answer, where a request does not ask to ignore that.
    """

    prefill_per_s: float = 20_000.0
    decode_per_s: float = 100.0
    slots: int = 16
    queue: int | None = None
    stop_after: int | None = None


@dataclass
class Served:
    """What became of a request; times of CLOCK_MONOTONIC, 0 for never."""

    prompt_tokens: int
    wanted_tokens: int
    arrived_ns: int
    first_token_ns: int = 0
    last_token_ns: int = 0
    tokens: int = 0


@dataclass
class Sequence:
    """A request in the engine."""

    served: Served
    _ready: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)
    is_gone: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it needs no further step."""
        return self.is_gone or self.served.tokens >= self.served.wanted_tokens

    def step(self) -> None:
        """One token more."""
        now = time.monotonic_ns()
        self.served.first_token_ns = self.served.first_token_ns or now
        self.served.last_token_ns = now
        self.served.tokens += 1
        self._ready.put_nowait(self.is_done)

    async def tokens(self) -> AsyncIterator[int]:
        """The number of each token, from 0, as it is made."""
        number, is_last = 0, False
        while not is_last:
            is_last = await self._ready.get()
            yield number
            number += 1


class Engine:
    """Runs requests in order of arrival, `slots` at a time. Belongs to one event loop."""

    def __init__(self, speed: Speed) -> None:
        self.speed = speed
        self.served: list[Served] = []
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._work = asyncio.Event()
        self._at = 0.0

    def add(self, prompt_tokens: int, max_tokens: int, ignore_stop: bool) -> Sequence:
        """Queue a request. Raises QueueFullError."""
        queue, stop = self.speed.queue, self.speed.stop_after
        is_full = len(self._running) >= self.speed.slots
        if queue is not None and is_full and len(self._waiting) >= queue:
            raise QueueFullError
        wanted = max_tokens if ignore_stop or stop is None else min(max_tokens, stop)
        served = Served(prompt_tokens, wanted, time.monotonic_ns())
        self.served.append(served)
        sequence = Sequence(served)
        self._waiting.append(sequence)
        self._work.set()
        return sequence

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._running and not self._waiting:
                self._work.clear()
                await self._work.wait()
            self._at = max(
                self._at, time.monotonic() - 1.0
            )  # what was lost by stalls is not made up
            if not self._running:
                self._at = max(self._at, time.monotonic())
            await self._admit()
            await self._pass(1.0 / self.speed.decode_per_s)
            for sequence in self._running:
                if not sequence.is_done:
                    sequence.step()
            self._running = [one for one in self._running if not one.is_done]

    async def _admit(self) -> None:
        while self._waiting and len(self._running) < self.speed.slots:
            sequence = self._waiting.popleft()
            if not sequence.is_gone:
                await self._pass(sequence.served.prompt_tokens / self.speed.prefill_per_s)
                self._running.append(sequence)

    async def _pass(self, seconds: float) -> None:
        """Let the device work so long; deadlines are absolute, so that lateness does not add up."""
        self._at += seconds
        await asyncio.sleep(max(0.0, self._at - time.monotonic()))
