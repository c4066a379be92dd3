"""The graphs of a replay, made through a `Driver`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from spanlite.kinds import CopyKind, SpanKind

from spanlite_replay.recording import Recording
from spanlite_replay.targets.gpu.driver import I64, Captured, Driver
from spanlite_replay.targets.gpu.schedule import Order
from spanlite_replay.targets.gpu.standins import Shapes

#: From the moment the host lets go to the origin.
LEAD_NS = 200_000


@dataclass(frozen=True)
class Recipe:
    """How each item runs. Arrays have shape (items,)."""

    kind: npt.NDArray[np.uint8]
    shape: I64  # of its stand-in, -1: no kernel
    length: I64  # told to the stand-in
    size_bytes: I64  # of copies and memsets
    copy_kind: I64
    gate: I64  # ns from the origin, -1 for none
    #: Ops mode: items that run as these nodes instead. One item is one node.
    captured: Mapping[int, Captured]
    #: Told to the stand-in: for how long its blocks hold the SMs (0: to its end), when it should
    #: end, from the origin, and how far its end may move for that.
    hold: I64
    due: I64
    steer_ns: int = 0
    cycles_per_ns: float = 1.0


@dataclass(frozen=True)
class Built:
    """Graphs that are ready, and what their nodes are."""

    ready: list[int]
    #: For each graph the item of each node in order of its making; -1: a gate or the start.
    items: list[I64]
    last_item: list[int]


def copies_of(rec: Recording, rows: I64) -> tuple[I64, I64]:
    """(bytes, CopyKind) of copies and memsets at these rows; 0 where not recorded."""
    codes, words = rec.dictionary("copy_kind")
    kinds = np.array(
        [CopyKind[word.upper()] if word.upper() in CopyKind.__members__ else 0 for word in words],
        np.int64,
    )
    copy = kinds[codes][rows] if len(words) else np.zeros(len(rows), np.int64)
    return np.maximum(rec.integers("bytes", rows, 0), 0), copy


def way_of(kind: int) -> str:
    """The two ends of a copy, `htod` and so on; arrays and peers are taken for device memory."""
    word = CopyKind(kind).name.lower() if kind else "dtod"
    return "to".join("h" if end == "h" else "d" for end in (word[0], word[-1]))


def build(
    driver: Driver,
    order: Order,
    shapes: Shapes,
    recipe: Recipe,
    on_progress: Callable[[int, int], None] | None = None,
) -> Built:
    """Make and upload the graphs; they run one after the other."""
    stamped = {
        item: number
        for number, item in enumerate(
            item
            for item in range(len(order))
            if recipe.shape[item] >= 0
            and item not in recipe.captured
            and shapes.is_stamped(int(recipe.shape[item]), int(recipe.length[item]))
        )
    }
    is_memory = recipe.shape < 0
    most = int(recipe.size_bytes[is_memory].max(initial=0))
    driver.reserve(len(stamped), most)
    ready, items, last = [], [], []
    bounds = np.searchsorted(order.graph, np.arange(order.graphs + 1))
    for number in range(order.graphs):
        graph = driver.new_graph()
        made: list[int] = []
        node_of: dict[int, int] = {}
        gate_of: dict[int, int] = {}
        root = []
        if number == 0:
            root = [driver.add_start(graph, LEAD_NS)]
            made.append(-1)
        for item in range(int(bounds[number]), int(bounds[number + 1])):
            before = [node_of[one] for one in order.after[item] if one in node_of] or root
            if recipe.gate[item] >= 0:
                # An open gate of what starts first and overlaps comes before this one.
                before = [*before, *_known(gate_of, int(order.overlaps[item]))]
                before = [driver.add_gate(graph, before, int(recipe.gate[item]))]
                made.append(-1)
                gate_of[item] = before[0]
            node_of[item] = _add(driver, graph, before, item, shapes, recipe, stamped)
            made.append(item)
            if on_progress is not None:
                on_progress(item + 1, len(order))
        ready.append(driver.instantiate(graph))
        items.append(np.array(made, np.int64))
        last.append(int(bounds[number + 1]) - 1)
    return Built(ready, items, last)


def _known(gate_of: Mapping[int, int], item: int) -> list[int]:
    return [gate_of[item]] if item in gate_of else []


def _add(
    driver: Driver,
    graph: int,
    before: list[int],
    item: int,
    shapes: Shapes,
    recipe: Recipe,
    stamped: Mapping[int, int],
) -> int:
    if item in recipe.captured:
        return driver.add_captured(graph, before, recipe.captured[item])
    size, shape = int(recipe.size_bytes[item]), int(recipe.shape[item])
    if recipe.kind[item] == SpanKind.MEMCPY:
        return driver.add_copy(graph, before, way_of(int(recipe.copy_kind[item])), max(size, 1))
    if recipe.kind[item] == SpanKind.MEMSET:
        return driver.add_memset(graph, before, max(size, 1))
    work = shapes.stand_in(
        shape,
        int(recipe.length[item]),
        stamped.get(item, -1),
        int(recipe.hold[item]),
        int(recipe.due[item]),
        recipe.steer_ns,
        recipe.cycles_per_ns,
    )
    return driver.add_stand_in(graph, before, shapes.launches[shape], work)
