"""A driver that keeps every node and runs graphs by a simple rule, with ns of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from spanlite_replay.plan import Plan, PlanSettings, build_plan
from spanlite_replay.recording import Recording
from spanlite_replay.targets.gpu.driver import Captured, Device, Launch, Records, StandIn

GAP_NS, LEAST_NS, OWN_NS = 450, 900, 700
RECORDINGS = Path(__file__).parents[2] / "recordings"


@dataclass(frozen=True)
class Node:
    what: str
    after: tuple[int, ...]
    offset_ns: int = 0
    launch: Launch | None = None
    work: StandIn | None = None
    way: str = ""
    size_bytes: int = 0
    captured: Captured | None = None


@dataclass
class StandInDriver:
    """Ends: what a node waits for, a gap, then its length. `lose`: nodes not measured."""

    device: Device = field(
        default_factory=lambda: Device("Some GPU", (9, 0), 132, "CUDA 13.0", 1 << 37)
    )
    graphs: list[list[Node]] = field(default_factory=list)
    launched: list[int] = field(default_factory=list)
    stamps: int = 0
    copy_bytes: int = 0
    went: bool = False
    closed: bool = False
    lose: Callable[[Node], bool] = lambda node: False
    slower: float = 1.0
    shuffle: bool = True

    def registers_of(self, launch: Launch) -> int:
        return launch.registers

    def reserve(self, stamps: int, copy_bytes: int) -> None:
        self.stamps, self.copy_bytes = stamps, copy_bytes

    def new_graph(self) -> int:
        self.graphs.append([])
        return len(self.graphs) - 1

    def _add(self, graph: int, node: Node) -> int:
        assert all(0 <= one < len(self.graphs[graph]) for one in node.after)
        self.graphs[graph].append(node)
        return len(self.graphs[graph]) - 1

    def add_start(self, graph: int, lead_ns: int) -> int:
        return self._add(graph, Node("start", (), lead_ns))

    def add_gate(self, graph: int, after: Sequence[int], offset_ns: int) -> int:
        return self._add(graph, Node("gate", tuple(after), offset_ns))

    def add_stand_in(self, graph: int, after: Sequence[int], launch: Launch, work: StandIn) -> int:
        assert work.stamp < self.stamps and work.length >= 0
        return self._add(graph, Node("kernel", tuple(after), launch=launch, work=work))

    def add_copy(self, graph: int, after: Sequence[int], way: str, size_bytes: int) -> int:
        assert size_bytes <= self.copy_bytes
        return self._add(graph, Node("copy", tuple(after), way=way, size_bytes=size_bytes))

    def add_memset(self, graph: int, after: Sequence[int], size_bytes: int) -> int:
        return self._add(graph, Node("memset", tuple(after), size_bytes=size_bytes))

    def add_captured(self, graph: int, after: Sequence[int], captured: Captured) -> int:
        return self._add(graph, Node("captured", tuple(after), captured=captured))

    def instantiate(self, graph: int) -> int:
        return graph

    def rewind(self) -> None:
        self.launched, self.went = [], False

    def launch(self, ready: int) -> None:
        self.launched.append(ready)

    def go(self) -> None:
        self.went = True

    def finish(self) -> Records:
        self.go()
        now = 1_796_000_000_000_000_000
        origin, rows = 0, []
        for graph in self.launched:
            ends: list[int] = []
            for number, node in enumerate(self.graphs[graph]):
                start = max([ends[one] for one in node.after], default=now) + GAP_NS
                end = self._end(node, start, origin)
                if node.what == "start":
                    origin = end + node.offset_ns
                ends.append(end)
                blocks = int(np.prod(node.launch.grid)) if node.launch else 0
                if not self.lose(node):
                    rows.append((graph + 5, (graph << 32) + number, start, end, blocks))
            now = max([now, *ends]) + 3_000
        table = np.array(rows, np.int64).reshape(-1, 5)
        if self.shuffle:
            table = np.random.default_rng(0).permutation(table)
        return Records(*table.T.copy())

    def _end(self, node: Node, start: int, origin: int) -> int:
        if node.what == "gate":
            return max(start + LEAST_NS, origin + node.offset_ns)
        if node.work is not None:
            length = int(node.work.length * self.slower)
            return start + max(LEAST_NS, length + OWN_NS)
        return start + 1_200

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def driver() -> StandInDriver:
    return StandInDriver()


@pytest.fixture(scope="session")
def plan_of() -> Callable[[pa.Table], Plan]:
    def make(table: pa.Table, **settings: Any) -> Plan:
        plan = build_plan(Recording.from_table(table), PlanSettings(**settings))
        return plan.with_work("stream")

    return make
