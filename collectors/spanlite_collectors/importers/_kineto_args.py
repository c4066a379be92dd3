"""The `args` of Kineto events: which are columns, which attributes, which left out."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

from spanlite.kinds import CALL_KINDS, CopyKind, SpanKind
from spanlite.schema import LAUNCH_COLUMNS

from spanlite_collectors.importers._events import Launches, Strings, is_u32
from spanlite_collectors.importers._json_text import to_json

_U32 = 0xFFFFFFFF
_U64 = (1 << 64) - 1

#: What `ArgsReader.read` gives: these fields of EVENT, which lie next to each other.
FIELDS = (
    "attributes", "status", "device", "context", "stream", "correlation", "external",
    "graph_id", "graph_node", "launch", "bytes", "copy_kind",
)  # fmt: skip
NOTHING = (-1, 0, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0)
_ATTRIBUTES, _LAUNCH = FIELDS.index("attributes"), FIELDS.index("launch")
COPY_KIND, DEVICE, STREAM = (FIELDS.index(name) for name in ("copy_kind", "device", "stream"))
#: Args that are columns: which, and the largest value it holds.
_COLUMNS: dict[str, tuple[int, int]] = {
    name: (FIELDS.index(field), largest)
    for name, field, largest in (
        ("device", "device", (1 << 31) - 2),
        ("context", "context", _U32 - 1),
        ("stream", "stream", (1 << 63) - 2),
        ("correlation", "correlation", _U64),
        ("External id", "external", _U64),
        ("external id", "external", _U64),
        ("bytes", "bytes", _U64),
        ("graph id", "graph_id", _U32),
        ("graph node id", "graph_node", _U64),
    )
}
#: Numbers that only link records to each other, or count them. The links are made.
_LINKING = frozenset(
    {
        "Ev Idx", "Record function id", "Python id", "Python parent id", "Python module id",
        "Sequence number", "Fwd thread id", "cbid", "cid", "Trace name", "Trace iteration",
    }
)  # fmt: skip
#: Follows from other columns, or is an address in a process that has ended.
_DERIVED = frozenset(
    {
        "est. achieved occupancy %", "blocks per SM", "warps per SM", "memory bandwidth (GB/s)",
        "queued", "src", "dst", "ptr", "Addr",
    }
)  # fmt: skip
_LEFT_OUT = _LINKING | _DERIVED
_LAUNCH_KEYS = ("grid", "block", "cluster", "registers per thread", "shared memory")
_ZEROS = (0, 0, 0)
_LAUNCHING = (SpanKind.KERNEL, *CALL_KINDS)
_COPY_KIND = re.compile(r"(?:Memcpy |Copy)?(Host|Device|[HDAP])(?:To|to)(Host|Device|[HDAP])")


@dataclass
class _Plan:
    """What to do with events of one category whose args have the same names."""

    columns: list[tuple[str, int, int]]
    rest: list[str]
    left_out: list[str]
    has_launch: bool
    uses: int = 0


class ArgsReader:
    """Takes args apart; the same set of names is thought about only once."""

    def __init__(self, strings: Strings, launches: Launches) -> None:
        self._text, self._launch = strings.code, launches.code
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._category: dict[str, int] = {}
        self._known_launches: dict[tuple[Any, ...], int] = {}
        self._dropped: Counter[str] = Counter()

    def read(self, args: dict[str, Any], kind: SpanKind, category: str) -> list[int]:
        """The values of FIELDS; what args do not name is "none"."""
        key = (kind, *args)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = _plan(args, kind)
        plan.uses += 1
        out = list(NOTHING)
        rest: dict[str, Any] = {}
        for name, field, largest in plan.columns:
            value = args[name]
            if type(value) is int and 0 <= value <= largest:
                out[field] = value
            elif value != -1:  # -1 is how some profilers write "none"
                rest[name] = value
        for name in plan.rest:
            rest[name] = args[name]
        if plan.has_launch and not self._take_launch(args, out):
            rest.update({name: args[name] for name in _LAUNCH_KEYS if name in args})
        if rest:
            if "kind" in rest:
                self._take_kind(out, rest)
            if kind == SpanKind.HOST:
                rest["cat"] = category
            if rest:
                out[_ATTRIBUTES] = self._text(to_json(rest))
        return out

    def category(self, category: str, kind: SpanKind) -> int:
        """The attributes of an event that has none but its category, -1 for none."""
        if kind != SpanKind.HOST or not category:
            return -1
        code = self._category.get(category)
        if code is None:
            code = self._category[category] = self._text(to_json({"cat": category}))
        return code

    def left_out(self) -> Counter[str]:
        """How many values of each name were left out."""
        total = Counter(self._dropped)
        for plan in self._plans.values():
            for name in plan.left_out:
                total[name] += plan.uses
        return total

    def _take_launch(self, args: dict[str, Any], out: list[int]) -> bool:
        try:
            config = (
                *args["grid"],
                *args.get("block", _ZEROS),
                *args.get("cluster", _ZEROS),
                args.get("registers per thread", 0),
                0,
                # Kineto writes static and dynamic shared memory as one number.
                args.get("shared memory", 0),
            )
            code = self._known_launches.get(config)
        except TypeError:
            return False
        if code is None:
            if len(config) != len(LAUNCH_COLUMNS) or not all(map(is_u32, config)):
                return False
            code = self._known_launches[config] = self._launch(config)
        out[_LAUNCH] = code
        return True

    def _take_kind(self, out: list[int], rest: dict[str, Any]) -> None:
        kind = copy_kind(str(rest["kind"]))
        if kind:
            out[COPY_KIND] = kind
            del rest["kind"]
        elif rest["kind"] == "Dispatch Kernel":
            self._dropped["kind"] += 1
            del rest["kind"]


def _plan(args: dict[str, Any], kind: SpanKind) -> _Plan:
    launch = kind in _LAUNCHING and "grid" in args
    taken = _LAUNCH_KEYS if launch else ()
    columns = [(name, *_COLUMNS[name]) for name in args if name in _COLUMNS]
    left_out = [name for name in args if name in _LEFT_OUT]
    rest = [
        name
        for name in args
        if name not in _COLUMNS and name not in _LEFT_OUT and name not in taken
    ]
    return _Plan(columns, rest, left_out, launch)


@cache
def copy_kind(text: str) -> int:
    """The CopyKind that a name such as "Memcpy HtoD (Pageable -> Device)" tells, or 0."""
    found = _COPY_KIND.search(text)
    if not found:
        return 0
    word = f"{found[1][0]}TO{found[2][0]}"
    return int(CopyKind[word]) if word in CopyKind.__members__ else 0
