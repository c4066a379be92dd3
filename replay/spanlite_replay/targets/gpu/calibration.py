"""How long stand-ins really take: measured in `prepare`, and turned round.

A kernel that is told to spin for some time takes longer: its blocks start one after the other,
the timer has steps, the measurer adds its own. So each shape is run with a few lengths, and
what to tell it follows from what it took.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from spanlite.errors import ServiceError

from spanlite_replay.targets.gpu.driver import I64, Driver, Launch, Records, StandIn
from spanlite_replay.targets.gpu.schedule import HEAD_NS, Costs
from spanlite_replay.targets.gpu.standins import Shapes

REPEATS = 5
#: What a spin takes beside its length, before it is known.
_GUESS_NS = 1_000
#: Longer ones are not run: beyond it a spin takes its own length more.
_LONGEST_NS = 60_000
#: Gates of the probe are this far apart.
_PROBE_STEP_NS = 20_000
_PROBES = 24
#: Clocks are compared over this, where the plan is long enough for their drift to show.
_DRIFT_NS = 400_000_000
LONG_PLAN_NS = 300_000_000


@dataclass(frozen=True)
class Table:
    """For each shape: told lengths, and the medians of what was measured. (shapes, lengths)."""

    told: I64
    measured_ns: I64

    def length_for(self, shape: int, wanted_ns: int) -> int:
        """What to tell a stand-in so that it takes this long; 0 where it takes longer anyway."""
        told, measured = self.told[shape], self.measured_ns[shape]
        if wanted_ns <= measured[-1]:
            return int(np.interp(wanted_ns, measured, told))
        rise, step = int(measured[-1] - measured[-2]), int(told[-1] - told[-2])
        rate = step / rise if rise > 0 and step > 0 else 1.0
        return int(told[-1] + (wanted_ns - measured[-1]) * rate)

    def floor_ns(self, shape: int) -> int:
        """The shortest that it can be."""
        return int(self.measured_ns[shape, 0])


@dataclass(frozen=True)
class Calibration:
    """What was measured before the replay."""

    table: Table
    costs: Costs


def calibrate(
    driver: Driver,
    shapes: Shapes,
    lengths_ns: I64,
    cycles_per_ns: float,
    is_long: bool = False,
    leaves: bool = False,
) -> Calibration:
    """Run each shape with lengths about those wanted. `lengths_ns`: shape (kernels,).

    `cycles_per_ns`: 1 where lengths are told in ns. `is_long`: compare the clocks too.
    `leaves`: all blocks but the last leave before the kernel's end.
    """
    told = _lengths(shapes, lengths_ns, cycles_per_ns)
    rounds, told_count = REPEATS, told.shape[1]
    order = [
        (shape, column)
        for _ in range(rounds)
        for column in range(told_count)
        for shape in range(len(shapes.launches))
        if shapes.blocks_per_wave[shape] > 0
    ]
    driver.reserve(len(order) + 1, 1)
    measured = np.zeros((len(shapes.launches), told_count), np.int64)
    if order:
        records = _run(driver, shapes, order, told, leaves, cycles_per_ns)
        took = records.end_ns - records.start_ns
        keys = np.array([shape * told_count + column for shape, column in order])
        for key in np.unique(keys).tolist():
            measured[divmod(key, told_count)] = int(np.median(took[keys == key]))
    measured = np.maximum.accumulate(measured, axis=1)
    return Calibration(Table(told, measured), _costs(driver, is_long))


def _lengths(shapes: Shapes, lengths_ns: I64, cycles_per_ns: float) -> I64:
    """Told lengths of each shape, shape (shapes, 5), growing."""
    rows = []
    for shape in range(len(shapes.launches)):
        mine = np.minimum(lengths_ns[shapes.of == shape], _LONGEST_NS)
        wanted = np.percentile(mine, [0, 50, 100]) if len(mine) else np.zeros(3)
        asked = np.maximum(wanted - _GUESS_NS, 0)
        rows.append(np.sort([0, *asked, asked[-1] + 2 * _GUESS_NS]))
    table = np.array(rows).reshape(len(rows), 5)
    # Equal lengths would leave the slope open.
    table += np.arange(5) * 64
    return np.asarray(table * cycles_per_ns, np.int64)


def _run(
    driver: Driver,
    shapes: Shapes,
    order: list[tuple[int, int]],
    told: I64,
    leaves: bool,
    cycles_per_ns: float,
) -> Records:
    """One kernel after the other. Records in that order."""
    graph = driver.new_graph()
    node = driver.add_start(graph, HEAD_NS)
    for number, (shape, column) in enumerate(order):
        length = int(told[shape, column])
        stamp = number if shapes.is_stamped(shape, length) else -1
        hold = max(length // 2, 1) if leaves else 0
        work = shapes.stand_in(shape, length, stamp, hold, cycles_per_ns=cycles_per_ns)
        node = driver.add_stand_in(graph, [node], shapes.launches[shape], work)
    return _measured(driver, graph, len(order) + 1, slice(1, None))


def _costs(driver: Driver, is_long: bool) -> Costs:
    """Gaps between kernels, with and without a gate between."""
    graph = driver.new_graph()
    node = driver.add_start(graph, HEAD_NS)
    launch, work = Launch("wall", block=(128, 1, 1)), StandIn(2_000)
    for probe in range(_PROBES):
        for offset in (HEAD_NS + (probe + 1) * _PROBE_STEP_NS, 0):
            node = driver.add_gate(graph, [node], offset)
            node = driver.add_stand_in(graph, [node], launch, work)
            node = driver.add_stand_in(graph, [node], launch, work)
    first, last = HEAD_NS + _PROBE_STEP_NS, HEAD_NS + _DRIFT_NS
    if is_long:
        driver.add_gate(graph, [node], last)
    seen = _measured(driver, graph, _PROBES * 6 + 1 + int(is_long), slice(1, None))
    rate = 1.0
    if is_long:
        rate = int(seen.end_ns[-1] - seen.end_ns[0]) / (last - first)
    start, end = (
        times[: _PROBES * 6].reshape(_PROBES, 6) for times in (seen.start_ns, seen.end_ns)
    )
    return Costs(
        rate=rate,
        gap_ns=int(np.median(start[:, 2] - end[:, 1])),
        lead_ns=int(np.median(start[:, 1] - end[:, 0])),
        through_ns=int(np.percentile(start[:, 4] - end[:, 2], 90)),
    )


def _measured(driver: Driver, graph: int, nodes: int, which: slice) -> Records:
    ready = driver.instantiate(graph)
    # Once for nothing: what is first is slow.
    for _ in range(2):
        driver.rewind()
        driver.launch(ready)
        seen = driver.finish()
    order = np.argsort(seen.node, kind="stable")
    if len(order) != nodes:
        raise ServiceError(
            f"CUPTI measured {len(order)} of {nodes} calibration kernels: is another profiler "
            "attached to the process?"
        )
    at = order[which]
    return Records(
        seen.graph[at], seen.node[at], seen.start_ns[at], seen.end_ns[at], seen.blocks[at]
    )


def wanted_lengths(wanted_ns: I64, calibration: Calibration, shape: I64) -> npt.NDArray[np.int64]:
    """What to tell each item's stand-in; 0 for copies. Shape (items,)."""
    out = np.zeros(len(shape), np.int64)
    for item in np.flatnonzero(shape >= 0).tolist():
        out[item] = calibration.table.length_for(int(shape[item]), int(wanted_ns[item]))
    return out
