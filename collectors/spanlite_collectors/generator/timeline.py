"""When everything in a chunk of steps happens: one array for each thing, all steps at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spanlite_collectors.generator.template import Template

Ints = npt.NDArray[np.int64]
#: Jitter is drawn from a table of this many quantiles: a table look-up costs a tenth of
#: a draw from the distribution.
_TABLE = 4096
#: From a launch call's start to the earliest start of what it launched.
_LATENCY_NS = 4_500
_GRAPH_LATENCY_NS = 14_000
#: Between two operations that follow each other on a stream.
_GAP_NS = 900
_GRAPH_GAP_NS = 1_100
#: From a range's edge to that of the range or call inside it.
_RANGE_EDGE_NS = 190
_SYNC_RETURN_NS = 4_200
_STEP_END_NS = 21_000


class Chunk(NamedTuple):
    """What differs between the steps of a chunk; arrays of shape (steps,)."""

    earliest_ns: Ints
    batch: Ints
    scale: npt.NDArray[np.float64]
    slow: npt.NDArray[np.float64]


class Jitter:
    """Log-normal factors around 1, drawn by table look-up."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        normal = np.sort(rng.standard_normal(_TABLE))
        self._tables = {
            sigma: np.exp(sigma * normal).astype(np.float32) for sigma in (0.02, 0.1, 0.2)
        }

    def __call__(self, sigma: float, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Factors of the given shape, for sigma 0.02, 0.1 or 0.2."""
        index = self._rng.integers(0, _TABLE, size=shape, dtype=np.uint16)
        return np.take(self._tables[sigma], index)


def follow(ready: Ints, busy: Ints) -> Ints:
    """Start of each of a queue of things, along the last axis.

    Each starts once it is `ready` and the one before, which takes `busy`, is done.
    """
    before: Ints = np.cumsum(busy, axis=-1) - busy
    return np.maximum.accumulate(ready - before, axis=-1) + before


def _ticks(values: npt.NDArray[Any], tick: int) -> Ints:
    ticks: Ints = values.astype(np.int64) // tick
    return np.maximum(ticks, 1) * tick


def step_times(
    template: Template, chunk: Chunk, jitter: Jitter, tick: int
) -> tuple[Ints, Ints, Ints]:
    """Starts and durations of all rows, shape (steps, rows), and each step's start.

    Starts are relative to their step. Device times are multiples of `tick` if the step's
    start is.
    """
    steps, devices = len(chunk.batch), len(template.op_row)
    start = np.empty((steps, template.rows), dtype=np.int64)
    duration = np.empty_like(start)
    call_start, call_ns = _calls(template, (steps, devices, template.calls), jitter)
    op_start, op_ns = _operations(template, chunk, call_start, jitter, tick)
    done = (op_start + op_ns).max(axis=-1)
    # The last call waits for the device.
    call_ns[..., -1] = np.maximum(done + _SYNC_RETURN_NS - call_start[..., -1], 1_000)
    start[:, template.op_row], duration[:, template.op_row] = op_start, op_ns
    start[:, template.call_row], duration[:, template.call_row] = call_start, call_ns
    _ranges(template, call_start, call_ns, start, duration)
    start[:, 0] = 0
    duration[:, 0] = (call_start[..., -1] + call_ns[..., -1]).max(axis=-1) + _STEP_END_NS
    scheduler = (60_000 * jitter(0.2, (steps,))).astype(np.int64)
    busy = _ticks(duration[:, 0] + scheduler, tick)
    return start, duration, follow(_ticks(chunk.earliest_ns + tick - 1, tick), busy)


def _calls(template: Template, shape: tuple[int, ...], jitter: Jitter) -> tuple[Ints, Ints]:
    gaps = (template.call_gap_ns * jitter(0.1, shape)).astype(np.int64)
    duration = (template.call_ns * jitter(0.2, shape)).astype(np.int64)
    ends = np.cumsum(gaps + duration, axis=-1)
    return ends - duration, duration


def _operations(
    template: Template, chunk: Chunk, call_start: Ints, jitter: Jitter, tick: int
) -> tuple[Ints, Ints]:
    steps, devices = call_start.shape[:2]
    nominal = template.op_ns + template.op_per_request_ns * chunk.batch[:, None]
    factor = np.where(template.op_slow, chunk.slow[:, None], 1.0) * chunk.scale[:, None]
    shape = (steps, devices, len(template.op_ns))
    duration = _ticks((nominal * factor)[:, None, :] * jitter(0.02, shape), tick)
    latency = _GRAPH_LATENCY_NS if template.graph else _LATENCY_NS
    ready = call_start[..., template.op_call] + (latency * jitter(0.1, shape)).astype(np.int64)
    main = np.flatnonzero(template.op_main)
    gap = (_GRAPH_GAP_NS if template.graph else _GAP_NS) * jitter(0.1, (*shape[:2], len(main)))
    start = np.empty(shape, dtype=np.int64)
    main_start = follow(_ticks(ready[..., main], tick), duration[..., main] + _ticks(gap, tick))
    start[..., main] = main_start
    side = np.flatnonzero(~template.op_main)
    if len(side):
        # A side stream's operation runs beside the next one of the main stream.
        beside = np.minimum(np.searchsorted(main, side), len(main) - 1)
        start[..., side] = main_start[..., beside] + 5 * tick
    return start, duration


def _ranges(
    template: Template, call_start: Ints, call_ns: Ints, start: Ints, duration: Ints
) -> None:
    height = template.range_depth.max() + 1 - template.range_depth
    first = call_start[..., template.range_first] - height * _RANGE_EDGE_NS
    last = (call_start + call_ns)[..., template.range_last] + height * _RANGE_EDGE_NS
    start[:, template.range_row], duration[:, template.range_row] = first, last - first
