"""`--target gpu`: the plan's device work on a real GPU, measured by CUPTI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spanlite_replay.plan import Plan
from spanlite_replay.targets._observed import check_out, observed_table, write_observed
from spanlite_replay.targets.base import I64, REPLAY_ID_KEY, TARGET_KEY, Outcome
from spanlite_replay.targets.gpu.build import Recipe, build, copies_of
from spanlite_replay.targets.gpu.calibration import LONG_PLAN_NS, calibrate, wanted_lengths
from spanlite_replay.targets.gpu.clocks import Clocks
from spanlite_replay.targets.gpu.driver import Captured, Driver, Records, Spin
from spanlite_replay.targets.gpu.observe import Seen, match
from spanlite_replay.targets.gpu.ops import Coverage, Operators, capture_all
from spanlite_replay.targets.gpu.schedule import HEAD_NS, Order, ends_of, gates_of, order_of
from spanlite_replay.targets.gpu.standins import Shapes, is_kernel, shapes_of
from spanlite_replay.targets.gpu.tuning import Tuning, alone_ns

Mode = Literal["timing", "ops"]
#: So many nodes are queued before the first graph may begin; more could fill the queue, and then a
#: launch waits for what waits for it.
QUEUED_NODES = 4_000


class GpuTarget:
    """Runs the device spans of what it is given; the plan has `work`.

    `driver`: the GPU. `spin`: how stand-ins pass the time. `operators`: for ops mode, in which
    kernels whose operator was recorded with shapes and types run as that operator. `out`: where
    to write what was observed. Arrivals are held on the device, so the host's
    deadlines do not apply.
    """

    name = "gpu"

    def __init__(
        self,
        driver: Driver,
        replay_id: str,
        operators: Operators | None = None,
        spin: Spin = "wall",
        tuning: Tuning | None = None,
        out: Path | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.driver, self.replay_id, self.spin = driver, replay_id, spin
        self.operators, self.tuning = operators, tuning or Tuning()
        self.mode: Mode = "timing" if operators is None else "ops"
        #: Of ops mode; filled by `prepare`.
        self.coverage = Coverage()
        self.out, self.on_progress = check_out(out), on_progress
        self._facts: dict[str, int | str] = {}
        self._next = self._queued = 0

    def prepare(self, plan: Plan, events: I64) -> npt.NDArray[np.bool_]:
        """Calibrate and build the graphs. What runs on no device is unsupported."""
        work = plan.work
        if work is None:
            raise ValueError("a plan for a GPU needs its work: Plan.with_work")
        self._plan = plan
        chosen = np.isin(work.event, events) & work.is_device
        self._order, self._shapes, shape = self._pick(plan, np.flatnonzero(chosen))
        self._clocks = Clocks(self.driver.device.name)
        self._before = self._clocks.read()
        lengths = self._order.length_ns[shape >= 0]
        start = self._order.start_ns
        is_long = len(start) > 0 and int(start[-1] - start[0]) > LONG_PLAN_NS
        self._calibration = calibrate(
            self.driver,
            self._shapes,
            lengths,
            self._cycles_per_ns(),
            is_long,
            self.tuning.held is not None,
        )
        recipe = self._recipe(plan, self._order, shape, self._captured(plan))
        self._recipe_made = recipe
        self._built = build(self.driver, self._order, self._shapes, recipe, self.on_progress)
        self._event = work.event[self._order.position]
        self._last_event = np.maximum.accumulate(self._event) if len(self._order) else self._event
        self.driver.rewind()
        return np.isin(events, np.unique(self._event))

    def _pick(self, plan: Plan, positions: I64) -> tuple[Order, Shapes, I64]:
        """The items that the GPU can run, their shapes, and the shape of each (-1: a copy)."""
        work, rec = plan.work, plan.recording
        assert work is not None
        kernels = positions[is_kernel(work.kind[positions])]
        shapes = shapes_of(rec, work.row[kernels], self.driver.device, self.spin)
        cannot = kernels[~shapes.runs]
        self._refused = len(cannot)
        order = order_of(work, np.setdiff1d(positions, cannot), self.tuning.fewest_items)
        shape = np.full(len(work), -1, np.int64)
        shape[kernels] = shapes.of
        return order, shapes, shape[order.position]

    def _cycles_per_ns(self) -> float:
        if self.spin == "wall":
            return 1.0
        # A first guess; the calibration finds the rest.
        mhz = self._clocks.most_sm_mhz()
        return mhz / 1000 if mhz else 1.0

    def _captured(self, plan: Plan) -> dict[int, Captured]:
        if self.operators is None or plan.work is None:
            return {}
        found, self.coverage = capture_all(plan.work, plan.recording, self._order, self.operators)
        return found

    def _recipe(
        self, plan: Plan, order: Order, shape: I64, captured: dict[int, Captured]
    ) -> Recipe:
        work = plan.work
        assert work is not None
        size, copy = copies_of(plan.recording, work.row[order.position])
        tuning, costs = self.tuning, self._calibration.costs
        return Recipe(
            work.kind[order.position],
            shape,
            wanted_lengths(order.length_ns, self._calibration, shape),
            size,
            copy,
            gates_of(
                order, costs, tuning.patience_ns, tuning.crowd_gap_ns, tuning.copy_patience_ns
            ),
            captured,
            self._holds(plan, shape),
            ends_of(order, costs),
            tuning.steer_ns if self.spin == "wall" else 0,
            self._cycles_per_ns(),
        )

    def _holds(self, plan: Plan, shape: I64) -> I64:
        """What each stand-in is told of how long its blocks hold the SMs; 0: to its end."""
        share, work = self.tuning.held, plan.work
        self._held_ns = self._order.length_ns
        if share is None or work is None or not len(self._order):
            return np.zeros(len(shape), np.int64)
        alone = alone_ns(work, plan.recording, self._order.position)
        more = np.rint(share * (self._order.length_ns - alone)).astype(np.int64)
        self._held_ns = np.maximum(alone + more, 0)
        told = wanted_lengths(self._held_ns, self._calibration, shape)
        return np.where(shape >= 0, np.maximum(told, 1), 0)

    def _fullest_pct(self) -> int:
        """Share of the GPU that stand-ins hold in the fullest stretch of work, over its time."""
        order, shape = self._order, self._recipe_made.shape
        if not len(order) or not len(self._shapes.launches):
            return 0
        held = np.where(shape >= 0, self._shapes.room()[np.maximum(shape, 0)] * self._held_ns, 0)
        first = order.stretches()
        until = np.maximum.reduceat(order.start_ns + order.length_ns, first)
        share = np.add.reduceat(held, first) / np.maximum(until - order.start_ns[first], 1)
        return round(100 * float(share.max()))

    def describe(self) -> list[str]:
        """One line for each shape: the launch, and what it took when told what."""
        table = self._calibration.table
        records = self.records
        return [
            f"graphs {np.unique(records.graph).tolist()}, nodes "
            f"{[hex(one) for one in np.sort(records.node)[[0, 1, -1]].tolist()]}, names "
            f"{[(text, int((records.name == i).sum())) for i, text in enumerate(records.names)]}"
        ] + [
            f"{one.grid} x {one.block} {one.registers} registers "
            f"({self.driver.registers_of(one)} compiled) {one.shared_bytes} bytes, "
            f"{self._shapes.waves[number]} waves: told {table.told[number].tolist()}, "
            f"took {table.measured_ns[number].tolist()}"
            for number, one in enumerate(self._shapes.launches)
        ]

    def launch(self, events: I64) -> None:
        """Queue the graphs whose last event is among these."""
        if not len(events) or not len(self._order):
            return
        reached = int(events[-1])
        while self._next < len(self._built.ready) and (
            self._last_event[self._built.last_item[self._next]] <= reached
        ):
            self._launch_next()

    def _launch_next(self) -> None:
        self._queued += len(self._built.items[self._next])
        if self._next and self._queued > QUEUED_NODES:
            self.driver.go()
        self.driver.launch(self._built.ready[self._next])
        self._next += 1

    def drain(self) -> Outcome:
        """Let everything run, wait for it, and say what was measured."""
        records = self.records = self.driver.finish()
        after = self._clocks.read()
        ran = self._built.items[: self._next]
        seen = match(records, ran, self._recipe_made.gate, self._calibration.costs.rate)
        self._tell(seen, records, after)
        observed = self._table(seen)
        if self.out is not None:
            write_observed(observed, self.out)
            self._facts["observed"] = str(self.out)
        self.driver.close()
        if self.operators is not None:
            self.operators.close()
        return Outcome(facts=self._facts, observed=observed)

    def _table(self, seen: Seen) -> pa.Table:
        order = self._order
        base = int(order.start_ns[0]) - HEAD_NS if len(order) else 0
        told = {
            f"spanlite.{name}".encode(): str(fact).encode() for name, fact in self._facts.items()
        }
        told |= {REPLAY_ID_KEY: self.replay_id.encode(), TARGET_KEY: self.name.encode()}
        at = order.position[seen.item]
        return observed_table(self._plan, at, seen.start_ns + base, seen.end_ns + base, told)

    def _tell(self, seen: Seen, records: Records, after: dict[str, int | str]) -> None:
        order, recipe, costs = self._order, self._recipe_made, self._calibration.costs
        device = self.driver.device
        is_standin = recipe.shape >= 0
        short = sum(
            int(order.length_ns[i]) < self._calibration.table.floor_ns(int(recipe.shape[i]))
            for i in np.flatnonzero(is_standin).tolist()
        )
        self._facts |= {
            "replay_id": self.replay_id,
            "gpu": f"{device.name}, {device.sm_count} SMs, {device.driver}",
            "driver": self._clocks.driver,
            "mode": self.mode,
            "spin": self.spin,
            "work": f"{len(order):,} device spans in {order.graphs} CUDA graphs, "
            f"{int((recipe.gate >= 0).sum()):,} gates",
            "room": f"stand-ins hold {self._fullest_pct()} % of the GPU in the fullest stretch",
            "measured_by": f"CUPTI: {len(records):,} records, {records.dropped} dropped, "
            f"{seen.lost} lost",
            "between_kernels": f"{costs.gap_ns} ns, {costs.through_ns} ns with a gate",
            "gates": f"open within {seen.gate_p99_ns} ns of the deadline (p99)",
        }
        if recipe.steer_ns:
            self._facts["steered"] = f"ends moved by up to {recipe.steer_ns} ns to be in time"
        if costs.rate != 1.0:
            self._facts["clock_rate"] = f"{(costs.rate - 1) * 1e6:+.2f} ppm of CUPTI's clock"
        if self.operators is not None:
            self._facts["coverage"] = str(self.coverage)
            for why, kernels in sorted(self.coverage.why.items()):
                self._facts[f"as stand-ins, {why}"] = kernels
        for name, value in after.items():
            before = self._before.get(name, value)
            self._facts[name] = value if before == value else f"{before} before, {value} after"
        for count, what in (
            (short, "kernels shorter than the shortest stand-in"),
            (self._shapes.without_grid, "kernels without a recorded grid"),
            (self._refused, "kernels that this GPU cannot hold"),
            (order.forced_cuts, "graphs cut where the device was not idle"),
            (order.left_out, "dependencies that lead backwards in time, left out"),
        ):
            if count:
                self._facts[what] = count
