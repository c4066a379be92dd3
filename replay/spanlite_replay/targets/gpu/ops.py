"""Ops mode: which kernels came from an operator that was recorded with shapes and types."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind

from spanlite_replay.recording import Recording
from spanlite_replay.targets.gpu.driver import I64, Captured
from spanlite_replay.targets.gpu.schedule import Order
from spanlite_replay.work import Work

#: Calls inside calls, and ranges, between a kernel and its operator.
_DEEPEST = 16
_DIMS, _TYPES = "Input Dims", "Input type"


@dataclass(frozen=True)
class Operator:
    """An operator as it was recorded; `lane` is the stream that its kernels ran on."""

    name: str
    told: dict[str, Any]
    lane: int
    is_kernel: tuple[bool, ...]  # of the nodes it must have: kernels and memsets


class Operators(Protocol):
    """Runs operators once and gives the nodes that they are made of."""

    def capture(self, operator: Operator) -> list[Captured] | str:
        """Its nodes in order, or why it cannot be run as recorded."""
        ...

    def close(self) -> None:
        """Give tensors and graphs back."""
        ...


@dataclass
class Coverage:
    """How much of the kernels ran as their own operators."""

    kernels: int = 0
    kernels_ns: int = 0
    covered: int = 0
    covered_ns: int = 0
    #: Why the others did not: kernels by reason.
    why: dict[str, int] = field(default_factory=dict)

    @property
    def count_pct(self) -> float:
        """Share of the kernels."""
        return 100 * self.covered / self.kernels if self.kernels else 0.0

    @property
    def time_pct(self) -> float:
        """Share of their recorded time."""
        return 100 * self.covered_ns / self.kernels_ns if self.kernels_ns else 0.0

    def __str__(self) -> str:
        return (
            f"{self.covered:,} of {self.kernels:,} kernels ({self.count_pct:.1f} %), "
            f"{self.time_pct:.1f} % of their time"
        )


def capture_all(
    work: Work, rec: Recording, order: Order, operators: Operators
) -> tuple[dict[int, Captured], Coverage]:
    """(the node that each covered item runs as, what is covered)."""
    kind = work.kind[order.position]
    coverage = Coverage()
    kernels = np.flatnonzero(kind == SpanKind.KERNEL)
    coverage.kernels = len(kernels)
    coverage.kernels_ns = int(order.length_ns[kernels].sum())
    owner = _operators_of(rec, work.row[order.position])
    found: dict[int, Captured] = {}
    known: dict[str, list[Captured] | str] = {}
    device = (kind == SpanKind.KERNEL) | (kind == SpanKind.MEMSET)
    for row, items in _by_owner(owner, np.flatnonzero(device)):
        nodes = _nodes(work, rec, order, row, items, kind, operators, known)
        mine = items[kind[items] == SpanKind.KERNEL]
        if isinstance(nodes, str):
            coverage.why[nodes] = coverage.why.get(nodes, 0) + len(mine)
            continue
        found.update(zip(items.tolist(), nodes, strict=True))
        coverage.covered += len(mine)
        coverage.covered_ns += int(order.length_ns[mine].sum())
    return found, coverage


def _nodes(
    work: Work,
    rec: Recording,
    order: Order,
    row: int,
    items: I64,
    kind: npt.NDArray[np.uint8],
    operators: Operators,
    known: dict[str, list[Captured] | str],
) -> list[Captured] | str:
    if row < 0:
        return "no operator recorded"
    streams = np.unique(work.stream[order.position[items]])
    if len(streams) != 1:
        return "kernels of one operator on several streams"
    told, name = _told(rec, row)
    if not told.get(_DIMS) or not told.get(_TYPES):
        return "operator without shapes and types"
    wanted = tuple((kind[items] == SpanKind.KERNEL).tolist())
    operator = Operator(name, told, int(streams[0]), wanted)
    key = json.dumps([name, told, operator.lane, wanted], sort_keys=True)
    if key not in known:
        nodes = operators.capture(operator)
        if not isinstance(nodes, str) and tuple(one.is_kernel for one in nodes) != wanted:
            nodes = f"{name} is made of other kernels here"
        known[key] = nodes
    return known[key]


def _told(rec: Recording, row: int) -> tuple[dict[str, Any], str]:
    text = rec.table.column("attributes")[row].as_py()
    try:
        told = json.loads(text) if text else {}
    except ValueError:
        told = {}
    return (told if isinstance(told, dict) else {}), str(rec.table.column("name")[row].as_py())


def _by_owner(owner: I64, items: I64) -> list[tuple[int, I64]]:
    """Items of each operator, in order; those without one are a group of their own (-1)."""
    mine = owner[items]
    by = np.argsort(mine, kind="stable")
    cuts = np.flatnonzero(np.diff(mine[by])) + 1
    return [(int(mine[part[0]]), items[part]) for part in np.split(by, cuts) if len(part)]


def _operators_of(rec: Recording, rows: I64) -> I64:
    """The innermost operator above each row, -1 for none. Shape of `rows`."""
    everything = np.arange(len(rec.span_id))
    parent_id = rec.integers("parent_span_id", everything, 0).view(np.uint64)
    by_id = np.argsort(rec.span_id, kind="stable")
    at = np.minimum(np.searchsorted(rec.span_id[by_id], parent_id), len(by_id) - 1)
    parent = by_id[at]
    parent = np.where((rec.span_id[parent] == parent_id) & (parent_id != 0), parent, -1)
    kinds = rec.kinds()
    here = parent[rows]
    for _ in range(_DEEPEST):
        climbs = (here >= 0) & (kinds[np.maximum(here, 0)] != SpanKind.OPERATOR)
        if not climbs.any():
            break
        here = np.where(climbs, parent[np.maximum(here, 0)], here)
    is_operator = (here >= 0) & (kinds[np.maximum(here, 0)] == SpanKind.OPERATOR)
    return np.where(is_operator, here, -1)
