"""One engine step as a table: which ranges, calls and device operations it has.

A template is made once for each kind of step (eager, graph). Times in it are nominal;
the timeline module draws the real ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from spanlite.kinds import CopyKind, SpanKind

from spanlite_collectors.generator.config import DecodeConfig
from spanlite_collectors.generator.model import (
    EMBED,
    HEAD,
    NO_LAUNCH,
    STAGES,
    Kernel,
    LaunchConfig,
)

Ints = npt.NDArray[np.int64]

MAIN_STREAM = 7
COPY_STREAM_OFFSET = 100


@dataclass
class _Call:
    name: str
    parent_range: int
    gap_ns: int
    duration_ns: int


@dataclass
class _Range:
    name: str
    parent: int  # index of a range, -1 for the step
    depth: int
    first_call: int
    last_call: int = -1


@dataclass
class _Op:
    kind: SpanKind
    name: str
    call: int
    base_ns: int
    per_request_ns: int
    stream: int
    launch: LaunchConfig = NO_LAUNCH
    node: int = 0
    bytes: int = 0
    copy_kind: CopyKind = CopyKind.UNSPECIFIED
    slow_prone: bool = False


@dataclass
class _Step:
    """The step of one device, in the order in which its thread issues it."""

    ranges: list[_Range] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    ops: list[_Op] = field(default_factory=list)
    open: list[int] = field(default_factory=list)

    def push(self, name: str) -> None:
        parent = self.open[-1] if self.open else -1
        self.ranges.append(_Range(name, parent, len(self.open), len(self.calls)))
        self.open.append(len(self.ranges) - 1)

    def pop(self) -> None:
        self.ranges[self.open.pop()].last_call = len(self.calls) - 1

    def call(self, name: str, gap_ns: int, duration_ns: int) -> int:
        self.calls.append(_Call(name, self.open[-1], gap_ns, duration_ns))
        return len(self.calls) - 1

    def launch(self, kernel: Kernel, stream: int, call: int, node: int = 0) -> None:
        self.ops.append(
            _Op(
                SpanKind.KERNEL,
                kernel.name,
                call,
                kernel.base_ns,
                kernel.per_request_ns,
                stream,
                kernel.launch,
                node,
                slow_prone="splitkv_kernel" in kernel.name,
            )
        )

    def copy(self, kind: CopyKind, size: int, stream: int) -> None:
        call = self.call("cudaMemcpyAsync", 2_400, 5_200)
        word = "HtoD" if kind is CopyKind.HTOD else "DtoH"
        self.ops.append(
            _Op(
                SpanKind.MEMCPY,
                f"Memcpy {word} (Pinned)",
                call,
                1_300,
                6,
                stream,
                bytes=size,
                copy_kind=kind,
            )
        )


def _model(config: DecodeConfig) -> list[tuple[str, str, Kernel]]:
    layers = [
        (f"layer {i}", stage, kernel)
        for i in range(config.layers)
        for stage, kernels in STAGES.items()
        for kernel in kernels
    ]
    return [("embed", "", EMBED), *layers, *(("head", "", kernel) for kernel in HEAD)]


def _prepare(step: _Step) -> None:
    step.push("prepare_inputs")
    for size in (512, 512, 4_096):
        step.copy(CopyKind.HTOD, size, MAIN_STREAM)
    step.call("cudaMemsetAsync", 1_900, 3_100)
    step.ops.append(
        _Op(
            SpanKind.MEMSET,
            "Memset (Device)",
            len(step.calls) - 1,
            1_100,
            2,
            MAIN_STREAM,
            bytes=2_048,
        )
    )
    step.pop()


def _finish(step: _Step) -> None:
    step.push("sample")
    step.copy(CopyKind.DTOH, 256, MAIN_STREAM + COPY_STREAM_OFFSET)
    step.call("cudaStreamSynchronize", 1_500, 0)
    step.pop()


def _side_stream(config: DecodeConfig, index: int) -> int:
    return MAIN_STREAM if config.streams == 1 else MAIN_STREAM + 1 + index % (config.streams - 1)


def _eager(config: DecodeConfig) -> _Step:
    step = _Step()
    _prepare(step)
    step.push("forward")
    previous = ("", "")
    for layer, stage, kernel in _model(config):
        if layer != previous[0]:
            while len(step.open) > 1:
                step.pop()
            step.push(layer)
        elif stage != previous[1]:
            step.pop()
        if stage and (layer, stage) != previous:
            step.push(stage)
        previous = (layer, stage)
        stream = _side_stream(config, len(step.ops)) if kernel.side else MAIN_STREAM
        step.launch(kernel, stream, step.call("cudaLaunchKernel", 2_600, 3_700))
    while step.open:
        step.pop()
    _finish(step)
    return step


def _graph(config: DecodeConfig) -> _Step:
    step = _Step()
    _prepare(step)
    step.push("graph_replay")
    call = step.call("cudaGraphLaunch", 4_000, 38_000)
    for node, (_, _, kernel) in enumerate(_model(config), 1):
        stream = _side_stream(config, node) if kernel.side else MAIN_STREAM
        step.launch(kernel, stream, call, node)
    step.pop()
    _finish(step)
    return step


@dataclass(frozen=True)
class Template:
    """A step's rows in track order: step, ranges, calls, then device operations by stream.

    Arrays over rows have shape (rows,); over calls, ranges and operations their own
    number. `*_row` says in which row each of those lands.
    """

    graph: bool
    rows: int
    track: Ints  # of each row, ascending
    track_edges: Ints  # first row of each track, and `rows`
    name: npt.NDArray[np.int32]  # index into names
    names: tuple[str, ...]
    kind: npt.NDArray[np.uint8]
    parent_row: Ints  # -1: none
    device: npt.NDArray[np.int32]  # relative to the process's first, -1: none
    stream: Ints
    thread: Ints  # relative to the process's first, -1: none
    correlation: Ints  # relative to the step's first, -1: none
    node: npt.NDArray[np.uint64]
    launch: npt.NDArray[np.uint32]  # (rows, 12)
    bytes: npt.NDArray[np.uint64]
    copy_kind: npt.NDArray[np.uint8]
    calls: int  # of one device
    call_gap_ns: Ints
    call_ns: Ints
    call_row: Ints  # (devices, calls)
    range_row: Ints  # (devices, ranges)
    range_first: Ints
    range_last: Ints
    range_depth: Ints
    op_row: Ints  # (devices, operations), in issue order
    op_call: Ints
    op_ns: Ints
    op_per_request_ns: Ints
    op_slow: npt.NDArray[np.bool_]
    op_main: npt.NDArray[np.bool_]  # on the main stream, one after another


def make_template(config: DecodeConfig, graph: bool) -> Template:
    """Lay out one step for all devices of a process."""
    step = _graph(config) if graph else _eager(config)
    return _lay_out(step, config.devices, graph)


def _lay_out(step: _Step, devices: int, graph: bool) -> Template:
    ranges, calls, ops = step.ranges, step.calls, step.ops
    by_stream = sorted(range(len(ops)), key=lambda i: (ops[i].stream, i))
    range_row = 1 + np.arange(devices * len(ranges)).reshape(devices, -1)
    call_row = range_row[-1, -1] + 1 + np.arange(devices * len(calls)).reshape(devices, -1)
    op_row = np.empty((devices, len(ops)), dtype=np.int64)
    op_row[:, by_stream] = call_row[-1, -1] + 1 + np.arange(devices * len(ops)).reshape(devices, -1)
    rows = int(op_row.max()) + 1

    def spread(dtype: Any, default: int, on_range: Any, on_call: Any, on_op: Any) -> Any:
        out: npt.NDArray[Any] = np.full(rows, default, dtype=dtype)
        for where, value in ((range_row, on_range), (call_row, on_call), (op_row, on_op)):
            if value is not None:
                out[where] = value
        return out

    names = tuple(
        dict.fromkeys(
            [
                "engine step",
                *(r.name for r in ranges),
                *(c.name for c in calls),
                *(o.name for o in ops),
            ]
        )
    )
    number = {name: i for i, name in enumerate(names)}
    each = np.arange(devices)[:, None]
    correlation = each * len(calls) + np.arange(len(calls))
    op_call = np.array([o.call for o in ops])
    parents = np.full(rows, 0, dtype=np.int64)
    parents[0] = -1
    up = np.array([r.parent for r in ranges])
    parents[range_row] = np.where(up < 0, 0, range_row[:, up])
    parents[call_row] = range_row[:, [c.parent_range for c in calls]]
    parents[op_row] = call_row[:, op_call]
    launch = np.zeros((rows, 12), dtype=np.uint32)
    launch[op_row] = np.array([o.launch for o in ops], dtype=np.uint32)
    streams = [o.stream for o in ops]
    track = spread(
        np.int64,
        0,
        1 + each,
        1 + devices + each,
        1 + 2 * devices + each * 1_000 + np.array(streams),
    )
    main = np.array([o.stream in (MAIN_STREAM, MAIN_STREAM + COPY_STREAM_OFFSET) for o in ops])
    return Template(
        graph=graph,
        rows=rows,
        track=track,
        track_edges=np.append(np.flatnonzero(np.append(1, np.diff(track))), rows),
        names=names,
        name=spread(
            np.int32,
            0,
            [number[r.name] for r in ranges],
            [number[c.name] for c in calls],
            [number[o.name] for o in ops],
        ),
        kind=spread(
            np.uint8,
            SpanKind.STEP,
            SpanKind.NVTX_RANGE,
            SpanKind.RUNTIME_CALL,
            [o.kind for o in ops],
        ),
        parent_row=parents,
        device=spread(np.int32, -1, None, None, each),
        stream=spread(np.int64, -1, None, None, streams),
        thread=spread(np.int64, 0, each, each, -1),
        correlation=spread(np.int64, -1, None, correlation, correlation[:, op_call]),
        node=spread(np.uint64, 0, None, None, [o.node for o in ops]),
        launch=launch,
        bytes=spread(np.uint64, 0, None, None, [o.bytes for o in ops]),
        copy_kind=spread(np.uint8, 0, None, None, [o.copy_kind for o in ops]),
        calls=len(calls),
        call_gap_ns=np.array([c.gap_ns for c in calls]),
        call_ns=np.array([c.duration_ns for c in calls]),
        call_row=call_row,
        range_row=range_row,
        range_first=np.array([r.first_call for r in ranges]),
        range_last=np.array([r.last_call for r in ranges]),
        range_depth=np.array([r.depth for r in ranges]),
        op_row=op_row,
        op_call=op_call,
        op_ns=np.array([o.base_ns for o in ops]),
        op_per_request_ns=np.array([o.per_request_ns for o in ops]),
        op_slow=np.array([o.slow_prone for o in ops]),
        op_main=main,
    )
