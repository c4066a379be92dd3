"""Which recordings are made: twelve faults, each twice, and healthy runs. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: The twelve faults by the name of the cause that the report must name first.
FAULTS = (
    "slow_kernel",
    "clock_throttled",
    "stray_sync",
    "serialised_streams",
    "copy_engine",
    "launch_starvation",
    "fragmented_batch",
    "bank_conflicts",
    "register_spill",
    "gemm_regression",
    "noisy_neighbour",
    "long_tail_request",
)
STRENGTHS = ("strong", "weak")
BATCH = 1024


@dataclass(frozen=True)
class Seeded:
    """What differs in the second half: options of the steps, and what goes on around them."""

    options: dict[str, Any] = field(default_factory=dict)
    burn_ms: int = 0  # of full load by another process before each step
    busy_thread_us: int = 0  # a thread that wants the interpreter, taking turns of so long
    neighbour_pct: int = 0  # share of time in which another process works
    long_context: int = 0  # tokens of one request that comes in
    batch: int = BATCH
    seed: int = 1


#: FAULT.STRENGTH -> how it is seeded.
RECORDINGS: dict[str, Seeded] = {
    "slow_kernel.strong": Seeded({"rounds": 6}),
    "slow_kernel.weak": Seeded({"rounds": 3}, seed=2),
    "stray_sync.strong": Seeded({"sync": "op"}),
    "stray_sync.weak": Seeded({"sync": "layer"}, seed=2),
    "serialised_streams.strong": Seeded({"streams": "one"}),
    "serialised_streams.weak": Seeded({"streams": "chained"}, seed=2),
    "copy_engine.strong": Seeded({"copies": 12, "copy_mib": 16}),
    "copy_engine.weak": Seeded({"copies": 32, "copy_mib": 4}, seed=2),
    "launch_starvation.strong": Seeded(busy_thread_us=150),
    "launch_starvation.weak": Seeded(busy_thread_us=50, seed=2),
    "fragmented_batch.strong": Seeded({"pieces": 16}),
    "fragmented_batch.weak": Seeded({"pieces": 8}, seed=2),
    "bank_conflicts.strong": Seeded({"transpose": "transpose_conflicts"}),
    "bank_conflicts.weak": Seeded({"transpose": "transpose_some_conflicts"}, seed=2),
    "register_spill.strong": Seeded({"mix": "mix_spilled"}),
    "register_spill.weak": Seeded({"mix": "mix_some_spilled"}, seed=2),
    "gemm_regression.strong": Seeded({"odd_products": 3}),
    "gemm_regression.weak": Seeded({"odd_products": 1}, seed=2),
    "noisy_neighbour.strong": Seeded(neighbour_pct=100),
    "noisy_neighbour.weak": Seeded(neighbour_pct=30, seed=2),
    "long_tail_request.strong": Seeded(long_context=48_000),
    "long_tail_request.weak": Seeded(long_context=20_000, seed=2),
    "healthy.a": Seeded(seed=3),
    "healthy.b": Seeded(batch=768, seed=4),
    "healthy.c": Seeded(batch=512, seed=5),
    "healthy.d": Seeded(seed=6),
    "whatif.half_products": Seeded({"inner": 4096}, seed=7),
    # Last: the GPU is warm then.
    "clock_throttled.weak": Seeded(burn_ms=250, seed=2),
    "clock_throttled.strong": Seeded(burn_ms=500),
}
