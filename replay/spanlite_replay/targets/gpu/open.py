"""The gpu target on this machine's GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spanlite_replay.targets.gpu.cuda import CudaDriver, load_driver
from spanlite_replay.targets.gpu.driver import Spin
from spanlite_replay.targets.gpu.target import GpuTarget, Mode
from spanlite_replay.targets.gpu.torchops import TorchOperators
from spanlite_replay.targets.gpu.tuning import Tuning


def check_gpu() -> None:
    """Raises ServiceError where there is no driver or no GPU."""
    load_driver()


def open_target(
    replay_id: str,
    mode: Mode = "timing",
    spin: Spin = "wall",
    out: Path | None = None,
    tuning: Tuning | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> GpuTarget:
    """Raises ServiceError where the GPU, its driver, NVRTC or CUPTI is missing."""
    check_gpu()
    operators = TorchOperators() if mode == "ops" else None
    return GpuTarget(CudaDriver(), replay_id, operators, spin, tuning, out, on_progress)
