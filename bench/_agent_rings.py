"""Drains agents' rings while the bench runs, and counts what whole steps should have held."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.lib.recfunctions import repack_fields
from spanlite_collectors.agent.layout import STRING_HEAD, ZERO_TIMESTAMP, RecordType, WindowReason
from spanlite_collectors.agent.ring import Ring

U64 = npt.NDArray[np.uint64]
#: By workload: begin and end in host time (CLOCK_REALTIME, ns).
Turns: TypeAlias = dict[str, list[tuple[int, int]]]
DRAIN_EVERY_S = 0.1
#: CUPTI hands out a kernel at most so late.
LATE_NS = 2_000_000_000
KEPT = (RecordType.KERNEL, RecordType.MEMCPY, RecordType.API, RecordType.STEP, RecordType.WINDOW)
#: The columns that the bench looks at; the rest of a kernel would fill the memory.
COLUMNS = {
    RecordType.KERNEL: [
        "start_ns",
        "end_ns",
        "correlation_id",
        "window",
        "graph_node_id",
        "block_x",
        "name",
    ],
    RecordType.MEMCPY: ["start_ns", "end_ns", "correlation_id", "window", "graph_node_id"],
    RecordType.API: [
        "start_ns",
        "end_ns",
        "correlation_id",
        "window",
        "thread_id",
        "call",
        "domain",
    ],
}


@dataclass
class Drained:
    """What one process's ring gave."""

    parts: dict[RecordType, list[Any]] = field(default_factory=lambda: {k: [] for k in KEPT})
    #: Records of each type, those that are not kept too.
    seen: dict[str, int] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)
    cupti_version: int = 0
    ring_bytes: int = 0
    state: dict[str, int] = field(default_factory=dict)
    #: Kernels without times: CUPTI had no room for them on the device.
    untimed: int = 0
    #: Kernels kept, and whether there were more after them, or before.
    kept: int = 0
    cut: bool = False
    begun: bool = False
    #: The last records, in two parts of which the first is left out when the second is full.
    late: list[Drained] = field(default_factory=list)

    def trim(self) -> None:
        """Where records were left out: only steps far from there, whose kernels have all come."""
        kernels, steps = self.rows(RecordType.KERNEL), self.rows(RecordType.STEP)
        if kernels is None or steps is None:
            return
        if self.cut:
            steps = steps[steps["end_ns"] < kernels["start_ns"].max() - np.uint64(LATE_NS)]
        if self.begun:
            steps = steps[steps["start_ns"] > steps["start_ns"].min() + np.uint64(LATE_NS)]
        self.parts[RecordType.STEP] = [steps]

    def end(self) -> Drained | None:
        """The last records of one of which not all were kept; None where all were."""
        if not self.late:
            return None
        end = Drained(texts=self.texts, begun=True)
        for part in self.late:
            for kind, rows in part.parts.items():
                end.parts[kind] += rows
        return end

    def keep(
        self, found: dict[RecordType, Any], most: float, kinds: Sequence[RecordType] = KEPT
    ) -> None:
        """So many kernels and what comes with them."""
        for kind in kinds:
            if kind in found:
                rows = found[kind]
                self.ring_bytes += rows.nbytes
                columns = COLUMNS.get(kind)
                self.parts[kind].append(repack_fields(rows[columns]) if columns else rows)
        self.kept += len(found.get(RecordType.KERNEL, ()))
        self.cut = self.kept >= most

    def keep_late(self, found: dict[RecordType, Any], most: float) -> None:
        """The same of the last ones."""
        if not self.late or self.late[-1].cut:
            self.late = [*self.late[-1:], Drained()]
        self.late[-1].keep(found, most)

    def rows(self, kind: RecordType) -> Any:
        """All records of a type so far, None where there is none."""
        return np.concatenate(self.parts[kind]) if self.parts[kind] else None


