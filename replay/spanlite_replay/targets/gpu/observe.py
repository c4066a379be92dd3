"""Which item each measured node was, and when it ran on the plan's time line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spanlite_replay.targets.gpu.driver import I64, Records


@dataclass(frozen=True)
class Seen:
    """What was observed. Arrays of shape (items observed,)."""

    item: I64
    start_ns: I64  # from the origin
    end_ns: I64
    #: Records of nodes that are none of ours, and nodes that were not measured.
    foreign: int
    lost: int
    #: Spread of the gates about their deadlines: p99 of |error| less the median, ns.
    gate_p99_ns: int


def match(records: Records, nodes: list[I64], gates_ns: I64, rate: float = 1.0) -> Seen:
    """Find the items. `nodes`: for each graph the item of each node (-1: a gate or the start).

    Graphs are known by the order in which they first ran, nodes by the order of their ids.
    `gates_ns`: of each item where its gate ends, from the origin, -1 for none, shape (items,).
    `rate`: ns of the records' clock in one of the gates'.
    """
    graph_of = _in_order(records)
    item = np.full(len(records), -2, np.int64)  # -2: foreign
    gate_item = np.full(len(records), -1, np.int64)
    lost = 0
    for graph, made in enumerate(nodes):
        rows = np.flatnonzero(graph_of == graph)
        place = _places(records.node[rows], len(made))
        known = place >= 0
        item[rows[known]] = made[place[known]]
        lost += len(made) - int(known.sum())
        held = np.append(made[1:], -1)  # a gate is made right before what it holds
        gate_item[rows[known]] = np.where(made[place[known]] < 0, held[place[known]], -1)
    origin, spread = _origin(records, gate_item, gates_ns * rate)
    ours = item >= 0
    return Seen(
        item[ours],
        records.start_ns[ours] - origin,
        records.end_ns[ours] - origin,
        int((item == -2).sum()),
        lost,
        spread,
    )


def _in_order(records: Records) -> I64:
    """For each record, which graph it is of, counted by first start. Shape (records,)."""
    ids, of = np.unique(records.graph, return_inverse=True)
    first = np.full(len(ids), np.iinfo(np.int64).max)
    np.minimum.at(first, of, records.start_ns)
    rank = np.empty(len(ids), np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(ids))
    return rank[of]


def _places(node: I64, count: int) -> I64:
    """Which of the graph's `count` nodes each record is of, -1 where that is not clear."""
    ids = np.sort(node)
    if len(ids) == count and len(np.unique(ids)) == count:
        return np.searchsorted(ids, node)
    # Some are missing: the ids of a graph's nodes are consecutive.
    place = node - ids[0] if len(ids) else node
    return np.where((place >= 0) & (place < count), place, -1)


def _origin(records: Records, gate_item: I64, gates_ns: npt.NDArray[np.float64]) -> tuple[int, int]:
    """(when the origin was, on the records' clock; p99 of the gates' error about it)."""
    held = np.flatnonzero(gate_item >= 0)
    if not len(held):
        return (int(records.start_ns.min()) if len(records) else 0), 0
    waits = gates_ns[gate_item[held]]
    error = records.end_ns[held] - np.round(waits).astype(np.int64)
    # A gate that opened late says nothing; those that waited agree within some 100 ns.
    origin = int(np.percentile(error, 10))
    origin = int(np.median(error[error <= origin + 500]))
    rest = np.abs(error - origin)
    return origin, int(np.percentile(rest, 99))
