from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from spanlite_analytics.intervals import union_ns
from spanlite_analytics.tree import build_tree, nearest_ancestor, parent_rows, topmost_ancestor

BASE = 1_796_108_400_000_000_001  # odd: a float would round it

intervals = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(-3, 20)), max_size=30
)


@given(intervals)
def test_union_counts_each_ns_once(items: list[tuple[int, int, int]]) -> None:
    expected = [len({t for g, s, d in items if g == n for t in range(s, s + d)}) for n in range(4)]
    groups, starts, lengths = np.array(items, np.int64).reshape(-1, 3).T
    assert union_ns(groups, BASE + starts, BASE + starts + lengths, 4).tolist() == expected


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Span ids and parent ids: roots, children, unknown parents, own parents and cycles."""
    ids = draw(st.lists(st.integers(1, 40), unique=True, max_size=25))
    parents = [draw(st.sampled_from([0, 99, *ids])) for _ in ids]
    return ids, parents


def _array(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@given(forests())
def test_every_span_hangs_below_a_root_once(forest: tuple[list[int], list[int]]) -> None:
    ids, above = forest
    count = len(ids)
    tree = build_tree(
        _array(ids),
        _array(above),
        _array([BASE] * count),
        _array([10] * count),
        np.zeros(count, bool),
    )
    seen: list[int] = []
    stack = [(int(row), 0) for row in tree.roots]
    while stack:
        row, depth = stack.pop()
        assert tree.depth[row] == depth
        seen.append(row)
        stack += [(int(child), depth + 1) for child in tree.children(row)]
    assert sorted(seen) == list(range(count))
    assert sum(int(tree.below[row]) + 1 for row in tree.roots) == count
    for row, parent in enumerate(tree.parents.tolist()):
        assert parent == -1 or ids[parent] == above[row]


@given(forests())
def test_only_cycles_are_cut(forest: tuple[list[int], list[int]]) -> None:
    ids, above = forest
    row_of = {span: row for row, span in enumerate(ids)}
    parents = parent_rows(_array(ids), _array(above)).tolist()
    for row, parent in enumerate(parents):
        if parent != -1 or above[row] not in row_of:
            continue
        at, steps = row_of[above[row]], 0  # cut: then walking up must come back
        while at != row and above[at] in row_of and steps <= len(ids):
            at, steps = row_of[above[at]], steps + 1
        assert at == row


def test_traces_are_kept_apart() -> None:
    ids, above = _array([1, 2, 1, 2]), _array([0, 1, 0, 1])
    assert parent_rows(ids, above, _array([0, 0, 1, 1])).tolist() == [-1, 0, -1, 2]
    assert parent_rows(_array([5]), _array([1]), _array([0])).tolist() == [-1]
    assert parent_rows(_array([5, 1]), _array([1, 0]), _array([0, 1])).tolist() == [-1, -1]


def test_self_time_and_device_time() -> None:
    # step 0-100: call 10-40, call 30-60 (overlap), kernel of the first 50-90
    ids, above = _array([1, 2, 3, 4]), _array([0, 1, 1, 2])
    starts, lengths = BASE + _array([0, 10, 30, 50]), _array([100, 30, 30, 40])
    tree = build_tree(ids, above, starts, lengths, np.array([False, False, False, True]))
    assert tree.self_ns.tolist() == [50, 30, 30, 40]
    assert tree.device_ns.tolist() == [40, 40, 0, 40]
    assert tree.below.tolist() == [3, 1, 0, 0]


def test_ancestors() -> None:
    parents = _array([-1, 0, 1, 2, -1])
    wanted = np.array([True, True, False, True, True])
    assert nearest_ancestor(parents, wanted).tolist() == [-1, 0, 1, 1, -1]
    assert topmost_ancestor(parents, wanted).tolist() == [-1, 0, 0, 0, -1]


def test_a_million_spans_in_a_deep_and_wide_tree() -> None:
    count = 1_000_000
    ids = np.arange(1, count + 1, dtype=np.int64)
    above = ids // 3  # a ternary tree
    tree = build_tree(ids, above, BASE + ids, np.full(count, 5, np.int64), ids % 2 == 0)
    assert int(tree.below[0]) + int(tree.below[1]) + 2 == count
    assert int(tree.depth.max()) == 12
