"""Which node each record is of."""

from __future__ import annotations

import numpy as np
from spanlite_replay.targets.gpu.driver import Records
from spanlite_replay.targets.gpu.observe import match

ORIGIN = 1_796_000_000_000_000_000


def records(rows: list[tuple[int, int, int, int]]) -> Records:
    graph, node, start, end = np.array(rows, np.int64).reshape(-1, 4).T
    return Records(graph, node, ORIGIN + start, ORIGIN + end, np.ones_like(graph))


#: Two graphs: start, gate of item 0, item 0, item 1; then gate of item 2, item 2.
NODES = [np.array([-1, -1, 0, 1]), np.array([-1, 2])]
GATES = np.array([1_000, -1, 9_000])
RAN = [
    (8, 40, -500, -400), (8, 41, 0, 1_000), (8, 42, 1_500, 3_000), (8, 43, 3_500, 4_000),
    (3, 7, 5_000, 9_010), (3, 8, 9_500, 9_900),
]  # fmt: skip


def test_items_are_found_in_any_order_of_records() -> None:
    shuffled = [RAN[i] for i in (5, 2, 0, 4, 1, 3)]
    seen = match(records(shuffled), NODES, GATES)
    found = sorted(zip(seen.item.tolist(), seen.start_ns.tolist(), strict=True))
    assert [item for item, _ in found] == [0, 1, 2]
    assert (seen.foreign, seen.lost) == (0, 0)
    # The origin is where the gates' deadlines agree, to the median.
    assert np.abs(np.array([start for _, start in found]) - [1_500, 3_500, 9_500]).max() <= 10


def test_what_was_not_measured_is_lost_and_moves_nothing() -> None:
    seen = match(records([row for row in RAN if row[1] != 42]), NODES, GATES)
    assert sorted(seen.item.tolist()) == [1, 2] and seen.lost == 1


def test_records_of_others_are_foreign() -> None:
    rows = [*RAN, (9, 70, 20_000, 20_100)]
    seen = match(records(rows), NODES, GATES)
    assert sorted(seen.item.tolist()) == [0, 1, 2] and (seen.foreign, seen.lost) == (1, 0)


def test_a_gate_that_was_late_does_not_move_the_origin() -> None:
    late = [*RAN[:4], (3, 7, 5_000, 30_000), (3, 8, 30_500, 30_900)]
    seen = match(records(late), NODES, GATES)
    start = dict(zip(seen.item.tolist(), seen.start_ns.tolist(), strict=True))
    assert start == {0: 1_500, 1: 3_500, 2: 30_500}
    assert seen.gate_p99_ns > 20_000


def test_nothing_ran() -> None:
    seen = match(records([]), NODES, GATES)
    assert len(seen.item) == 0 and seen.lost == 6
