"""Policies as a tree that answers for all traces at once.

`keeps` answers for given draws, real ones or a `Cell` of them, so the same code decides and
says how probable the decision was. `settle` lets the rate limits see what they are offered,
before anything is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spanlite_pipeline.sampling._draws import Chance, Share, probability
from spanlite_pipeline.sampling.budget import Budget
from spanlite_pipeline.sampling.summaries import TraceSummaries


@dataclass
class Round:
    """One call of `decide`: the traces, the budget, and the share each limiter lets through."""

    traces: TraceSummaries
    budget: Budget
    now_ns: int
    shares: dict[str, float] = field(default_factory=dict)

    def probability(self, nodes: Sequence[Node], answer: Callable[[Chance], Any]) -> Share:
        """How probable `answer`, made from these nodes, is for each trace."""
        return probability(answer, thresholds(nodes, self.shares), len(self.traces))


class Node(Protocol):
    """A policy, or a part of one."""

    def keeps(self, round_: Round, chance: Chance) -> Any:
        """Whether it samples each trace: a mask (n,), or one bool for all."""
        ...

    def settle(self, round_: Round, reach: Share) -> None:
        """Ask the limits inside, where trace i comes here with probability reach[i]."""
        ...

    def children(self) -> Sequence[Node]:
        """The nodes inside."""
        ...


def walk(nodes: Iterable[Node]) -> Iterable[Node]:
    """The nodes and all below them."""
    for node in nodes:
        yield node
        yield from walk(node.children())


def thresholds(nodes: Iterable[Node], shares: dict[str, float]) -> dict[str, list[float]]:
    """The thresholds of each salt that the nodes draw under."""
    out: dict[str, list[float]] = {}
    for node in walk(nodes):
        if isinstance(node, Probabilistic):
            out.setdefault(node.salt, []).append(node.share)
        elif isinstance(node, Limit) and node.name in shares:
            out.setdefault(node.name, []).append(shares[node.name])
    return out


def has_limits(node: Node) -> bool:
    """Whether a rate limit is inside."""
    return any(isinstance(item, Limit) for item in walk([node]))


class Leaf:
    """A node without others inside and without limits."""

    def settle(self, round_: Round, reach: Share) -> None:
        """Nothing to ask."""

    def children(self) -> Sequence[Node]:
        """None."""
        return ()


class Always(Leaf):
    """always_sample."""

    def keeps(self, round_: Round, chance: Chance) -> Any:
        """See `Node`."""
        return True


@dataclass(frozen=True)
class Latency(Leaf):
    """latency: whole milliseconds from the first start to the last end."""

    threshold_ms: int
    upper_threshold_ms: int = 0

    def keeps(self, round_: Round, chance: Chance) -> Any:
        """See `Node`. Without an upper bound the lower one is included, with one it is not."""
        took_ms = (round_.traces.end_ns - round_.traces.start_ns) // 1_000_000
        if self.upper_threshold_ms == 0:
            return took_ms >= self.threshold_ms
        return (self.threshold_ms < took_ms) & (took_ms <= self.upper_threshold_ms)


@dataclass(frozen=True)
class SpanCount(Leaf):
    """span_count: from min_spans to max_spans, both included; max_spans 0: no upper bound."""

    min_spans: int
    max_spans: int = 0

    def keeps(self, round_: Round, chance: Chance) -> Any:
        """See `Node`."""
        spans = round_.traces.spans
        enough = spans >= self.min_spans
        return enough & (spans <= self.max_spans) if self.max_spans else enough


@dataclass(frozen=True)
class Matched(Leaf):
    """A question asked of spans (see `_predicates`), answered by any of them."""

    bit: np.uint64
    invert: bool = False

    def keeps(self, round_: Round, chance: Chance) -> Any:
        """See `Node`."""
        found: npt.NDArray[np.bool_] = (round_.traces.matches & self.bit) != 0
        return ~found if self.invert else found


@dataclass(frozen=True)
class Probabilistic(Leaf):
    """probabilistic: a share of all traces, chosen by trace id and salt."""

    salt: str
    share: float

    def keeps(self, round_: Round, chance: Chance) -> Any:
        """See `Node`."""
        return True if self.share >= 1.0 else chance.below(self.salt, self.share)


@dataclass(frozen=True)
class Limit:
    """rate_limiting, bytes_limiting and a composite's allocations."""

    name: str
    rate: float  # units a second, all buckets together
    burst: float  # units
    unit: str  # the column of TraceSummaries that is limited

    def keeps(self, round_: Round, chance: Chance) -> Any:
        """See `Node`."""
        share = round_.shares[self.name]
        return True if share >= 1.0 else chance.below(self.name, share)

    def settle(self, round_: Round, reach: Share) -> None:
        """See `Node`."""
        offered = float((getattr(round_.traces, self.unit) * reach).sum())
        round_.shares[self.name] = round_.budget.admit(
            self.name, self.rate, self.burst, offered, round_.now_ns
        )

    def children(self) -> Sequence[Node]:
        """None."""
        return ()


