"""Host rows find their parent, their trace and the ranges they lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.flags import SpanFlag
from spanlite.kinds import CALL_KINDS, SpanKind

from spanlite_collectors.agent.messages import Context
from spanlite_collectors.agent.rows import HOST, Rows, Texts, concat, empty, pick
from spanlite_collectors.importers._assemble import _parents as nest_in_threads
from spanlite_collectors.importers._nesting import Timeline

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_SECOND_NS = 1_000_000_000
_SCOPES = (SpanKind.STEP, SpanKind.REQUEST)


class Ids:
    """Trace and span ids of one process: sequential spans, traces named after what opens them."""

    def __init__(self, identity: str, first_span: int) -> None:
        digest = blake2b(identity.encode(), digest_size=32).digest()
        self._seeds = np.frombuffer(digest, np.uint64)
        self._next = first_span

    def spans(self, count: int) -> U64:
        """The next `count` span ids."""
        ids = np.arange(self._next, self._next + count, dtype=np.uint64)
        self._next += count
        return ids

    def of_ranges(self, number: U64) -> tuple[U64, U64]:
        """(low, high) of the traces that ranges open."""
        return _mix(number ^ self._seeds[0]), _mix(number ^ self._seeds[1])

    def of_seconds(self, start: I64) -> tuple[U64, U64]:
        """(low, high) of the traces that hold what belongs to no step or request."""
        second = (start // _SECOND_NS).astype(np.uint64)
        return _mix(second ^ self._seeds[2]), _mix(second ^ self._seeds[3])


def _mix(value: U64) -> U64:
    """Scatter numbers over 64 bits, one to one (the finisher of splitmix64)."""
    with np.errstate(over="ignore"):
        value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return value ^ value >> np.uint64(31)


@dataclass
class Placed:
    """Host rows with what they were given, shape (n,) each. `path`: text of the ranges around."""

    rows: Rows
    span_id: U64
    parent_id: U64
    low: U64
    high: U64
    path: npt.NDArray[np.int32]
    cut: npt.NDArray[np.bool_]  # in a step that a window's edge cut
    step: U64  # the covered step around it: its number and 1, 0 for none

    @classmethod
    def nothing(cls) -> Placed:
        """No rows."""
        none = np.empty(0, np.uint64)
        path, cut = np.empty(0, np.int32), np.empty(0, np.bool_)
        return cls(empty(0, HOST), none, none, none, none, path, cut, none)

    def take(self, chosen: Any) -> Placed:
        """Some of the rows."""
        rows, *rest = (getattr(self, name) for name in self.__dataclass_fields__)
        return Placed(_picked(rows, chosen), *[column[chosen] for column in rest])

    @classmethod
    def join(cls, parts: Sequence[Placed]) -> Placed:
        """One after the other."""
        rows, *names = cls.__dataclass_fields__
        rest = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
        return cls(concat([getattr(part, rows) for part in parts]).copy(), *rest)


def _picked(rows: Rows, chosen: Any) -> Rows:
    return rows[chosen] if isinstance(chosen, slice) else pick(rows, np.asarray(chosen))


def place(
    carry: Placed, rows: Rows, ids: Ids, texts: Texts, links: Mapping[int, tuple[Context, ...]]
) -> tuple[Placed, dict[int, list[Context]]]:
    """Place new rows among each other and those of `carry` (placed earlier, maybe still around).

    Returns the new rows, in the order in which they are to be written, and the links of rows.
    """
    order = np.lexsort((-rows["duration"], rows["start"], _group(rows), rows["thread"]))
    rows = pick(rows, order)
    new = Placed.nothing()
    own = rows["own_span"]
    new.rows, new.span_id = rows, np.where(own != 0, own, ids.spans(len(rows)))
    new.parent_id, new.low, new.high = (np.zeros(len(rows), np.uint64) for _ in range(3))
    new.path, new.cut = np.full(len(rows), -1, np.int32), np.zeros(len(rows), np.bool_)
    new.step = np.zeros(len(rows), np.uint64)
    every = Placed.join([carry, new])
    parent = nest_in_threads(every.rows)
    is_scope = np.isin(every.rows["kind"], _SCOPES)
    fresh = np.arange(len(every.rows)) >= len(carry.rows)
    found = _name_scopes(every, parent, is_scope & fresh, is_scope, ids, links)
    scope = _nearest(parent, is_scope)
    _lend(every, scope, fresh, is_scope, ids)
    _parents_of(every, parent, fresh, is_scope, found)
    _paths(every, parent, fresh, is_scope, texts)
    at = np.maximum(scope, 0)
    partial = every.rows["flags"][at] & np.uint32(SpanFlag.PARTIAL) != 0
    every.cut[fresh] = ((scope >= 0) & partial)[fresh]
    every.step[fresh] = np.where(scope >= 0, every.rows["step"][at], 0)[fresh]
    skip = len(carry.rows)
    return every.take(slice(skip, None)), {row - skip: to for row, to in found.items() if to}


def _group(rows: Rows) -> npt.NDArray[np.bool_]:
    calls: npt.NDArray[np.bool_] = np.isin(rows["kind"], CALL_KINDS)
    return calls


def _nearest(parent: I64, is_scope: npt.NDArray[np.bool_]) -> I64:
    """The step or request at or above each row, -1 for none."""
    at = np.where(is_scope, np.arange(len(parent)), parent)
    going = np.flatnonzero((at >= 0) & ~is_scope[np.maximum(at, 0)])
    while len(going):
        at[going] = parent[at[going]]
        going = going[(at[going] >= 0) & ~is_scope[np.maximum(at[going], 0)]]
    return at


def _name_scopes(
    every: Placed,
    parent: I64,
    fresh: npt.NDArray[np.bool_],
    is_scope: npt.NDArray[np.bool_],
    ids: Ids,
    links: Mapping[int, tuple[Context, ...]],
) -> dict[int, list[Context]]:
    """Give new steps and requests their traces; the links of steps by row.

    A step that serves one request whose trace is known from outside is part of that trace. Any
    other has a trace of its own and links to its requests.
    """
    at = np.flatnonzero(fresh)
    rows = every.rows
    numbers = np.where(rows["id"][at] != 0, rows["id"][at], rows["start"][at].astype(np.uint64))
    low, high = ids.of_ranges(numbers)
    given = (rows["trace_low"][at] != 0) | (rows["trace_high"][at] != 0)
    every.low[at] = np.where(given, rows["trace_low"][at], low)
    every.high[at] = np.where(given, rows["trace_high"][at], high)
    every.parent_id[at] = np.where(given, rows["parent_span"][at], np.uint64(0))
    found: dict[int, list[Context]] = {}
    for row in at[np.argsort(rows["start"][at], kind="stable")].tolist():
        if rows["kind"][row] == SpanKind.STEP:
            served = list(links.get(int(rows["id"][row]), ()))
            _serve(every, row, served, _scope_above(row, parent, is_scope), found)
    return found


def _scope_above(row: int, parent: I64, is_scope: npt.NDArray[np.bool_]) -> int:
    at = int(parent[row])
    while at >= 0 and not is_scope[at]:
        at = int(parent[at])
    return at


def _serve(
    every: Placed, row: int, served: list[Context], above: int, found: dict[int, list[Context]]
) -> None:
    if len(served) == 1:
        every.low[row], every.high[row], every.parent_id[row] = served[0]
        return
    if not served and above >= 0:
        if every.rows["trace_low"][above] or every.rows["trace_high"][above]:
            every.low[row], every.high[row] = every.low[above], every.high[above]
            return
        served = [(int(every.low[above]), int(every.high[above]), int(every.span_id[above]))]
    if served:
        found[row] = served


def _lend(
    every: Placed,
    scope: I64,
    fresh: npt.NDArray[np.bool_],
    is_scope: npt.NDArray[np.bool_],
    ids: Ids,
) -> None:
    """Give all other new rows the trace of the scope around them.

    On a thread that has none: that of the one scope open in the process, else of the second.
    """
    rest = np.flatnonzero(fresh & ~is_scope)
    own = rest[scope[rest] >= 0]
    every.low[own], every.high[own] = every.low[scope[own]], every.high[scope[own]]
    lost = rest[scope[rest] < 0]
    if not len(lost):
        return
    rows = every.rows
    scopes = np.flatnonzero(is_scope)
    bound = scopes[~rows["free_range"][scopes]]
    foreign = ~np.isin(rows["thread"][lost], np.unique(rows["thread"][bound]))
    guess = np.full(len(lost), -1, np.int64)
    if len(scopes) and foreign.any():
        end = rows["start"][scopes] + rows["duration"][scopes]
        line = Timeline(rows["start"][scopes], end, scopes)
        guess = np.where(foreign, line.only(rows["start"][lost]), -1)
    low, high = ids.of_seconds(rows["start"][lost])
    at = np.maximum(guess, 0)
    every.low[lost] = np.where(guess >= 0, every.low[at], low)
    every.high[lost] = np.where(guess >= 0, every.high[at], high)
    every.parent_id[lost] = np.where(guess >= 0, every.span_id[at], np.uint64(0))
    rows["flags"][lost[guess >= 0]] |= np.uint32(SpanFlag.PARENT_INFERRED)


def _parents_of(
    every: Placed,
    parent: I64,
    fresh: npt.NDArray[np.bool_],
    is_scope: npt.NDArray[np.bool_],
    found: dict[int, list[Context]],
) -> None:
    """Span ids of parents. A parent in another trace becomes a link, and is never a parent."""
    held = np.flatnonzero(fresh & (parent >= 0))
    above = parent[held]
    near = (every.low[above] == every.low[held]) & (every.high[above] == every.high[held])
    every.parent_id[held[near]] = every.span_id[above[near]]
    linked = is_scope[held] & ~near & (every.rows["kind"][held] == SpanKind.REQUEST)
    for row, up in zip(held[linked].tolist(), above[linked].tolist(), strict=True):
        found.setdefault(row, []).append(
            (int(every.low[up]), int(every.high[up]), int(every.span_id[up]))
        )


def _paths(
    every: Placed,
    parent: I64,
    fresh: npt.NDArray[np.bool_],
    is_scope: npt.NDArray[np.bool_],
    texts: Texts,
) -> None:
    """`layer_0/attention` for what lies in these ranges; nothing directly under a scope."""
    rows = every.rows
    ranges = np.flatnonzero(fresh & (rows["kind"] == SpanKind.NVTX_RANGE))
    names = texts.all() if len(ranges) else []
    memo: dict[tuple[int, int], int] = {}
    for row in ranges[np.lexsort((-rows["duration"][ranges], rows["start"][ranges]))].tolist():
        up = int(parent[row])
        while up >= 0 and not is_scope[up] and rows["kind"][up] != SpanKind.NVTX_RANGE:
            up = int(parent[up])
        base = int(every.path[up]) if up >= 0 and not is_scope[up] else -1
        key = (base, int(rows["name"][row]))
        if key not in memo:
            name = names[key[1]]
            base_text = texts.text(base) if base >= 0 else ""
            memo[key] = texts.code(f"{base_text}/{name}" if base_text else name)
        every.path[row] = memo[key]
    rest = np.flatnonzero(fresh & ~is_scope & (rows["kind"] != SpanKind.NVTX_RANGE))
    around = parent[rest]
    while True:  # a driver call lies in its runtime call
        inner = (around >= 0) & ~is_scope[around] & (rows["kind"][around] != SpanKind.NVTX_RANGE)
        if not inner.any():
            break
        around = np.where(inner, parent[np.maximum(around, 0)], around)
    every.path[rest] = np.where(around >= 0, every.path[np.maximum(around, 0)], -1)
