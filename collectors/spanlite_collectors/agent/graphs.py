"""Layer and stage for the kernels of CUDA graphs, which carry no range of their own.

The nodes of a graph, in the order of their ids, are the launches of its capture in their order.
So where the agent's first window has seen the capture (launches that started no kernel, as many
as the graph has, with its copies or without), each node gets the ranges of its launch.

Else: a process usually runs the same step eagerly before it captures (warm-up). The sequence of
(kernel name, grid, block) of a graph's nodes is searched in the eager sequences of the same
process, and each node gets the ranges of the kernel it matches. What matches nothing stays
unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

#: Fewer kernels say too little: they occur everywhere.
_MIN_KERNELS = 4
_MAX_EAGER = 32
#: Copies before and after a capture, of which some may be its own.
_MAX_AROUND = 64
#: Those used last: a server that captures anew all the time must not fill the daemon.
_MAX_GRAPHS = 1024
#: Above this an inexact match would take seconds.
_MAX_INEXACT = 3000
#: The part of a graph that must match for an inexact match to count.
_MIN_SHARE = 0.5


@dataclass(frozen=True)
class _Eager:
    keys: Keys
    stages: list[str]


@dataclass(frozen=True)
class _Capture:
    stages: list[str]
    copies: npt.NDArray[np.bool_]

    def parts(self, keys: Keys) -> Iterator[tuple[list[str | None], bool]]:
        """The stages of as many nodes as there are keys, by each place that they can have in it:
        nothing but copies lies around them. Whether a place is likely: no kernel that stands for
        a copy is one of a launch. A copy runs as a copy, which has no key, or as a kernel."""
        if self.copies.any() and len(keys) == (~self.copies).sum():
            yield [s for s, copy in zip(self.stages, self.copies, strict=True) if not copy], True
        kernels, count = np.flatnonzero(~self.copies), len(keys)
        for first in range(max(0, kernels[-1] + 1 - count), kernels[0] + 1):
            copies = self.copies[first : first + count]
            if len(copies) == count:
                yield (
                    list(self.stages[first : first + count]),
                    not np.isin(keys[copies], keys[~copies]).any(),
                )


@dataclass
class _Graph:
    nodes: npt.NDArray[np.uint64]  # sorted
    stages: list[str | None]
    learned: int  # how much was known when it was matched


class GraphStages:
    """What one process has shown of its eager steps and its graphs."""

    def __init__(self) -> None:
        self._eager: dict[bytes, _Eager] = {}
        self._graphs: dict[int, _Graph] = {}
        #: By what lies between the first and the last launch of a kernel.
        self._captured: dict[tuple[tuple[str, bool], ...], _Capture] = {}
        #: How much has been learned so far.
        self.learned = 0

    def state(self) -> dict[str, Any]:
        """What has been learned of eager steps and captures, for JSON. A daemon that has it finds
        the stages of graphs anew at their next replay."""
        numbers: dict[str, int] = {}

        def coded(stages: Sequence[str]) -> list[int]:
            return [numbers.setdefault(stage, len(numbers)) for stage in stages]

        eager = [[e.keys.tobytes().hex(), coded(e.stages)] for e in self._eager.values()]
        captured = [
            [coded(run.stages), run.copies.astype(int).tolist()] for run in self._captured.values()
        ]
        return {"eager": eager, "captured": captured, "stages": list(numbers)}

    def restore(self, state: Any) -> None:
        """Learn what `state` gave once.

        Raises ValueError, TypeError, KeyError or IndexError where it is nothing of the kind, and
        has then learned a part of it.
        """
        texts = [str(text) for text in state["stages"]]
        for text, codes in state["eager"]:
            keys = np.frombuffer(bytes.fromhex(text), np.uint64)
            self.learn(keys, [texts[code] for _, code in zip(keys, codes, strict=True)])
        for codes, copies in state["captured"]:
            stages = [texts[code] for code, _ in zip(codes, copies, strict=True)]
            self.learn_capture(stages, [bool(copy) for copy in copies])

    def knows(self, keys: Keys) -> bool:
        """Whether a sequence has nothing new: it is too short, or a part of a known one."""
        text = keys.tobytes()
        return len(keys) < _MIN_KERNELS or any(text in known for known in self._eager)

    def learn(self, keys: Keys, stages: list[str]) -> None:
        """An eager step: its kernels in launch order, and the ranges each was launched in."""
        if self.knows(keys) or not any(stages):
            return
        name = keys.tobytes()
        if len(self._eager) >= _MAX_EAGER:
            del self._eager[next(iter(self._eager))]
        self._eager[name] = _Eager(keys.copy(), list(stages))
        self.learned += 1

    def learn_capture(self, stages: list[str], copies: list[bool]) -> None:
        """A stream capture: the ranges each of its launches was called in, in their order, and
        which of them copy. Copies before and after it may be of no capture: where copies are not
        recorded, theirs started nothing either."""
        kernels = [at for at, copy in enumerate(copies) if not copy]
        if len(kernels) < _MIN_KERNELS or not any(stages):
            return
        first, last = kernels[0], kernels[-1] + 1
        inner = tuple(zip(stages[first:last], copies[first:last], strict=True))
        part = slice(max(0, first - _MAX_AROUND), last + _MAX_AROUND)
        run = _Capture(stages[part], np.array(copies[part], np.bool_))
        known = self._captured.pop(inner, None)
        if known and len(known.stages) >= len(run.stages):
            self._captured[inner] = known
            return
        if len(self._captured) >= _MAX_EAGER:
            del self._captured[next(iter(self._captured))]
        self._captured[inner] = run
        self.learned += 1

    def match(self, graph: int, nodes: npt.NDArray[np.uint64], keys: Keys) -> None:
        """One replay of a graph, whole or in part: node ids and keys, shape (n,) each."""
        known = self._graphs.pop(graph, None)
        if known:
            self._graphs[graph] = known  # the last one used
        if known and len(known.nodes) >= len(nodes) and known.learned == self.learned:
            return
        if known and len(known.nodes) >= len(nodes) and None not in known.stages:
            return
        order = np.argsort(nodes, kind="stable")
        stages = self._stages(keys[order])
        if known and sum(s is not None for s in stages) < sum(s is not None for s in known.stages):
            stages = known.stages if len(known.nodes) == len(nodes) else stages
        self._graphs[graph] = _Graph(nodes[order], stages, self.learned)
        if len(self._graphs) > _MAX_GRAPHS:
            del self._graphs[next(iter(self._graphs))]

    def stages_of(self, graph: int, nodes: npt.NDArray[np.uint64]) -> list[str | None]:
        """The ranges of each node, such as `layer_3/attention`; None where nobody knows."""
        known = self._graphs.get(graph)
        if known is None or not len(known.nodes):
            return [None] * len(nodes)
        at = np.minimum(np.searchsorted(known.nodes, nodes), len(known.nodes) - 1)
        there = known.nodes[at] == nodes
        return [
            known.stages[i] if found else None
            for i, found in zip(at.tolist(), there.tolist(), strict=True)
        ]

    def _stages(self, keys: Keys) -> list[str | None]:
        captures = [part for run in self._captured.values() for part in run.parts(keys)]
        if captures:
            likely = [stages for stages, likely in captures if likely]
            return _agreed(likely or [stages for stages, _ in captures])
        found = [_exact(eager, keys) for eager in self._eager.values()]
        certain = [stages for stages in found if stages]
        if certain:
            return _agreed(certain)
        if len(keys) < _MIN_KERNELS:
            return [None] * len(keys)
        return max(
            (_inexact(eager, keys) for eager in self._eager.values()),
            key=lambda stages: sum(stage is not None for stage in stages),
            default=[None] * len(keys),
        )


def _exact(eager: _Eager, keys: Keys) -> list[str | None]:
    """The stages where the keys occur in one piece; empty where they do not."""
    if not _MIN_KERNELS <= len(keys) <= len(eager.keys):
        return []
    text, part, places = eager.keys.tobytes(), keys.tobytes(), []
    at = text.find(part)
    while at >= 0:
        if at % 8 == 0:
            places.append(at // 8)
        at = text.find(part, at + 1)
    return _agreed([list(eager.stages[place : place + len(keys)]) for place in places])


def _agreed(answers: list[list[str | None]]) -> list[str | None]:
    """What all answers say of each kernel: the whole path, else its last part, else nothing."""
    if not answers:
        return []
    out: list[str | None] = []
    for said in zip(*answers, strict=True):
        distinct = set(said)
        if len(distinct) == 1:
            out.append(said[0])
            continue
        leaves = {stage.rpartition("/")[2] if stage is not None else None for stage in distinct}
        out.append(leaves.pop() if len(leaves) == 1 else None)
    return out


def _inexact(eager: _Eager, keys: Keys) -> list[str | None]:
    """The stages where most of the keys occur in the same order."""
    out: list[str | None] = [None] * len(keys)
    if max(len(keys), len(eager.keys)) > _MAX_INEXACT:
        return out
    matcher = SequenceMatcher(None, eager.keys.tolist(), keys.tolist(), autojunk=False)
    blocks = matcher.get_matching_blocks()
    if sum(block.size for block in blocks) < _MIN_SHARE * len(keys):
        return out
    for block in blocks:
        if block.size >= _MIN_KERNELS:
            out[block.b : block.b + block.size] = eager.stages[block.a : block.a + block.size]
    return out
