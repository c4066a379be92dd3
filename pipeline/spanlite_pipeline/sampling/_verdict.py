"""From the answers of all policies to the last word, as the collector has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int32]


class Verdict:
    """Combines answers: a drop wins, then an inverted no, then a yes, then an inverted yes.

    `modes` are Policy.mode, one a policy. An answer is a mask (n,), or one bool for all.
    """

    def __init__(self, modes: Sequence[str], first_match: bool) -> None:
        self._modes = modes
        self._first_match = first_match
        #: Then the last word is any yes, whatever the order.
        self._plain = all(mode == "sample" for mode in modes)

    def kept(self, answers: Sequence[Any], count: int) -> Mask:
        """Which traces are kept, shape (count,)."""
        if not self._plain:
            return self.full(answers, count)[0]
        out = np.zeros(count, dtype=np.bool_)
        for answer in answers:
            out |= answer
        return out

    def full(self, answers: Sequence[Any], count: int) -> tuple[Mask, Index]:
        """(kept, index of the policy that had the last word or -1), each of shape (count,)."""
        if self._plain:
            policy = _first(enumerate(answers), count)
            return policy >= 0, policy
        return _Tally(self._modes, answers, count, self._first_match).result()


def _first(answers: Any, count: int) -> Index:
    """The first of (index, answer) that says yes, or -1."""
    out = np.full(count, -1, dtype=np.int32)
    for index, answer in reversed(list(answers)):
        np.copyto(out, np.int32(index), where=answer)
    return out


class _Tally:
    """The answers by what they mean. With `first_match` nobody is asked after a yes."""

    def __init__(
        self, modes: Sequence[str], answers: Sequence[Any], count: int, first_match: bool
    ) -> None:
        self._count = count
        self._refused = np.zeros(count, dtype=np.bool_)
        self._yes: dict[str, list[tuple[int, Mask]]] = {"sample": [], "invert": [], "drop": []}
        self._no: list[tuple[int, Mask]] = []
        still_asked = np.ones(count, dtype=np.bool_)
        for index, (mode, answer) in enumerate(zip(modes, answers, strict=True)):
            yes, no = still_asked & answer, still_asked & np.logical_not(answer)
            self._yes[mode].append((index, yes))
            if mode == "invert":
                self._no.append((index, no))
            else:
                self._refused |= no
            if mode == "sample" and first_match:
                still_asked &= ~yes

    def result(self) -> tuple[Mask, Index]:
        """See `Verdict.full`."""
        sampled = _first(self._yes["sample"], self._count)
        inverted = _first(self._yes["invert"], self._count)
        policy = np.where(sampled < 0, np.where(self._refused, -1, inverted), sampled)
        kept = policy >= 0
        for against in (_first(self._no, self._count), _first(self._yes["drop"], self._count)):
            policy = np.where(against >= 0, against, policy)
            kept &= against < 0
        return kept, policy.astype(np.int32)
