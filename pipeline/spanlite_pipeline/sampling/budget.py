"""What rate limits and the `rare` rule have used up, for one bucket.

A budget is the only state of sampling. The job keeps it with the bucket's other state, so
that a restart goes on where the last checkpoint was.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from functools import lru_cache

import numpy as np
import numpy.typing as npt

#: A limiter never keeps a smaller share than this. With a share of 0 no weight could make
#: up for the traces that were left out.
MIN_SHARE = 1e-4
#: Minutes of kernel names kept, the least recently seen going first. More than one, since
#: hosts' clocks differ and batches come late.
MINUTES = 16
_RARE = np.dtype([("minute", "<i8"), ("name", "<u8"), ("count", "<u4")])


@lru_cache(maxsize=65536)
def _name_hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


class Budget:
    """The state of one bucket's limits. `bucket_count` buckets share each rate equally."""

    def __init__(self, bucket_count: int) -> None:
        self.share = 1.0 / bucket_count
        self._tokens: dict[str, float] = {}
        self._refilled_ns: dict[str, int] = {}
        self._minutes: OrderedDict[int, dict[int, int]] = OrderedDict()

    def admit(self, limiter: str, rate: float, burst: float, offered: float, now_ns: int) -> float:
        """The share of `offered` units that `limiter` lets through now, in (0, 1].

        A token bucket that starts full: `rate` units a second, at most `burst` saved, both
        for all buckets together. It is charged with what is let through on average, so the
        rate holds over time while each trace's chance is known before it is drawn.
        """
        last = self._refilled_ns.get(limiter, now_ns)
        tokens = self._tokens.get(limiter, burst * self.share)
        tokens += rate * self.share * max(0, now_ns - last) / 1e9
        tokens = min(tokens, burst * self.share)
        share = 1.0 if offered <= tokens else max(tokens / offered, MIN_SHARE)
        self._tokens[limiter] = max(0.0, tokens - share * offered)
        self._refilled_ns[limiter] = max(last, now_ns)
        return share

    def seen(self, minute: int, name: str) -> int:
        """How often kernel `name` was counted in that minute (Unix time / 60 s)."""
        return self._minutes.get(minute, {}).get(_name_hash(name), 0)

    def count(self, minute: int, name: str, times: int) -> None:
        """Count `times` more of kernel `name` in that minute."""
        counts = self._minutes.setdefault(minute, {})
        self._minutes.move_to_end(minute)
        key = _name_hash(name)
        counts[key] = counts.get(key, 0) + times
        while len(self._minutes) > MINUTES:
            self._minutes.popitem(last=False)

    def to_bytes(self) -> bytes:
        """For the job's state."""
        limits = {name: [self._tokens[name], self._refilled_ns[name]] for name in self._tokens}
        head = json.dumps({"share": self.share, "limits": limits}).encode()
        return len(head).to_bytes(4, "little") + head + self._rare_rows().tobytes()

    def _rare_rows(self) -> npt.NDArray[np.void]:
        rows = [
            (minute, name, count)
            for minute, counts in self._minutes.items()
            for name, count in counts.items()
        ]
        return np.array(rows, dtype=_RARE)

    @classmethod
    def from_bytes(cls, data: bytes) -> Budget:
        """The inverse of `to_bytes`."""
        size = int.from_bytes(data[:4], "little")
        head = json.loads(data[4 : 4 + size])
        out = cls(1)
        out.share = head["share"]
        for name, (tokens, refilled_ns) in head["limits"].items():
            out._tokens[name], out._refilled_ns[name] = tokens, refilled_ns
        for minute, name, count in np.frombuffer(data[4 + size :], dtype=_RARE).tolist():
            out._minutes.setdefault(minute, {})[name] = count
        return out
