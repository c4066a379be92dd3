"""The twelve faults by the name of the cause that the report must name first."""

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
