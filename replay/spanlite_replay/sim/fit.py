"""Reads the model's numbers off a recording."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind

from spanlite_replay.recording import Recording, factorise
from spanlite_replay.sim.model import (
    Class,
    GpuModel,
    classes,
    company,
    default_model,
    nodes_of,
    room,
    table_devices,
)
from spanlite_replay.sim.waits import waits_until, with_untold_waits
from spanlite_replay.work import EdgeKind, Work

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
#: Fewer samples than this say nothing: the model keeps what it had.
ENOUGH = 3
#: Enough to tell launches that found the device idle from those that queued.
ROUNDS = 5
#: Of log(how many ran): with less, nearly all equal kernels had the same company.
MIN_SPREAD = 0.1
#: Contention beyond this is no contention: k kernels one after the other would be as fast.
MAX_CONTENTION = 1.0


def fit_model(work: Work, rec: Recording, model: GpuModel | None = None) -> GpuModel:
    """`model` (an H200 by default) with launch cost, gaps and contention as recorded.

    What the recording does not show (no launches, no two kernels at once) stays as it was.
    """
    model = default_model() if model is None else model
    work = with_untold_waits(work, rec)
    device, bounds = work.stream_order()
    if not len(device):
        return model
    # From the first start on: a float does not hold Unix time to the ns.
    start = rec.start_ns[work.row]
    start = start - start.min()
    end = start + np.maximum(rec.duration_ns[work.row], 0)
    kinds = classes(work, device)
    waited = waits_until(work, device, bounds, end)
    seen = [
        _launches(work, device[kinds == one], start, end, waited[kinds == one]) for one in Class
    ]
    launch, from_start, gap = zip(
        *(
            (
                *_launch(leads, model.launch_ns[one], model.from_start[one]),
                _gap(gaps, model.gap_ns[one]),
            )
            for one, (leads, gaps) in zip(Class, seen, strict=True)
        ),
        strict=True,
    )
    graphs = seen[Class.GRAPH][0]
    return replace(
        model,
        launch_ns=launch,
        from_start=from_start,
        graph_launch_ns=_by_nodes(work, graphs, from_start[Class.GRAPH]),
        gap_ns=gap,
        sync_ns=_sync(work, start, end, model.sync_ns),
        contention=_contention(work, rec, device, start, end, model),
    )


@dataclass(frozen=True)
class _Leads:
    """Spans that an idle device started as soon as they came, shape (n,)."""

    call: I64
    from_start: F64
    from_end: F64


def _launches(work: Work, device: I64, start: I64, end: I64, waited: F64) -> tuple[_Leads, F64]:
    """(spans that only their launch held back; how long the others started after their wait)."""
    call = work.launched_by[device]
    lead = (start[device] - start[call]).astype(np.float64)
    # The first of a call: further nodes of a graph follow each other.
    can = np.zeros(len(device), dtype=np.bool_)
    order = np.lexsort((start[device], call))
    can[order[np.diff(call[order], prepend=-2) != 0]] = True
    can &= call >= 0
    by_launch = can
    # Whether the launch or what ran before decided when it started: with the lead known better,
    # fewer are taken for the former.
    for _ in range(ROUNDS):
        if not by_launch.any():
            break
        by_launch = can & (start[call] + np.percentile(lead[by_launch], 10) > waited)
    behind = (start[device] - waited)[~by_launch & np.isfinite(waited)]
    at = call[by_launch]
    begins = start[device[by_launch]].astype(np.float64)
    return _Leads(at, begins - start[at], begins - end[at]), behind[behind >= 0]


def _launch(leads: _Leads, otherwise: float, from_start: bool) -> tuple[float, bool]:
    """(lead, whether it counts from the call's start): whichever varies less."""
    if not len(leads.call):
        return otherwise, from_start
    counts_from_start = _spread(leads.from_start) < _spread(leads.from_end)
    chosen = leads.from_start if counts_from_start else leads.from_end
    return float(np.median(chosen)), counts_from_start


def _spread(values: F64) -> float:
    """The mean distance from the median: one launch of a graph may take ten times as long."""
    return float(np.abs(values - np.median(values)).mean())


def _by_nodes(work: Work, leads: _Leads, from_start: bool) -> dict[int, float]:
    """The lead of graphs by their number of nodes: another graph has another lead."""
    nodes = nodes_of(work, leads.call)
    values = leads.from_start if from_start else leads.from_end
    return {
        int(count): float(np.median(values[nodes == count])) for count in np.unique(nodes).tolist()
    }


def _gap(behind: F64, otherwise: float) -> float:
    """The mean, without those that waited for something that was not recorded."""
    if len(behind) < ENOUGH:
        return otherwise
    return float(behind[behind <= 2 * np.median(behind)].mean())


def _sync(work: Work, start: I64, end: I64, otherwise: float) -> float:
    """A waiting call that found everything done."""
    syncs = work.edges.kind == EdgeKind.SYNC
    call, before = work.edges.after[syncs], work.edges.before[syncs]
    idle = call[end[before] <= start[call]]
    return float(np.median((end - start)[idle])) if len(idle) >= ENOUGH else otherwise


def _contention(
    work: Work, rec: Recording, device: I64, start: I64, end: I64, model: GpuModel
) -> float:
    """The slope of log(duration) over log(how many ran), among equal kernels.

    Equal: the same name and the same grid. Where they took up more room than there is, the
    model explains it otherwise, so these are left out.
    """
    kernels = device[(work.kind[device] == SpanKind.KERNEL) & (end[device] > start[device])]
    if len(kernels) < ENOUGH:
        return model.contention
    held = room(rec, work.row[kernels], work.kind[kernels], model)
    alone = np.zeros(len(kernels))
    full = np.zeros(len(kernels), dtype=np.bool_)
    gpu = table_devices(work)[work.stream[kernels]]
    for number in np.unique(gpu):
        mine = np.flatnonzero(gpu == number)
        begin, until = start[kernels[mine]], end[kernels[mine]]
        at, running, held_then = company(begin, until, held[mine])
        alone[mine] = _mean(at, np.log(np.maximum(running, 1)), begin, until)
        full[mine] = _mean(at, np.maximum(held_then - 1, 0), begin, until) > 0
    group, _ = factorise(rec.table, ("name", "grid_x"), work.row[kernels[~full]])
    took = np.log((end - start)[kernels[~full]].astype(np.float64))
    x, y = _centred(alone[~full], group), _centred(took, group)
    spread = float((x * x).sum())
    if spread < MIN_SPREAD:
        return model.contention
    return float(np.clip((x * y).sum() / spread, 0.0, MAX_CONTENTION))


def _mean(at: I64, value: F64, start: I64, end: I64) -> F64:
    """The mean over each interval of a step function with steps `at`."""
    area = np.concatenate(([0.0], np.cumsum(value[:-1] * np.diff(at))))
    whole: F64 = area[np.searchsorted(at, end)] - area[np.searchsorted(at, start)]
    return whole / (end - start)


def _centred(values: F64, group: npt.NDArray[np.int32]) -> F64:
    """Less the mean of its group."""
    if not len(values):
        return values
    return values - (np.bincount(group, values) / np.bincount(group))[group]
