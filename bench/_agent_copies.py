"""Nodes of graphs that copy: they run as copies, which windows do not record, or as kernels.

Which nodes copy is told by the capture: its launches, in their order, are the graph's nodes in the
order of their ids. The first window sees it, from `cuInit` on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite_collectors.agent.calls import COPIES, KERNEL_LAUNCHES, call_name
from spanlite_collectors.agent.layout import RecordType

from bench._agent_rings import U64, Drained, launch_key, whole_steps

B = npt.NDArray[np.bool_]


@dataclass
class Lacking:
    """Kernels of graphs that whole steps lack and others have."""

    #: Of nodes that the capture made of copies: they ran as copies.
    copies: int = 0
    others: int = 0
    #: What lacks, by the name that it has as a kernel in other steps; and steps by window.
    names: dict[str, int] = field(default_factory=dict)
    windows: dict[int, int] = field(default_factory=dict)


def lacking_nodes(drained: Drained) -> Lacking:
    """Looks at each graph's nodes in each whole step that launched it."""
    out = Lacking()
    kernels, calls = drained.rows(RecordType.KERNEL), drained.rows(RecordType.API)
    if kernels is None or calls is None or drained.rows(RecordType.STEP) is None:
        return out
    works = [launch_key(kernels)]
    if (copied := drained.rows(RecordType.MEMCPY)) is not None:
        works.append(launch_key(copied))
    used = np.concatenate(works)
    steps = whole_steps(drained)
    nodes = kernels[kernels["graph_node_id"] != 0]
    launch = _launch_of(nodes, calls)
    step = np.where(launch >= 0, _step_of(calls[np.maximum(launch, 0)], steps), -1)
    nodes, launch, step = (values[step >= 0] for values in (nodes, launch, step))
    graph = nodes["graph_node_id"] >> np.uint64(32)
    for number in np.unique(graph):
        mine = graph == number
        thread = calls["thread_id"][launch[mine][0]]
        captures = _captures(calls[calls["thread_id"] == thread], used)
        _judge(out, nodes[mine], step[mine], captures, drained, steps)
    return out


def _judge(
    out: Lacking, nodes: Any, step: Any, captures: list[B], drained: Drained, steps: Any
) -> None:
    ids, at = np.unique(nodes["graph_node_id"], return_inverse=True)
    which, row = np.unique(step, return_inverse=True)
    there = np.zeros((len(which), len(ids)), np.bool_)
    there[row.ravel(), at.ravel()] = True
    copying = [mask for run in captures for mask in _placed(run, len(ids))]
    for number in np.flatnonzero(~there.all(axis=1)).tolist():
        lacks = ~there[number]
        if any((mask | ~lacks).all() for mask in copying):
            out.copies += int(lacks.sum())
        else:
            out.others += int(lacks.sum())
        window = int(steps["window"][which[number]])
        out.windows[window] = out.windows.get(window, 0) + 1
        for node in ids[lacks]:
            code = int(nodes["name"][nodes["graph_node_id"] == node][0])
            name = drained.texts.get(code, "")[:80]
            out.names[name] = out.names.get(name, 0) + 1


def _placed(run: B, nodes: int) -> list[B]:
    """Which of so many nodes copy, by each place that the capture can have in a run of launches:
    nothing but copies comes before and after it."""
    return [
        run[first : first + nodes]
        for first in range(len(run) - nodes + 1)
        if run[:first].all() and run[first + nodes :].all()
    ]


def _captures(calls: Any, started: U64) -> list[B]:
    """Runs of launches that started nothing, and which of them copy."""
    names = [call_name(int(row["domain"]), int(row["call"])) for row in calls]
    copies, launches = np.isin(names, COPIES), np.isin(names, (*COPIES, *KERNEL_LAUNCHES))
    calls, copies = calls[launches], copies[launches]
    order = np.argsort(calls["start_ns"], kind="stable")
    calls, copies = calls[order], copies[order]
    # The driver's call inside a runtime's shares its id.
    _, first = np.unique(launch_key(calls), return_index=True)
    first.sort()
    calls, copies = calls[first], copies[first]
    used = np.isin(launch_key(calls), started)
    runs = np.split(np.arange(len(calls)), np.flatnonzero(np.diff(used.astype(np.int8))) + 1)
    return [copies[run] for run in runs if len(run) and not used[run[0]]]


def _launch_of(nodes: Any, calls: Any) -> Any:
    """The row of the call that launched each kernel, -1: none."""
    order = np.argsort(launch_key(calls), kind="stable")
    keys = launch_key(calls)[order]
    at = np.minimum(np.searchsorted(keys, launch_key(nodes)), max(len(keys) - 1, 0))
    return np.where(keys[at] == launch_key(nodes), order[at], -1)


def _step_of(calls: Any, steps: Any) -> Any:
    """The whole step of its own thread in which each call lies, -1: none."""
    out = np.full(len(calls), -1, np.int64)
    for thread in np.unique(steps["thread_id"]):
        own = np.flatnonzero(steps["thread_id"] == thread)
        mine = np.flatnonzero(calls["thread_id"] == thread)
        start = calls["start_ns"][mine]
        at = np.searchsorted(steps["start_ns"][own], start, side="right") - 1
        inside = (at >= 0) & (start <= steps["end_ns"][own][np.maximum(at, 0)])
        out[mine[inside]] = own[at[inside]]
    return out
