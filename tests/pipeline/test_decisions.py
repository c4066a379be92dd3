"""The decision cache: newest word, bounded by age and size, the same after a restart."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from spanlite_pipeline.decisions import PREFIX, DecisionCache
from spanlite_pipeline.state import MemoryStore


def find(cache: DecisionCache, *hashes: int) -> list[float | None]:
    known, weight, _ = cache.find(np.array(hashes, np.uint64))
    return [w if k else None for k, w in zip(known.tolist(), weight.tolist(), strict=True)]


def add(cache: DecisionCache, words: dict[int, float], now_ms: int) -> None:
    hashes = np.array(list(words), np.uint64)
    cache.add(hashes, np.array(list(words.values())), np.zeros(len(words), np.int32), now_ms)


def test_the_newest_word_holds() -> None:
    cache = DecisionCache(MemoryStore(), 1000, 100)
    add(cache, {1: 0.0, 2: 3.0}, 0)
    add(cache, {1: 5.0}, 10)
    assert find(cache, 1, 2, 3, 0) == [5.0, 3.0, None, None]


def test_old_decisions_go_and_new_ones_stay() -> None:
    store = MemoryStore()
    cache = DecisionCache(store, 1000, 100)
    add(cache, {1: 1.0, 2: 1.0}, 0)
    add(cache, {2: 2.0}, 900)
    cache.purge(1500)
    assert find(cache, 1, 2) == [None, 2.0]
    assert len(list(store.items())) == 1


def test_too_many_decisions_push_out_the_oldest() -> None:
    cache = DecisionCache(MemoryStore(), 1 << 40, 10)
    for block in range(5):
        add(cache, {block * 10 + i: 1.0 for i in range(4)}, block)
        cache.purge(block)
    assert len(cache) == 8
    assert find(cache, 0, 20, 30, 40) == [None, None, 1.0, 1.0]


@given(st.lists(st.dictionaries(st.integers(0, 20), st.floats(0, 9), max_size=5), max_size=8))
def test_a_restart_changes_nothing(blocks: list[dict[int, float]]) -> None:
    store = MemoryStore()
    cache = DecisionCache(store, 3, 20)
    for now_ms, block in enumerate(blocks):
        add(cache, block, now_ms)
        cache.purge(now_ms)
    again = DecisionCache(store.snapshot(), 3, 20)
    again.restore({key: value for key, value in store.items() if key.startswith(PREFIX)})
    assert find(again, *range(21)) == find(cache, *range(21))
