"""`--target sim`: the plan's GPU work on a model of a GPU, in no time and the same each time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spanlite_replay.plan import Plan
from spanlite_replay.sim import GpuModel, Host, Simulated, fit_model, simulate
from spanlite_replay.targets._observed import check_out, observed_table, write_observed
from spanlite_replay.targets.base import I64, REPLAY_ID_KEY, TARGET_KEY, Outcome
from spanlite_replay.work import Work


class SimTarget:
    """Simulates what it is given; the plan has `work`.

    `model`: the GPU; what a recording tells (launch cost, gaps, contention) is fitted to the
    plan's own. `out`: where to write what was observed, as Parquet.
    """

    name = "sim"

    def __init__(self, model: GpuModel, replay_id: str, host: Host, out: Path | None) -> None:
        self.model, self.replay_id, self.host = model, replay_id, host
        self.out = check_out(out)
        self._launched: list[I64] = []

    def prepare(self, plan: Plan, events: I64) -> npt.NDArray[np.bool_]:
        """Fit the model and simulate; every event is supported."""
        work = plan.work
        if work is None:
            raise ValueError("a plan for the simulator needs its work: Plan.with_work")
        self._plan, self._work = plan, work
        self.model = fit_model(work, plan.recording, self.model)
        self._result = simulate(work, plan.recording, self.model, self.host)
        return np.ones(len(events), dtype=np.bool_)

    def launch(self, events: I64) -> None:
        """Note them: the simulation has a clock of its own."""
        self._launched.append(events)

    def drain(self) -> Outcome:
        """What was observed of the events that were launched."""
        launched = np.zeros(len(self._plan), dtype=np.bool_)
        for events in self._launched:
            launched[events] = True
        observed = self._observed(launched[self._work.event])
        if self.out is not None:
            write_observed(observed, self.out)
        return Outcome(facts=self._facts(), observed=observed)

    def _observed(self, spans: npt.NDArray[np.bool_]) -> pa.Table:
        at = np.flatnonzero(spans)
        told = {REPLAY_ID_KEY: self.replay_id.encode(), TARGET_KEY: self.name.encode()}
        return observed_table(
            self._plan, at, self._result.start_ns[at], self._result.end_ns[at], told
        )

    def _facts(self) -> dict[str, int | str]:
        model, work = self.model, self._work
        planned, ran = _makespans(work, self._result)
        capability = ".".join(str(part) for part in model.sm.compute_capability)
        facts: dict[str, int | str] = {
            "replay_id": self.replay_id,
            "gpu": f"{model.sm_count} SMs of compute capability {capability}",
            "deps": work.deps,
            "host": self.host,
            "makespan": f"{ran / 1e6:,.3f} ms on the device, {planned / 1e6:,.3f} ms as planned",
            "contention": f"{model.contention:.3f}",
            "simulated": self._result.events,
        }
        if self._result.given_up:
            facts["given_up"] = f"{self._result.given_up} waits that could never end"
        if self.out is not None:
            facts["observed"] = str(self.out)
        return facts


def _makespans(work: Work, result: Simulated) -> tuple[int, int]:
    """From the first start to the last end on the device: (planned, simulated)."""
    device = work.is_device
    if not device.any():
        return 0, 0
    start, end = work.start_ns[device], (work.start_ns + work.duration_ns)[device]
    first, last = result.start_ns[device].min(), result.end_ns[device].max()
    return int(end.max() - start.min()), int(last - first)
