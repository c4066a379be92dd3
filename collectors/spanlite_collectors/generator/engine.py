"""Continuous batching: who arrives, who is decoded in which step, who is done.

One engine a process. It plans steps one by one (a few microseconds each); the timeline
then gives a whole chunk of them their spans at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from spanlite_collectors.generator.config import DecodeConfig
from spanlite_collectors.generator.template import Template

NS = 1_000_000_000
#: Between two steps the scheduler of the engine works this long, on average.
SCHEDULER_NS = 180_000
#: A request that failed says why.
ERRORS = ("out_of_memory", "client_closed", "deadline_exceeded")


@dataclass
class Request:
    """One request from its arrival to its last token."""

    ids: tuple[int, int, int]  # trace id, low and high; span id
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    error: str | None
    made: int = 0
    started_ns: int = 0
    first_token_ns: int = 0
    finished_ns: int = 0


@dataclass
class StepPlan:
    """One step: when it may start, whom it serves, and how heavy it is."""

    number: int
    earliest_ns: int
    template: int
    requests: list[Request]
    prefill_tokens: int
    #: Factor on every kernel: a prefill has more rows than a decode.
    scale: float
    #: Factor on attention in a slow step, else 1.
    slow: float
    failed: bool
    joined: list[Request] = field(default_factory=list)


class Engine:
    """Plans the steps of one process. `next_span_ids(n)` hands out its span ids."""

    def __init__(
        self,
        config: DecodeConfig,
        rng: np.random.Generator,
        templates: tuple[Template, Template],
        next_span_ids: Callable[[int], int],
    ) -> None:
        self.config = config
        self.clock_ns = config.start_ns
        self.running: list[Request] = []
        self._rng = rng
        self._costs = [
            (
                int(template.op_ns.sum()),
                int(template.op_per_request_ns.sum()),
                int(template.call_ns.sum() + template.call_gap_ns.sum()),
            )
            for template in templates
        ]
        self._next_span_ids = next_span_ids
        self._waiting: deque[Request] = deque()
        self._step = 0
        self._next_arrival_ns = config.start_ns + self._pause_ns()

    def _pause_ns(self) -> int:
        return 1 + int(self._rng.exponential(NS / self.config.requests_per_s))

    def _arrive(self) -> None:
        rng, config = self._rng, self.config
        while self._next_arrival_ns <= self.clock_ns:
            ids = rng.integers(1, 1 << 64, size=2, dtype=np.uint64)
            tokens = int(rng.geometric(1 / config.output_tokens))
            failing = rng.random() < config.error_share
            self._waiting.append(
                Request(
                    # Four spans: the request, and its queue, prefill and decode.
                    ids=(int(ids[0]), int(ids[1]), self._next_span_ids(4)),
                    arrival_ns=self._next_arrival_ns,
                    prompt_tokens=int(rng.integers(16, 1024)),
                    output_tokens=tokens * (10 if rng.random() < config.slow_share else 1),
                    error=ERRORS[int(rng.integers(len(ERRORS)))] if failing else None,
                )
            )
            self._next_arrival_ns += self._pause_ns()

    def plan_step(self) -> tuple[StepPlan, list[Request]]:
        """The next step, and the requests that end with it."""
        self._arrive()
        if not self.running and not self._waiting:
            self.clock_ns = self._next_arrival_ns
            self._arrive()
        joined: list[Request] = []
        while self._waiting and len(self.running) + len(joined) < self.config.max_batch:
            joined.append(self._waiting.popleft())
        self.running += joined
        plan = self._make_plan(joined)
        self.clock_ns += int(self._expected_ns(plan))
        return plan, self._decode()

    def _make_plan(self, joined: list[Request]) -> StepPlan:
        config, rng = self.config, self._rng
        prefill = sum(request.prompt_tokens for request in joined)
        chance = rng.random(3).tolist()
        graph = not joined and chance[0] < config.graph_share
        self._step += 1
        return StepPlan(
            number=self._step - 1,
            earliest_ns=self.clock_ns,
            template=int(graph),
            requests=list(self.running),
            prefill_tokens=prefill,
            scale=1 + prefill / 700,
            slow=4 + 30 * chance[2] if chance[1] < config.slow_share else 1.0,
            failed=chance[2] < config.error_share / 10,
            joined=joined,
        )

    def _expected_ns(self, plan: StepPlan) -> float:
        base, per_request, host = self._costs[plan.template]
        device = (base + per_request * len(plan.requests)) * plan.scale
        return max(device, host) + SCHEDULER_NS

    def _decode(self) -> list[Request]:
        done = []
        for request in self.running:
            request.made += 1
            # One that fails does so halfway.
            last = request.output_tokens if request.error is None else request.output_tokens // 2
            if request.made >= last:
                done.append(request)
        if done:
            self.running = [request for request in self.running if request not in done]
        return done
