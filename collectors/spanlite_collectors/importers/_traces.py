"""Which trace a span belongs to, and what the traces are called.

A step or a request opens a trace. A span on the same thread inside it belongs to it; a
span on a thread that has no steps or requests of its own belongs to the one that is open
in its process, if exactly one is. What belongs to none goes into a trace of its process
and second.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind

from spanlite_collectors.importers._events import I64, SCOPE_KINDS, U64, Rows
from spanlite_collectors.importers._nesting import Timeline

_SECOND = 1_000_000_000
_FIELDS = ["kind", "process", "thread", "start", "end", "free_range"]


class Scopes:
    """The steps and requests of a file, numbered in the order they were read."""

    def __init__(self) -> None:
        self._pieces: list[tuple[I64, ...]] = []
        self._columns: dict[str, I64] = {}
        self.count = 0

    def number(self, rows: Rows) -> None:
        """Write the numbers of the steps and requests among the rows into `scope`."""
        mask = np.isin(rows["kind"], SCOPE_KINDS) & ~rows["on_device"]
        found = rows[mask]
        if not len(found):
            return
        rows["scope"][mask] = np.arange(self.count, self.count + len(found))
        self.count += len(found)
        self._columns.clear()
        end = found["start"] + found["duration"]
        columns = {name: found[name] for name in _FIELDS if name != "end"} | {"end": end}
        self._pieces.append(tuple(columns[name].astype(np.int64) for name in _FIELDS))

    def column(self, name: str) -> I64:
        """kind, process, thread, start, end or free_range of all, shape (count,)."""
        if name not in self._columns:
            at = _FIELDS.index(name)
            pieces = [piece[at] for piece in self._pieces]
            none = np.zeros(0, dtype=np.int64)
            self._columns[name] = np.concatenate(pieces) if pieces else none
        return self._columns[name]

    def count_of(self, kind: SpanKind) -> int:
        """How many are of a kind."""
        return int((self.column("kind") == kind).sum())


class TraceAssigner:
    """Gives each host row a trace number; trace `i` below scopes.count is scope `i`'s own."""

    def __init__(self, scopes: Scopes, digest: bytes, base_ns: int) -> None:
        self.scopes = scopes
        self._digest, self._base_ns = digest, base_ns
        self._seconds: dict[tuple[int, int], int] = {}
        self._ids = bytearray()
        for number in range(scopes.count):
            self._add_id(f"scope:{number}")
        kind, process = scopes.column("kind"), scopes.column("process")
        self._requests = np.flatnonzero(kind == SpanKind.REQUEST)
        bound = scopes.column("free_range") == 0
        self._by_thread: dict[tuple[int, int], list[Timeline]] = {}
        self._by_process: dict[int, list[Timeline]] = {}
        for wanted in SCOPE_KINDS:  # steps come before requests
            for p in np.unique(process[kind == wanted]).tolist():
                mask = (kind == wanted) & (process == p)
                self._by_process.setdefault(p, []).append(self._timeline(mask))
                thread = scopes.column("thread")
                for t in np.unique(thread[mask & bound]).tolist():
                    line = self._timeline(mask & bound & (thread == t))
                    self._by_thread.setdefault((p, t), []).append(line)

    def _timeline(self, mask: npt.NDArray[np.bool_]) -> Timeline:
        numbers = np.flatnonzero(mask)
        return Timeline(self.scopes.column("start")[mask], self.scopes.column("end")[mask], numbers)

    def assign(self, rows: Rows) -> I64:
        """The trace number of each host row, shape (n,)."""
        trace = np.full(len(rows), -1, dtype=np.int64)
        tracks = np.stack((rows["process"].astype(np.int64), rows["thread"].view(np.int64)), 1)
        for process, thread in np.unique(tracks, axis=0).tolist() if len(rows) else []:
            mask = (tracks[:, 0] == process) & (tracks[:, 1] == thread)
            trace[mask] = self._on_thread(process, thread, rows["start"][mask])
        trace = np.where(rows["scope"] >= 0, rows["scope"], trace)
        return self.fill_seconds(trace, rows)

    def _on_thread(self, process: int, thread: int, start: I64) -> I64:
        own = self._by_thread.get((process, thread))
        answers = (
            [line.innermost(start) for line in own]
            if own
            else [line.only(start) for line in self._by_process.get(process, [])]
        )
        trace = np.full(len(start), -1, dtype=np.int64)
        for answer in answers:
            trace = np.where(trace >= 0, trace, answer)
        return trace

    def fill_seconds(self, trace: I64, rows: Rows) -> I64:
        """Replace -1 by the trace of the row's process and second."""
        missing = np.flatnonzero(trace < 0)
        if len(missing):
            second = (rows["start"][missing] + self._base_ns) // _SECOND
            pairs = np.stack((rows["process"][missing].astype(np.int64), second), 1)
            distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
            numbers = [self._second_trace(p, s) for p, s in distinct.tolist()]
            trace[missing] = np.array(numbers, dtype=np.int64)[inverse.ravel()]
        return trace

    def _second_trace(self, process: int, second: int) -> int:
        key = (process, second)
        if key not in self._seconds:
            self._seconds[key] = len(self._ids) // 16
            self._add_id(f"second:{process}:{second}")
        return self._seconds[key]

    def requests_of(self, scope: int) -> list[int]:
        """The requests that a step is shown to serve, as scope numbers.

        Those open on its thread when it starts, and start/end ranges of its process that
        overlap it.
        """
        if not len(self._requests):
            return []
        step = {name: int(self.scopes.column(name)[scope]) for name in _FIELDS}
        other = {name: self.scopes.column(name)[self._requests] for name in _FIELDS}
        ours = (other["process"] == step["process"]) & (other["end"] > step["start"])
        holds = (other["start"] <= step["start"]) & (other["thread"] == step["thread"])
        overlaps = (other["free_range"] != 0) & (other["start"] < step["end"])
        found: list[int] = self._requests[ours & (holds | overlaps)].tolist()
        return found

    def ids(self, trace: I64) -> tuple[U64, U64]:
        """(low, high) of each trace number."""
        table = np.frombuffer(bytes(self._ids), dtype=">u8").reshape(-1, 2)
        picked = table[trace].astype(np.uint64)
        return np.ascontiguousarray(picked[:, 1]), np.ascontiguousarray(picked[:, 0])

    def _add_id(self, what: str) -> None:
        self._ids += blake2b(self._digest + what.encode(), digest_size=16).digest()
