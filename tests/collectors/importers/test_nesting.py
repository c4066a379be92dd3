"""Parents from times: the vectorised rule against the obvious one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from spanlite_collectors.importers._nesting import Timeline, nest

INTERVALS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(-20, 40), st.integers(-2, 30)), max_size=60
)


def _sorted(rows):
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    track = np.array([row[0] for row in rows], dtype=np.int64)
    start = np.array([row[1] for row in rows], dtype=np.int64)
    end = start + np.array([row[2] for row in rows], dtype=np.int64)
    return track, start, end


@given(INTERVALS)
def test_the_parent_is_the_latest_row_before_that_is_still_open(rows):
    track, start, end = _sorted(rows)
    expected = []
    for i in range(len(start)):
        open_before = [j for j in range(i) if track[j] == track[i] and end[j] > start[i]]
        expected.append(max(open_before, default=-1))
    assert nest(track, start, end).tolist() == expected


def test_a_deep_stack_and_a_long_row_of_siblings():
    depth, width = 500, 5_000
    start = np.concatenate((np.arange(depth), depth + np.arange(width) * 2))
    end = np.concatenate((np.full(depth, 10**6), depth + np.arange(width) * 2 + 1))
    parent = nest(np.zeros(depth + width, dtype=np.int64), start, end)
    assert parent[:depth].tolist() == list(range(-1, depth - 1))
    assert set(parent[depth:].tolist()) == {depth - 1}


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15)), max_size=12),
    st.lists(st.integers(-5, 50), min_size=1, max_size=20),
)
def test_a_timeline_answers_like_a_search_through_all_intervals(intervals, times):
    start = np.array([a for a, _ in intervals], dtype=np.int64)
    end = start + np.array([b for _, b in intervals], dtype=np.int64)
    line = Timeline(start, end, np.arange(len(start), dtype=np.int64))
    innermost, only = line.innermost(np.array(times)), line.only(np.array(times))
    for time, inner, single in zip(times, innermost.tolist(), only.tolist(), strict=True):
        held = [i for i in range(len(start)) if start[i] <= time < end[i]]
        assert (inner == -1) == (not held)
        if held:
            assert inner in held
            assert start[inner] == max(start[held])
        assert single == (held[0] if len(held) == 1 else -1)
