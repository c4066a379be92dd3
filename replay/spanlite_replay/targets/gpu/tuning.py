"""How a replay on a GPU keeps to the recorded times where streams share the SMs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from spanlite.kinds import SpanKind

from spanlite_replay.recording import Recording
from spanlite_replay.sim.fit import fit_model
from spanlite_replay.sim.model import room, solo_ns, table_devices
from spanlite_replay.targets.gpu.driver import I64
from spanlite_replay.targets.gpu.schedule import (
    COPY_PATIENCE_NS,
    CROWD_GAP_NS,
    FEWEST_ITEMS,
    PATIENCE_NS,
)
from spanlite_replay.work import Work


@dataclass(frozen=True)
class Tuning:
    """The defaults are what came closest to the recordings under tests/recordings/.

    `held`: how long the blocks of a stand-in hold their SM: 1 as long as was recorded, which
    includes what it waited for SMs beside others; 0 as long as it would have taken alone (by the
    simulator's model); between them, a share, and below 0 less. The last block keeps the recorded
    length.
    `None`: all blocks stay to the kernel's end.
    """

    held: float | None = 0.0
    #: A graph has at least so many items where it can be cut.
    fewest_items: int = FEWEST_ITEMS
    #: Where many streams start kernels: gates for longer waits alone, and the gap without one.
    patience_ns: int = PATIENCE_NS
    crowd_gap_ns: int = CROWD_GAP_NS
    #: How far the end of a stand-in may move to be at its recorded time; 0: lengths are kept.
    steer_ns: int = 0
    #: Copies get gates for longer waits alone.
    copy_patience_ns: int = COPY_PATIENCE_NS


def alone_ns(work: Work, rec: Recording, positions: I64) -> I64:
    """How long each span would have taken alone, by the simulator's model. Shape of `positions`."""
    device = np.flatnonzero(work.is_device)
    row, kind = work.row[device], work.kind[device]
    model = fit_model(work, rec)
    start = rec.start_ns[row]
    start = start - start.min()
    end = start + np.maximum(work.duration_ns[device], 0)
    held = room(rec, row, kind, model)
    gpu = table_devices(work)[work.stream[device]]
    is_kernel = kind == SpanKind.KERNEL
    alone = np.full(len(work), 0, np.int64)
    alone[device] = np.rint(solo_ns(start, end, is_kernel, held, model, gpu))
    return alone[positions]
