"""Columns as numpy, against plain Python, for any lengths of runs, nulls and chunks."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite_replay._columns import argsort, by_code, factorise, find, numbers

WORDS = st.none() | st.sampled_from(["a", "b", "c"])
NUMBERS = st.none() | st.sampled_from([0, 1, 7, -5, 70_000, 2**40])
#: (value, how often in a row)
ROWS = st.lists(st.tuples(WORDS, NUMBERS, NUMBERS, st.integers(1, 9)), max_size=25)


pytestmark = pytest.mark.usefixtures("plan_loops")


def table_of(runs: list[tuple[object, object, object, int]], chunks: int) -> pa.Table:
    rows = [run[:3] for run in runs for _ in range(run[3])]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    whole = pa.table(
        {
            "word": pa.array(columns[0], pa.string()).dictionary_encode(),
            "x": pa.array(columns[1], pa.int64()),
            "y": pa.array(columns[2], pa.int64()),
        }
    )
    cuts = np.linspace(0, len(rows), chunks + 1).astype(int).tolist()
    parts = [whole.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
    return pa.concat_tables(parts)


@given(ROWS, st.integers(1, 3), st.integers(0, 9), st.booleans())
def test_factorise(
    runs: list[tuple[object, object, object, int]], chunks: int, offset: int, some: bool
) -> None:
    table = table_of(runs, chunks).slice(offset)
    rows = None
    if some:
        rows = np.random.default_rng(1).permutation(table.num_rows)[: table.num_rows // 2]
    code, keys = factorise(table, ("word", "x", "y"), rows)
    chosen = table.to_pylist() if rows is None else [table.to_pylist()[at] for at in rows]
    names = keys.to_pylist()
    assert [names[at] for at in code.tolist()] == chosen

    def sort_key(row: dict[str, object]) -> tuple[object, ...]:
        return tuple(
            (value is None, value or ("" if key == "word" else 0)) for key, value in row.items()
        )

    assert names == sorted({tuple(row.items()): row for row in chosen}.values(), key=sort_key)


@given(ROWS, st.integers(1, 3), st.integers(0, 20))
def test_numbers(runs: list[tuple[object, object, object, int]], chunks: int, offset: int) -> None:
    column = table_of(runs, chunks).slice(offset).column("x")
    values, valid = numbers(column)
    told = [
        None if valid is not None and not valid[at] else int(value)
        for at, value in enumerate(values.tolist())
    ]
    assert told == column.to_pylist()


IDS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300) | st.integers(2**40, 2**40 + 5_000)


@given(st.lists(IDS, max_size=60), st.lists(IDS, max_size=60), st.integers(1, 40))
def test_find(wanted: list[int], among: list[int], repeat: int) -> None:
    asked = np.repeat(np.array(wanted + among[::2], dtype=np.int64), repeat)
    found = find(asked, np.array(among, dtype=np.int64))
    assert found.tolist() == [among.index(one) if one in among else -1 for one in asked.tolist()]


@given(st.lists(st.lists(st.integers(-(2**62), 2**62), max_size=200), max_size=6))
def test_sorts(parts: list[list[int]]) -> None:
    values = np.array([value for part in parts for value in sorted(part)], dtype=np.int64)
    assert values[argsort(values)].tolist() == sorted(values.tolist())
    stable = argsort(values // 2**60, stable=True)
    assert stable.tolist() == np.argsort(values // 2**60, kind="stable").tolist()
    code = (values % 50_000).astype(np.int32)
    assert by_code(code).tolist() == np.argsort(code, kind="stable").tolist()
