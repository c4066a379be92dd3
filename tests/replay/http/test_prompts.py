"""Made-up prompts: as long as asked, never alike by chance, alike where the log says so."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite_replay.targets._http_prompts import BLOCK_TOKENS, MAX_TOKENS, PromptPool

IDS, WORDS = PromptPool.of_ids(1), PromptPool.of_words(1)


@given(st.integers(0, 2**31 - 1), st.integers(1, 5_000))
def test_exactly_as_many_tokens_as_asked(number: int, tokens: int) -> None:
    ids = json.loads(IDS.prompt(number, tokens))
    assert len(ids) == tokens and all(10_000 <= one < 30_000 for one in ids)
    text = json.loads(WORDS.prompt(number, tokens))
    assert len(text.split(" ")) == tokens and text.isascii()


@pytest.mark.parametrize("pool", [IDS, WORDS])
def test_the_longest_prompt(pool: PromptPool) -> None:
    text = pool.prompt(2**31 - 1, MAX_TOKENS)
    assert len(text) == MAX_TOKENS * pool.width + 1


def test_no_two_begin_alike_and_a_seed_repeats_them() -> None:
    starts = {IDS.prompt(number, 6) for number in range(10_000)}
    assert len(starts) == 10_000
    assert PromptPool.of_ids(1).prompt(7, 100) == IDS.prompt(7, 100)
    assert PromptPool.of_ids(2).prompt(7, 100) != IDS.prompt(7, 100)


@given(st.lists(st.integers(0, 10**6), max_size=4), st.integers(1, 2_200), st.booleans())
def test_the_same_blocks_begin_the_same_way(blocks: list[int], tokens: int, ids: bool) -> None:
    pool = IDS if ids else WORDS
    shared = min(len(blocks), tokens // BLOCK_TOKENS) * BLOCK_TOKENS
    one, two = (json.loads(pool.prompt(number, tokens, blocks)) for number in (3, 4))
    one, two = (one, two) if ids else (one.split(" "), two.split(" "))
    assert len(one) == len(two) == tokens
    assert one[:shared] == two[:shared]
    assert tokens - shared < 6 or one[shared : shared + 6] != two[shared : shared + 6]
