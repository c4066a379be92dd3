"""What the simulator knows of a GPU: a few numbers, and what they mean for each span.

A kernel may start when it has reached the device (its call's start + `launch_ns`), `gap_ns`
after what it waits for, and when an SM has room for a block of it. While `k` kernels run
that hold `D` of the SMs' room together, each takes `max(k ** contention, D)` times as long as
alone. Copies between host and device take turns at one engine for each direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import numpy as np
import numpy.typing as npt
from spanlite.errors import UsageError
from spanlite.kinds import CopyKind, SpanKind
from spanlite.occupancy import KNOWN_GPUS, SmLimits, known_gpu, limits_of, occupancy

from spanlite_replay.recording import Recording, factorise
from spanlite_replay.work import Work

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
#: `open`: calls keep the plan's deadlines. `closed`: each call follows the one before it
#: after the time recorded, so that a faster device is fed sooner.
Host = Literal["open", "closed"]
DEFAULT_GPU = "H200"


class Class(IntEnum):
    """Spans of a device that are launched alike."""

    KERNEL = 0
    COPY = 1  # and memset
    GRAPH = 2  # a node of a CUDA graph, of any kind


@dataclass(frozen=True)
class GpuModel:
    """Times in ns; those of shape (3,) by Class. The defaults are those of an H200."""

    sm: SmLimits
    sm_count: int
    #: From a call's end (its start where `from_start`) to the earliest start on an idle device.
    #: Below 0 where the device starts before the call returns.
    launch_ns: tuple[float, float, float] = (2_500.0, 2_500.0, 5_000.0)
    from_start: tuple[bool, bool, bool] = (False, False, False)
    #: The same for graphs of so many nodes.
    graph_launch_ns: Mapping[int, float] = field(default_factory=dict)
    #: From an end to the start of what waited for it.
    gap_ns: tuple[float, float, float] = (1_000.0, 1_000.0, 384.0)
    #: What a synchronising call takes where there is nothing to wait for.
    sync_ns: float = 1_500.0
    #: 0: kernels side by side do not slow each other down while there is room.
    contention: float = 0.35


def known_model(name: str) -> GpuModel:
    """The model of a GPU by name, not fitted to anything. Raises UsageError."""
    found = known_gpu(name)
    if found is None:
        raise UsageError(f"--gpu '{name}' is not known; these are: {', '.join(KNOWN_GPUS)}")
    return GpuModel(*found)


def default_model() -> GpuModel:
    """An H200."""
    return known_model(DEFAULT_GPU) if known_gpu(DEFAULT_GPU) else GpuModel(limits_of("9.0"), 132)


def launch_lead(
    work: Work, call: I64, cost: F64, kinds: npt.NDArray[np.int8], model: GpuModel
) -> F64:
    """From the start of each span's call to its earliest start, shape of `call`.

    `cost`: how long each call takes, shape (spans,).
    """
    lead = np.asarray(model.launch_ns)[kinds]
    graphs = np.flatnonzero(kinds == Class.GRAPH)
    nodes = nodes_of(work, call)[graphs]
    for count in np.unique(nodes).tolist():
        lead[graphs[nodes == count]] = model.graph_launch_ns.get(count, lead[graphs[0]])
    total: F64 = lead + np.where(np.asarray(model.from_start)[kinds], 0.0, cost[call])
    return total


def nodes_of(work: Work, call: I64) -> I64:
    """How many spans each call launched, shape of `call`."""
    launched = work.launched_by[work.launched_by >= 0]
    counts: I64 = np.bincount(launched, minlength=len(work))
    return counts[call]


def classes(work: Work, device: I64) -> npt.NDArray[np.int8]:
    """Class of each span of `device`, same shape: a call that launches many is a graph's."""
    call = work.launched_by[device]
    of_graph = (call >= 0) & (nodes_of(work, call) > 1)
    kernel = work.kind[device] == SpanKind.KERNEL
    plain = np.where(kernel, Class.KERNEL, Class.COPY)
    return np.where(of_graph, Class.GRAPH, plain).astype(np.int8)