class RingDrain(threading.Thread):
    """Empties every ring of a folder until told to stop. `drained` is by process id.

    Of each process all windows are kept, the first `most_kernels`, the last ones, and what came
    with them; those between are only counted.
    """

    def __init__(self, folder: Path, most_kernels: float = float("inf")) -> None:
        super().__init__(daemon=True)
        self.folder, self._most = folder, most_kernels
        self.drained: dict[int, Drained] = {}
        self._rings: dict[Path, Ring] = {}
        self._stop_asked = threading.Event()
        self.start()

    def run(self) -> None:
        """Drain; once more after the end has been asked for."""
        last = False
        while not last:
            last = self._stop_asked.is_set()
            for path in self.folder.glob("*.ring"):
                ring = self._rings.get(path) or self._rings.setdefault(path, Ring(path))
                self._drain(ring)
            time.sleep(DRAIN_EVERY_S)

    def ring_of(self, process_id: int) -> Ring | None:
        """The ring of a process, for its control and state; None where it has none yet."""
        rings = [ring for ring in list(self._rings.values()) if ring.process_id == process_id]
        return rings[0] if rings else None

    def capture(self, steps: int, reason: WindowReason = WindowReason.DEMAND) -> int:
        """Ask every process for a window of so many steps; how many were asked."""
        rings = list(self._rings.values())
        for ring in rings:
            ring.capture(steps, reason)
        return len(rings)

    def stop(self) -> None:
        """Wait until everything that is there has been read."""
        self._stop_asked.set()
        self.join()

    def _drain(self, ring: Ring) -> None:
        mine = self.drained.setdefault(ring.process_id, Drained())
        count = 1
        while count > 0:
            count, found, texts = ring.drain()
            mine.texts.update(_texts(texts))
            for kind, rows in found.items():
                mine.seen[kind.name.lower()] = mine.seen.get(kind.name.lower(), 0) + len(rows)
            if (kernels := found.get(RecordType.KERNEL)) is not None:
                mine.untimed += int(np.count_nonzero(kernels["head_flags"] & ZERO_TIMESTAMP))
            windows_only = mine.cut or self._most == 0
            mine.keep(found, self._most, (RecordType.WINDOW,) if windows_only else KEPT)
            if windows_only and self._most > 0:
                mine.keep_late(found, self._most)
        for reason, lost in ring.new_drops().items():
            mine.drops[reason] = mine.drops.get(reason, 0) + lost
        mine.cupti_version = int(ring.header["cupti_version"][0])
        names = (
            "windows",
            "detaches",
            "records",
            "cost_ppm",
            "attached_cost_ppm",
            "attach_ns",
            "parse_ns",
            "buffers",
            "steps",
            "attached",
            "window_open",
        )
        mine.state = {name: int(ring.state[name][0]) for name in names}


def _texts(raw: bytes) -> Iterator[tuple[int, str]]:
    at = 0
    while at + STRING_HEAD.itemsize <= len(raw):
        size, _, _, number, length = np.frombuffer(raw, STRING_HEAD, 1, at)[0].tolist()
        begin = at + STRING_HEAD.itemsize
        yield number, raw[begin : begin + length].decode(errors="replace")
        at += size


def name_shares(drained: Drained, began_ns: list[int], ended_ns: list[int]) -> dict[str, float]:
    """Share of each kernel's name in the device time of the covered steps of these stretches."""
    steps, kernels = whole_steps(drained), drained.rows(RecordType.KERNEL)
    if kernels is None or len(steps) == 0 or not began_ns:
        return {}
    inside = np.searchsorted(began_ns, steps["start_ns"], side="right") - 1
    steps = steps[(inside >= 0) & (steps["end_ns"] <= np.array(ended_ns)[inside])]
    if len(steps) == 0:
        return {}
    at = np.searchsorted(steps["start_ns"], kernels["start_ns"], side="right") - 1
    mine = kernels[(at >= 0) & (kernels["start_ns"] <= steps["end_ns"][np.maximum(at, 0)])]
    time_ns = np.bincount(mine["name"], weights=mine["end_ns"] - mine["start_ns"])
    total = time_ns.sum()
    return {drained.texts.get(i, ""): float(time_ns[i] / total) for i in np.flatnonzero(time_ns)}


def launch_key(rows: Any) -> U64:
    """What a call and its kernels have in common."""
    # Correlation ids may begin anew when CUPTI attaches again; within a window they do not.
    key: U64 = rows["window"].astype(np.uint64) << np.uint64(32) | rows["correlation_id"]
    return key


