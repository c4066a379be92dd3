"""What waits for what on the device, where an arrival is held, and where graphs are cut.

All of it is in **items**: the device spans that are to run, in order of their planned start;
an item is named by its place in that order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind

from spanlite_replay.targets.gpu.driver import I64
from spanlite_replay.work import EdgeKind, Work

#: Two steps of the GPU's timer: an end this much after a start is as good as before it.
TOLERANCE_NS = 64
#: A graph is cut where the device is idle for this long: the next one needs some time to start.
CUT_GAP_NS = 60_000
#: A graph has at least so many items where it can be cut, and never more than so many.
FEWEST_ITEMS, MOST_ITEMS = 100, 20_000
#: A GPU starts about one node a microsecond, gates among them. Where more items than these start
#: in this time, on all streams together, there are gates for longer waits alone.
CROWD_NS, CROWD_ITEMS = 20_000, 8
PATIENCE_NS, CROWD_GAP_NS = 10_000, 450
#: A kernel's end, as it is measured, is about this much after its last instruction.
END_NS = 400
#: A copy that waits behind a gate changes from the SMs to a copy engine: some 8 us each way.
COPY_PATIENCE_NS = 20_000
#: The first arrival is this far after the origin, so that its gate waits for it.
HEAD_NS = 100_000


@dataclass(frozen=True)
class Costs:
    """What a GPU takes between two kernels of a graph, as CUPTI tells it. ns."""

    gap_ns: int = 500  # end of one to the start of the next
    lead_ns: int = 500  # end of a gate to the start of what it held
    through_ns: int = 2_400  # end of one to the start of the next with an open gate between
    #: ns of the measurer's clock in one of the gates' timer.
    rate: float = 1.0


@dataclass(frozen=True)
class Order:
    """Items and what each waits for. Arrays have shape (items,)."""

    position: I64  # in the plan's work
    start_ns: I64  # planned
    length_ns: I64  # as recorded
    after: list[tuple[int, ...]]
    #: The item of the same stream that starts before this one and overlaps it, -1 for none.
    overlaps: I64
    is_copy: npt.NDArray[np.bool_]
    graph: I64  # which graph the item is in; they run one after the other
    #: Graphs that had to be cut where the device was not idle.
    forced_cuts: int
    #: Edges of the plan that lead backwards in time, and were left out.
    left_out: int

    def __len__(self) -> int:
        return len(self.position)

    def stretches(self) -> I64:
        """Where each stretch of work begins that the device was idle before. Items."""
        if not len(self):
            return np.empty(0, np.int64)
        reached = np.maximum.accumulate(self.start_ns + self.length_ns)
        return np.append(0, np.flatnonzero(self.start_ns[1:] - reached[:-1] >= CUT_GAP_NS) + 1)

    @property
    def graphs(self) -> int:
        """How many graphs."""
        return int(self.graph[-1]) + 1 if len(self.graph) else 0


def order_of(work: Work, positions: I64, fewest_items: int = FEWEST_ITEMS) -> Order:
    """The items at `positions` of the work; these must lie on a stream."""
    positions = positions[np.lexsort((positions, work.start_ns[positions]))]
    start, length = work.start_ns[positions], np.maximum(work.duration_ns[positions], 0)
    end = start + length
    after, overlaps = _stream_order(work.stream[positions], start, end)
    left_out = _add_edges(after, work, positions)
    graph, forced = _graphs(start, end, fewest_items)
    return Order(
        positions,
        start,
        length,
        [tuple(sorted(before)) for before in after],
        overlaps,
        work.kind[positions] == SpanKind.MEMCPY,
        graph,
        forced,
        left_out,
    )


def _stream_order(
    stream: npt.NDArray[np.int32], start: I64, end: I64
) -> tuple[list[set[int]], I64]:
    """(items of its stream that each follows, what each overlaps).

    What overlaps on one stream (branches of a graph) is not in order; it follows what had
    ended before.
    """
    after: list[set[int]] = []
    overlaps = np.full(len(start), -1, np.int64)
    open_ends: dict[int, list[int]] = {}  # of each stream: items that nothing follows yet
    ends, starts = end.tolist(), start.tolist()
    for item, number in enumerate(stream.tolist()):
        last = open_ends.get(number, [])
        until = starts[item] + TOLERANCE_NS
        ended = [one for one in last if ends[one] <= until]
        rest = [one for one in last if ends[one] > until]
        before = set(ended)
        for one in rest:
            before |= after[one]
        after.append(before)
        if rest:
            overlaps[item] = rest[-1]
        open_ends[number] = [*rest, item]
    return after, overlaps


def _add_edges(after: list[set[int]], work: Work, positions: I64) -> int:
    place = np.full(len(work), -1, dtype=np.int64)
    place[positions] = np.arange(len(positions))
    edges = work.edges
    direct = edges.kind != EdgeKind.SYNC
    pairs = [*_pairs(place[edges.before[direct]], place[edges.after[direct]])]
    pairs += _syncs(work, positions, place)
    left_out = 0
    for before, item in pairs:
        if before < item:
            after[item].add(before)
        else:
            left_out += 1
    return left_out


def _pairs(before: I64, after: I64) -> Iterable[tuple[int, int]]:
    there = (before >= 0) & (after >= 0)
    return zip(before[there].tolist(), after[there].tolist(), strict=True)


def _syncs(work: Work, positions: I64, place: I64) -> list[tuple[int, int]]:
    """What a thread launches after a call that waited, runs after what that call waited for."""
    edges = work.edges
    mine = edges.kind == EdgeKind.SYNC
    call = work.launched_by[positions]
    known = np.flatnonzero(call >= 0)
    thread, stream = work.thread[call[known]], work.stream[positions[known]]
    lanes = {
        key: known[(thread == key[0]) & (stream == key[1])]
        for key in set(zip(thread.tolist(), stream.tolist(), strict=True))
    }
    found = []
    for before, at in zip(place[edges.before[mine]], edges.after[mine], strict=True):
        if before < 0:
            continue
        for (owner, _), items in lanes.items():
            if owner != work.thread[at]:
                continue
            next_one = int(np.searchsorted(call[items], at, side="right"))
            if next_one < len(items) and items[next_one] > before:
                found.append((int(before), int(items[next_one])))
    return found


def _graphs(start: I64, end: I64, fewest: int) -> tuple[I64, int]:
    """(graph of each item, how many cuts were forced)."""
    graph = np.zeros(len(start), dtype=np.int64)
    if not len(start):
        return graph, 0
    idle = np.zeros(len(start), dtype=np.int64)
    idle[1:] = start[1:] - np.maximum.accumulate(end)[:-1]
    cuts, first, forced = [], 0, 0
    candidates = np.flatnonzero(idle >= CUT_GAP_NS)
    while first + fewest < len(start):
        at = int(np.searchsorted(candidates, first + fewest))
        cut = int(candidates[at]) if at < len(candidates) else len(start)
        if cut > first + MOST_ITEMS:
            room = slice(first + fewest, first + MOST_ITEMS)
            if room.start >= len(start) or first + MOST_ITEMS >= len(start):
                break
            cut = room.start + int(np.argmax(idle[room]))
            forced += 1
        if cut >= len(start):
            break
        cuts.append(cut)
        first = cut
    graph[cuts] = 1
    return np.cumsum(graph), forced


def gates_of(
    order: Order,
    costs: Costs,
    patience_ns: int = PATIENCE_NS,
    crowd_gap_ns: int = CROWD_GAP_NS,
    copy_patience_ns: int = COPY_PATIENCE_NS,
) -> I64:
    """Where an arrival is held: ns from the origin at which the gate ends, -1 for none.

    An item gets a gate where all that it waits for is expected to have ended early enough for
    one; else it starts right after that, as it did in the recording, give or take the time a
    gate takes. Expectations follow the replay, so that neither gaps nor delays add up.
    """
    gates = np.full(len(order), -1, dtype=np.int64)
    if not len(order):
        return gates
    base = int(order.start_ns[0]) - HEAD_NS
    starts, lengths = order.start_ns.tolist(), order.length_ns.tolist()
    graphs = order.graph.tolist()
    near = np.arange(len(order)) - np.searchsorted(order.start_ns, order.start_ns - CROWD_NS)
    crowded = near >= CROWD_ITEMS
    least = np.where(crowded, patience_ns, costs.through_ns).tolist()
    gap = np.where(crowded, max(crowd_gap_ns, costs.gap_ns), costs.gap_ns).tolist()
    copies = order.is_copy.tolist()
    ends = [0] * len(order)
    held = np.zeros(len(order), np.bool_)  # whatever else, so that they start in order
    held[order.overlaps >= 0] = held[order.overlaps[order.overlaps >= 0]] = True
    for item, before in enumerate(order.after):
        mine = [ends[one] for one in before if graphs[one] == graphs[item]]
        start = starts[item]
        patience = max(least[item], copy_patience_ns) if copies[item] else least[item]
        if not mine or held[item] or start >= max(mine) + patience:
            gates[item] = int((start - base - costs.lead_ns) / costs.rate)
        else:
            start = max(mine) + gap[item]
        ends[item] = start + lengths[item]
    return gates


def ends_of(order: Order, costs: Costs) -> I64:
    """When each item is to end, in ns of the gates' timer from the origin. Shape (items,)."""
    if not len(order):
        return np.empty(0, np.int64)
    base = int(order.start_ns[0]) - HEAD_NS
    ends = order.start_ns + order.length_ns - base
    return np.asarray((ends - END_NS) / costs.rate, np.int64)
