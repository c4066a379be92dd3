"""What was decided of a trace, for as long as spans of it may still come."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from spanlite_pipeline.state import Store

PREFIX = "c/"
_HEAD = struct.Struct("<qI")

U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]


class DecisionCache:
    """Trace hash -> weight (0: not kept) and policy. Bounded by age and by number of traces.

    Stored as one block a flush; in memory as arrays sorted by hash.
    """

    def __init__(self, store: Store, ttl_ms: int, limit: int) -> None:
        self._store, self._ttl_ms, self._limit = store, ttl_ms, limit
        self._blocks: deque[tuple[int, int, int]] = deque()  # number, time in ms, traces
        self._next = 0
        self._hash: U64 = np.empty(0, np.uint64)
        self._weight: F64 = np.empty(0, np.float64)
        self._policy: I32 = np.empty(0, np.int32)
        self._block: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self._hash)

    def restore(self, entries: dict[str, bytes]) -> None:
        """Take back the store's entries whose keys start with PREFIX."""
        for number in sorted(int(key[len(PREFIX) :]) for key in entries):
            data = entries[f"{PREFIX}{number}"]
            time_ms, count = _HEAD.unpack_from(data)
            at = _HEAD.size
            hashes = np.frombuffer(data, np.uint64, count, at)
            weights = np.frombuffer(data, np.float64, count, at + 8 * count)
            policies = np.frombuffer(data, np.int32, count, at + 16 * count)
            self._insert(number, time_ms, hashes, weights, policies)

    def add(self, hashes: U64, weights: F64, policies: I32, now_ms: int) -> None:
        """Remember decisions; a trace that is known already is as good as new again."""
        if len(hashes) == 0:
            return
        head = _HEAD.pack(now_ms, len(hashes))
        parts = (hashes, weights.astype(np.float64), policies.astype(np.int32))
        data = head + b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
        self._store.put(f"{PREFIX}{self._next}", data)
        self._insert(self._next, now_ms, *parts)

    def find(self, hashes: U64) -> tuple[npt.NDArray[np.bool_], F64, I32]:
        """(known, weight, policy) of each trace, shape (n,)."""
        if len(self._hash) == 0:
            n = len(hashes)
            return np.zeros(n, np.bool_), np.zeros(n), np.zeros(n, np.int32)
        # The last of equal ones is the newest.
        at = np.maximum(np.searchsorted(self._hash, hashes, side="right") - 1, 0)
        return self._hash[at] == hashes, self._weight[at], self._policy[at]

    def purge(self, now_ms: int) -> None:
        """Forget the oldest blocks: those past the TTL, and those past the limit."""
        total, last_gone = len(self._hash), -1
        while self._blocks:
            number, time_ms, count = self._blocks[0]
            if time_ms >= now_ms - self._ttl_ms and total <= self._limit:
                break
            self._blocks.popleft()
            self._store.remove(f"{PREFIX}{number}")
            total, last_gone = total - count, number
        if last_gone >= 0:
            self._select(self._block > last_gone)

    def _insert(self, number: int, time_ms: int, hashes: U64, weights: F64, policies: I32) -> None:
        self._blocks.append((number, time_ms, len(hashes)))
        self._next = number + 1
        self._hash = np.concatenate([self._hash, hashes])
        self._weight = np.concatenate([self._weight, weights])
        self._policy = np.concatenate([self._policy, policies])
        self._block = np.concatenate([self._block, np.full(len(hashes), number, np.int64)])
        self._select(np.argsort(self._hash, kind="stable"))

    def _select(self, pick: npt.NDArray[Any]) -> None:
        self._hash, self._weight = self._hash[pick], self._weight[pick]
        self._policy, self._block = self._policy[pick], self._block[pick]
