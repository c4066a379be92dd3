"""What the words of a block's shared memory hold."""

from __future__ import annotations

import numpy as np

from spanlite_analytics.lab.audit.values import (
    From,
    Ints,
    Mask,
    Numbers,
    Value,
    blend,
    mix,
    wrapped,
)


class SharedMemory:
    """The words of the block's shared memory."""

    def __init__(self, size_bytes: int) -> None:
        words = size_bytes // 4 + 4
        self.bits = np.zeros(words, np.int64)
        self.known = np.zeros(words, np.bool_)
        self.number = mix("shared", np.arange(words, dtype=np.uint64))
        #: That of anything ever stored.
        self.origin = From.MEMORY
        self.stores_anywhere = 0

    def _words(self, at: Ints) -> Ints:
        return np.clip(at >> 2, 0, len(self.bits) - 2)

    def load(self, address: Value, size: int) -> tuple[Value, Numbers]:
        """What is at an address: its bits where they are known, and a value number."""
        at = self._words(address.bits)
        turn = np.full_like(address.number, np.uint64(self.stores_anywhere))
        number = np.where(address.known, self.number[at], mix("gather", address.number, turn))
        known = self.known[at] & address.known & (size >= 4)
        bits = self.bits[at]
        if size == 8:
            known = known & self.known[at + 1]
            bits = (bits & 0xFFFFFFFF) | (self.bits[at + 1] << 32)
            number = mix("pair", number, self.number[at + 1])
        elif size < 4:
            number = mix("byte", number, (address.bits & 3).view(np.uint64))
        return blend(bits, number, known, self.origin | address.origin), number

    def store(self, address: Value, value: Value, size: int, mask: Mask) -> None:
        """Set words in the threads of `mask`."""
        self.origin |= value.origin
        if not address.known[mask].all():
            self._forget()
            return
        at = self._words(address.bits)[mask]
        if size >= 8:
            self._set(
                at,
                wrapped(value.bits, 32, True)[mask],
                value.known[mask],
                mix("low", value.number)[mask],
            )
            self._set(
                at + 1, (value.bits >> 32)[mask], value.known[mask], mix("high", value.number)[mask]
            )
        elif size == 4:
            self._set(
                at, wrapped(value.bits, 32, True)[mask], value.known[mask], value.number[mask]
            )
        else:
            self._set(
                at,
                np.zeros(len(at), np.int64),
                np.zeros(len(at), np.bool_),
                mix("small", value.number)[mask],
            )

    def _forget(self) -> None:
        """A store that may have gone anywhere: each word may be another now."""
        self.known[:] = False
        places = np.arange(len(self.number), dtype=np.uint64)
        self.stores_anywhere += 1
        turn = np.full_like(places, np.uint64(self.stores_anywhere))
        self.number = mix("may have changed", self.number, places, turn)

    def _set(
        self,
        at: Ints,
        bits: Ints,
        known: Mask,
        number: Numbers,
    ) -> None:
        self.bits[at], self.known[at], self.number[at] = bits, known, number
