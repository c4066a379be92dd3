"""Texts by the numbers that an agent gave them."""

from __future__ import annotations

import numpy as np

from spanlite_collectors.agent.layout import STRING_HEAD, RecordType
from spanlite_collectors.agent.messages import DOMAIN

#: When so much of a new table of texts has come, nothing short is open that began before it.
_MOMENT_BYTES = 256 << 10
#: Texts of earlier tables that are kept: names of requests, each some 100 bytes.
_MAX_OLD_TEXTS = 8192


class StringTable:
    """Ring ids to text. An agent whose table is full starts it anew, and still uses old ids: for a
    moment any of them, and for as long as they last those of ranges that are open.

    So of what is old the texts of steps, by far the longest, go first: they name the requests.
    """

    def __init__(self) -> None:
        self._new: dict[int, str] = {}
        self._old: dict[int, str] = {}
        self._new_bytes = 0
        self._whole = False  # whether `_old` still holds all of the last table
        #: How often an agent has started its table anew.
        self.renewals = 0

    def take(self, raw: bytes) -> None:
        """Read string records, one behind the other; the last may be cut short."""
        if self._whole and self._new_bytes > _MOMENT_BYTES:
            self._thin_out()
        at = 0
        while at + STRING_HEAD.itemsize <= len(raw):
            size, _, _, number, length = np.frombuffer(raw, STRING_HEAD, 1, at)[0].tolist()
            begin = at + STRING_HEAD.itemsize
            if begin + length > len(raw):
                return
            if number == 0:
                self.renew()
            else:
                self._new[number] = raw[begin : begin + length].decode(errors="replace")
                self._new_bytes += length
            at += max(size, 8)

    def renew(self) -> None:
        """The agent starts its table anew: what has come so far is old."""
        self._old |= self._new
        self._new, self._new_bytes, self._whole = {}, 0, True
        self.renewals += 1

    def records(self) -> bytes:
        """Everything that it holds, as `take` reads it."""
        parts = []
        for number, text in (self._old | self._new).items():
            data = text.encode()
            head = np.zeros(1, STRING_HEAD)
            size = (STRING_HEAD.itemsize + len(data) + 7) // 8 * 8
            head["size_bytes"], head["type"] = size, RecordType.STRING
            head["id"], head["length"] = number, len(data)
            parts.append((head.tobytes() + data).ljust(size, b"\0"))
        return b"".join(parts)

    def _thin_out(self) -> None:
        lasting = {n: text for n, text in self._old.items() if not text.startswith("step:")}
        spare = [n for n, text in lasting.items() if text != DOMAIN]  # oldest first
        for number in spare[: max(0, len(spare) - _MAX_OLD_TEXTS)]:
            del lasting[number]
        self._old, self._whole = lasting, False

    def text(self, number: int) -> str:
        """The text; empty where it never came."""
        found = self._new.get(number)
        return found if found is not None else self._old.get(number, "")
