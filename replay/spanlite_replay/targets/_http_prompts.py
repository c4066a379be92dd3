"""Prompts of a given number of tokens, made up: nothing recorded is ever sent.

A pool of tokens is made once, and each prompt is a slice of it that begins where the request's own
number says. So a prompt costs a copy of some bytes, no two begin alike, and a server's prefix cache
finds nothing, except where the log says that requests shared blocks (`hash_ids`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Longest prompt, and how many tokens the pool has.
MAX_TOKENS = 1 << 20
POOL_TOKENS = 1 << 21
#: Tokens of a block of Mooncake's `hash_ids`.
BLOCK_TOKENS = 512
#: Token ids that every vocabulary in use has, none of them special; five digits each.
_FIRST_ID, _IDS = 10_000, 20_000
#: Words of four letters: with the space before them, one token each in common vocabularies.
_WORDS = (
    "time", "year", "work", "life", "hand", "part", "case", "week", "home", "room", "area", "side",
    "head", "line", "city", "name", "team", "idea", "body", "back", "face", "door", "type", "fact",
    "rate", "view", "book", "page", "form", "road", "game", "kind",
)  # fmt: skip


@dataclass(frozen=True)
class PromptPool:
    """Makes prompts as JSON: a list of token ids, or a text of words."""

    data: bytes
    width: int
    is_ids: bool

    @classmethod
    def of_ids(cls, seed: int) -> PromptPool:
        """Token ids: the number of tokens is exact."""
        ids = np.random.default_rng(seed).integers(_FIRST_ID, _FIRST_ID + _IDS, POOL_TOKENS)
        digits = ids[:, None] // 10 ** np.arange(4, -1, -1) % 10 + ord("0")
        comma = np.full((POOL_TOKENS, 1), ord(","))
        return cls(np.hstack([digits, comma]).astype(np.uint8).tobytes(), 6, True)

    @classmethod
    def of_words(cls, seed: int) -> PromptPool:
        """Words: about as many tokens as words; what the server counted is in the report."""
        picked = np.random.default_rng(seed).integers(0, len(_WORDS), POOL_TOKENS)
        table = np.frombuffer("".join(f" {word}" for word in _WORDS).encode(), np.uint8)
        return cls(table.reshape(-1, 5)[picked].tobytes(), 5, False)

    def prompt(self, number: int, tokens: int, blocks: Sequence[int] = ()) -> bytes:
        """The prompt of the request `number`, as a JSON value.

        `blocks`: ids of its first blocks of BLOCK_TOKENS; the same id gives the same tokens.
        """
        whole = min(len(blocks), tokens // BLOCK_TOKENS)
        parts = [self._slice(~block, BLOCK_TOKENS) for block in blocks[:whole]]
        parts.append(self._slice(number, tokens - whole * BLOCK_TOKENS))
        text = b"".join(parts)
        return b"[" + text[:-1] + b"]" if self.is_ids else b'"' + text[1:] + b'"'

    def _slice(self, number: int, tokens: int) -> bytes:
        # A step prime to the range, so that numbers in a row begin far apart.
        first = number * 611_953 % (POOL_TOKENS - MAX_TOKENS) * self.width
        return self.data[first : first + tokens * self.width]