def room(rec: Recording, row: I64, kind: npt.NDArray[np.uint8], model: GpuModel) -> F64:
    """What share of all the SMs' room the blocks of each kernel hold, 0 to 1. Shape of `row`.

    By the occupancy rules. 0 where there is no launch configuration, and for what is no kernel.
    """
    inverse, keys = factorise(rec.table, _LAUNCH, row)
    if not len(row):
        return np.empty(0)
    columns = [keys.column(name).fill_null(0).to_numpy().astype(np.int64) for name in _LAUNCH]
    distinct = np.stack(columns, axis=1)
    threads = distinct[:, 3:6].prod(axis=1)
    blocks = distinct[:, :3].prod(axis=1)
    known = (threads > 0) & (threads <= 1024) & (blocks > 0)
    fit = occupancy(
        model.sm,
        np.where(known, threads, 32),
        np.minimum(distinct[:, 6], 255),
        distinct[:, 7],
        np.minimum(distinct[:, 8], model.sm.shared_per_block_bytes - distinct[:, 7]).clip(0),
    ).blocks
    share = np.minimum(1.0, blocks / (model.sm_count * np.maximum(fit, 1)))
    held: F64 = np.where(known, share, 0.0)[inverse]
    return np.where(kind == SpanKind.KERNEL, held, 0.0)


_LAUNCH = (
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z",
    "registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes",
)  # fmt: skip


def engine(rec: Recording, row: I64, kind: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    """What runs each span: 0 the SMs, 1 nothing that is ever short, 2 and 3 the copy engines."""
    codes, words = rec.dictionary("copy_kind")
    to_device, to_host = CopyKind.HTOD.name.lower(), CopyKind.DTOH.name.lower()
    by_word = np.array([{to_device: 2, to_host: 3}.get(word, 1) for word in words], dtype=np.int8)
    other = by_word[codes[row]] if len(words) else np.ones(len(row), np.int8)
    other = np.where(kind == SpanKind.MEMCPY, other, 1)
    return np.where(kind == SpanKind.KERNEL, 0, other).astype(np.int8)


def slowdown(running: F64, held: F64, model: GpuModel) -> F64:
    """How much longer kernels take while so many run that hold so much room. Shape (n,)."""
    slow: F64 = np.maximum(np.maximum(running, 1.0) ** model.contention, held)
    return slow


def solo_ns(start: I64, end: I64, is_kernel: npt.NDArray[np.bool_], held: F64, model: GpuModel,
            device: npt.NDArray[np.int32]) -> F64:  # fmt: skip
    """How long each span would have taken alone, by the model; same shape.

    The integral of 1 / slowdown over the time it ran. So a rerun with the same company takes
    as long as recorded, whatever the contention.
    """
    out = np.maximum(end - start, 0).astype(np.float64)
    for number in np.unique(device[is_kernel]):
        mine = np.flatnonzero(is_kernel & (device == number))
        out[mine] = _alone(start[mine], np.maximum(end, start)[mine], held[mine], model)
    return out


def _alone(start: I64, end: I64, held: F64, model: GpuModel) -> F64:
    at, running, room_held = company(start, end, held)
    pace = 1.0 / slowdown(running, room_held, model)
    done = np.concatenate(([0.0], np.cumsum(pace[:-1] * np.diff(at))))
    alone: F64 = done[np.searchsorted(at, end)] - done[np.searchsorted(at, start)]
    return alone


def company(start: I64, end: I64, held: F64) -> tuple[I64, F64, F64]:
    """(moments, how many run from then on, what room they hold), each of shape (2n,)."""
    at = np.concatenate((start, end))
    step = np.concatenate((np.ones(len(start)), -np.ones(len(end))))
    order = np.lexsort((step, at))
    running = np.cumsum(step[order])
    room_held = np.cumsum(np.concatenate((held, -held))[order])
    return at[order], running, np.maximum(room_held, 0.0)


def table_devices(work: Work) -> npt.NDArray[np.int32]:
    """Number of the (host, process, device) of each stream, shape (streams,)."""
    keys = work.streams.select(["host", "process_id", "device"])
    rows = keys.to_pylist()
    known: dict[tuple[object, ...], int] = {}
    codes = [known.setdefault(tuple(row.values()), len(known)) for row in rows]
    return np.array(codes, dtype=np.int32)