def _launches(rows: Any) -> U64:
    """The launch of each kernel or copy. A graph's launch has each node once: where a pair comes
    twice, the second is of a launch, at a window's edge, whose call was not recorded."""
    key = launch_key(rows)
    pairs = np.stack([key, rows["graph_node_id"]], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    return key[first]


def kernels_a_step(drained: Drained) -> npt.NDArray[np.int64]:
    """For each whole step that a window covered, its kernels: those whose launch lies in it.

    With its copies, as a copy inside a graph is recorded as the one or the other.
    """
    calls, kernels = drained.rows(RecordType.API), drained.rows(RecordType.KERNEL)
    if calls is None or kernels is None or drained.rows(RecordType.STEP) is None:
        return np.empty(0, np.int64)
    works = [kernels]
    if (copies := drained.rows(RecordType.MEMCPY)) is not None:
        works.append(copies)
    steps, wanted = whole_steps(drained), np.concatenate([_launches(rows) for rows in works])
    counts = np.zeros(len(steps), np.int64)
    for thread in np.unique(steps["thread_id"]):
        mine = np.flatnonzero(steps["thread_id"] == thread)
        own = calls[calls["thread_id"] == thread]
        counts[mine] = _kernels_of(steps[mine], own, wanted)
    return counts


def _kernels_of(steps: Any, calls: Any, wanted: U64) -> npt.NDArray[np.int64]:
    """The same for the steps and calls of one thread."""
    at = np.searchsorted(steps["start_ns"], calls["start_ns"], side="right") - 1
    inside = (at >= 0) & (calls["start_ns"] <= steps["end_ns"][np.maximum(at, 0)])
    keys, places = launch_key(calls[inside]), at[inside]
    if len(keys) == 0:
        return np.zeros(len(steps), np.int64)
    order = np.argsort(keys)
    keys, places = keys[order], places[order]
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    hit = keys[found] == wanted
    return np.bincount(places[found[hit]], minlength=len(steps)).astype(np.int64)


def whole_steps(drained: Drained) -> Any:
    """The steps that windows covered, in the order of their starts."""
    steps = drained.rows(RecordType.STEP)
    return np.sort(steps[steps["covered"] == 1], order="start_ns")


@dataclass(frozen=True)
class Account:
    """Whole steps, and what they lack."""

    steps: int
    #: Kernels that whole steps lack, and those of them that no drop accounts for.
    lacking: int
    missing: int
    #: (kernels, place in its window, steps of that window) of the first steps that lack some.
    examples: list[tuple[int, int, int]]
    #: Kernels a step: how many steps.
    counts: dict[int, int]


def _load_of(steps: Any, turns: Turns) -> npt.NDArray[np.int64]:
    """In which workload's turns each step lies, by number; -1: in none."""
    group = np.full(len(steps), -1, np.int64)
    for number, stretches in enumerate(turns.values()):
        for began_ns, ended_ns in stretches:
            group[(steps["start_ns"] >= began_ns) & (steps["end_ns"] <= ended_ns)] = number
    return group


def account(drained: Drained, turns: Turns | None = None) -> Account:
    """Kernels missing from whole steps and not counted as dropped.

    A workload launches the same kernels in each step, so the common counts of its thread are the
    truth, and what a step has less than the next of them is missing. `turns`: when each workload
    ran; each is judged by itself, and steps between them are left out.
    """
    counts = kernels_a_step(drained)
    if len(counts) == 0:
        return Account(0, 0, 0, [], {})
    steps = whole_steps(drained)
    group = np.unique(steps["thread_id"], return_inverse=True)[1].ravel()
    if turns is not None:
        group = _load_of(steps, turns)
        steps, counts, group = (values[group >= 0] for values in (steps, counts, group))
    windows, lack = steps["window"], np.zeros(len(counts), np.int64)
    for number in np.unique(group):
        mine = np.flatnonzero(group == number)
        values, times = np.unique(counts[mine], return_counts=True)
        usual = values[times >= max(2, len(mine) // 20)]
        usual = usual if len(usual) else values[-1:]
        nearest = usual[np.minimum(np.searchsorted(usual, counts[mine]), len(usual) - 1)]
        lack[mine] = np.maximum(nearest - counts[mine], 0)
    examples = []
    for at in np.flatnonzero(lack)[:8]:
        mates = np.flatnonzero(windows == windows[at])
        examples.append((int(counts[at]), int(at - mates[0]), len(mates)))
    values, times = np.unique(counts, return_counts=True)
    common = dict(zip(values.tolist(), times.tolist(), strict=True))
    missing = max(0, int(lack.sum()) - sum(drained.drops.values()))
    return Account(len(counts), int(lack.sum()), missing, examples, common)