@dataclass(frozen=True)
class All:
    """and: every part samples. Limits are asked last, for what the other parts let through."""

    parts: tuple[Node, ...]

    def keeps(self, round_: Round, chance: Chance) -> Any:
        """See `Node`."""
        return _all(self.parts, round_, chance)

    def settle(self, round_: Round, reach: Share) -> None:
        """See `Node`."""
        before = [part for part in self.parts if not has_limits(part)]
        for part in self.parts:
            if has_limits(part):
                known = tuple(before)
                through = round_.probability(known, partial(_all, known, round_))
                part.settle(round_, reach * through)
                before.append(part)

    def children(self) -> Sequence[Node]:
        """Its parts."""
        return self.parts


@dataclass(frozen=True)
class Not:
    """not: the opposite."""

    part: Node

    def keeps(self, round_: Round, chance: Chance) -> Any:
        """See `Node`."""
        return np.logical_not(self.part.keeps(round_, chance))

    def settle(self, round_: Round, reach: Share) -> None:
        """See `Node`."""
        self.part.settle(round_, reach)

    def children(self) -> Sequence[Node]:
        """Its part."""
        return (self.part,)


@dataclass(frozen=True)
class Composite:
    """composite: the first sub-policy that samples a trace, within that one's allocation."""

    parts: tuple[Node, ...]
    limits: tuple[Limit, ...]

    def keeps(self, round_: Round, chance: Chance) -> Any:
        """See `Node`."""
        kept: Any = False
        for i, limit in enumerate(self.limits):
            kept = kept | (self._comes_to(i, round_, chance) & limit.keeps(round_, chance))
        return kept

    def _comes_to(self, index: int, round_: Round, chance: Chance) -> Any:
        mine: Any = self.parts[index].keeps(round_, chance)
        for part in self.parts[:index]:
            mine = mine & np.logical_not(part.keeps(round_, chance))
        return mine

    def settle(self, round_: Round, reach: Share) -> None:
        """See `Node`."""
        for i, limit in enumerate(self.limits):
            known = self.parts[: i + 1]
            not_before = round_.probability(known[:i], partial(none, known[:i], round_))
            self.parts[i].settle(round_, reach * not_before)
            mine = round_.probability(known, partial(self._comes_to, i, round_))
            limit.settle(round_, reach * mine)

    def children(self) -> Sequence[Node]:
        """Its sub-policies and their limits."""
        return (*self.parts, *self.limits)


def _all(parts: Iterable[Node], round_: Round, chance: Chance) -> Any:
    out: Any = True
    for part in parts:
        out = out & part.keeps(round_, chance)
    return out


def none(parts: Iterable[Node], round_: Round, chance: Chance) -> Any:
    """Whether none of the parts samples, for each trace."""
    out: Any = True
    for part in parts:
        out = out & np.logical_not(part.keeps(round_, chance))
    return out
