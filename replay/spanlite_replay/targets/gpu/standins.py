"""Which kernel of our own stands in for a recorded one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from spanlite.kinds import SpanKind
from spanlite.occupancy import limits_of, occupancy

from spanlite_replay.recording import Recording
from spanlite_replay.targets.gpu.driver import I64, Device, Dim, Launch, Spin, StandIn
from spanlite_replay.targets.gpu.source import register_class

_GEOMETRY = (
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z",
    "cluster_x", "cluster_y", "cluster_z", "registers_per_thread",
)  # fmt: skip
#: From this on the blocks of a kernel count from the start of its first one, which they ask
#: memory for: shorter kernels would wait for the answer.
STAMPED_NS = 3_000
_WARP = 32


@dataclass(frozen=True)
class Shapes:
    """The distinct launches among kernels. Arrays: (kernels,) for `of`, else (shapes,)."""

    of: I64  # index into the rest
    launches: list[Launch]
    blocks_per_wave: I64  # 0: the GPU can never run one
    waves: I64
    moved_bytes: I64
    #: Kernels whose grid was not recorded: a single block stands in for them.
    without_grid: int

    @property
    def runs(self) -> npt.NDArray[np.bool_]:
        """Which kernels the GPU can run. Shape (kernels,)."""
        return self.blocks_per_wave[self.of] > 0

    def room(self) -> npt.NDArray[np.float64]:
        """Share of the GPU that a launch of each shape holds, 1 at most. Shape (shapes,)."""
        blocks = np.array([int(np.prod(one.grid)) for one in self.launches], np.float64)
        share: npt.NDArray[np.float64] = np.minimum(blocks / np.maximum(self.blocks_per_wave, 1), 1)
        return share

    def stand_in(
        self,
        shape: int,
        length: int,
        stamp: int,
        hold: int = 0,
        due_ns: int = 0,
        steer_ns: int = 0,
        cycles_per_ns: float = 1.0,
    ) -> StandIn:
        """What the kernel is told; `stamp` is its own place for the start, -1 for none.

        `hold`: for how long its blocks hold the SMs, all waves together; 0: all to its end.
        """
        waves = int(self.waves[shape])
        share = hold // max(waves, 1)
        return StandIn(
            length,
            stamp,
            int(self.blocks_per_wave[shape]),
            waves,
            int(self.moved_bytes[shape]),
            max(share, 1) if hold > 0 else 0,
            due_ns,
            steer_ns,
            cycles_per_ns,
        )

    def is_stamped(self, shape: int, length_ns: int) -> bool:
        """Whether its blocks count from the start of the first one."""
        x, y, z = self.launches[shape].grid
        return x * y * z > 1 and (length_ns >= STAMPED_NS or bool(self.waves[shape] > 1))


def shapes_of(rec: Recording, rows: I64, device: Device, spin: Spin) -> Shapes:
    """Of the kernels at these rows of the recording."""
    columns = [rec.integers(name, rows, 0) for name in _GEOMETRY]
    shared = rec.integers("static_shared_bytes", rows, 0)
    shared = shared + rec.integers("dynamic_shared_bytes", rows, 0)
    moved = np.maximum(rec.integers("bytes", rows, 0), 0)
    without = rec.is_null("grid_x", rows)
    table = np.stack([*columns, shared, moved], axis=1)
    distinct, of = np.unique(table, axis=0, return_inverse=True)
    launches = [_launch(row, spin) for row in distinct.tolist()]
    per_wave, waves = _waves(launches, device)
    return Shapes(of.reshape(-1), launches, per_wave, waves, distinct[:, -1], int(without.sum()))


def _launch(row: list[int], spin: Spin) -> Launch:
    def dim(first: int) -> Dim:
        x, y, z = (max(value, 1) for value in row[first : first + 3])
        return x, y, z

    grid, block = dim(0), dim(3)
    if row[3] == 0:
        block = (_WARP, 1, 1)
    cluster = dim(6) if any(row[6:9]) else (0, 0, 0)
    return Launch(spin, grid, block, cluster, row[10], register_class(row[9]))


def _waves(launches: list[Launch], device: Device) -> tuple[I64, I64]:
    """(blocks that the GPU holds at once, rounds that it takes), shape (launches,) each."""
    if not launches:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    sm = limits_of(device.compute_capability)
    blocks = np.array([int(np.prod(one.grid)) for one in launches])
    held = occupancy(
        sm,
        [int(np.prod(one.block)) for one in launches],
        [one.registers for one in launches],
        0,
        [one.shared_bytes for one in launches],
    ).blocks
    per_wave = np.asarray(held, np.int64) * device.sm_count
    return per_wave, -(-blocks // np.maximum(per_wave, 1))


def is_kernel(kind: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which device spans a stand-in runs for; the others are copies and memsets."""
    memory = np.isin(kind, [SpanKind.MEMCPY, SpanKind.MEMSET])
    return np.asarray(~memory, np.bool_)
