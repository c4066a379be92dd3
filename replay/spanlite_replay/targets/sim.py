"""`--target sim`: the plan's GPU work on a model of a GPU, in no time and the same each time."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from spanlite.errors import UsageError

from spanlite_replay.plan import Plan
from spanlite_replay.sim import GpuModel, Host, Simulated, fit_model, simulate
from spanlite_replay.targets.base import (
    I64,
    OBSERVED_SCHEMA,
    PLAN_DIGEST_KEY,
    REPLAY_ID_KEY,
    TARGET_KEY,
    Outcome,
)
from spanlite_replay.work import Work


class SimTarget:
    """Simulates what it is given; the plan has `work`.

    `model`: the GPU; what a recording tells (launch cost, gaps, contention) is fitted to the
    plan's own. `out`: where to write what was observed, as Parquet.
    """

    name = "sim"

    def __init__(self, model: GpuModel, replay_id: str, host: Host, out: Path | None) -> None:
        if out is not None and out.suffix != ".parquet":
            raise UsageError(f"--out '{out}' must end in .parquet")
        self.model, self.replay_id, self.host, self.out = model, replay_id, host, out
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
            _write(observed, self.out)
        return Outcome(facts=self._facts(), observed=observed)

    def _observed(self, spans: npt.NDArray[np.bool_]) -> pa.Table:
        plan, work, rec = self._plan, self._work, self._plan.recording
        at = np.flatnonzero(spans)
        at = at[np.argsort(self._result.start_ns[at], kind="stable")]
        row = work.row[at]
        length = work.duration_ns[at]
        if plan.settings.unit == "span":
            length = plan.duration_ns[work.event[at]]
        columns = [
            rec.trace_low[rec.trace[row]],
            rec.trace_high[rec.trace[row]],
            rec.span_id[row],
            work.start_ns[at],
            work.start_ns[at] + length,
            self._result.start_ns[at],
            self._result.end_ns[at],
        ]
        metadata = {
            REPLAY_ID_KEY: self.replay_id.encode(),
            TARGET_KEY: self.name.encode(),
            PLAN_DIGEST_KEY: plan.digest().encode(),
        }
        schema = OBSERVED_SCHEMA.with_metadata(metadata)
        return pa.Table.from_arrays([pa.array(column) for column in columns], schema=schema)

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


def _write(observed: pa.Table, out: Path) -> None:
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        pq.write_table(observed, draft, compression="zstd")
        draft.replace(out)
    except OSError as error:
        raise UsageError(f"--out '{out}' cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
