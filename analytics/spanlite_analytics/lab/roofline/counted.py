"""Bytes and FLOPs of a launch as Nsight Compute counted them."""

from __future__ import annotations

from spanlite.errors import InputError

from spanlite_analytics.lab.counters import Counted
from spanlite_analytics.lab.roofline.work import Work

#: Operations by the tensor cores, padding of the tiles included: the metric and the type.
_TENSOR = {
    "sm__ops_path_tensor_src_fp64": "fp64",
    "sm__ops_path_tensor_src_tf32_dst_fp32": "tf32",
    "sm__ops_path_tensor_src_bf16_dst_fp32": "bf16",
    "sm__ops_path_tensor_src_fp16": "fp16",
    "sm__ops_path_tensor_src_fp8_sparsity_off": "fp8",
    "sm__ops_path_tensor_src_fp8_sparsity_on": "fp8",
    "sm__ops_path_tensor_src_int8": "int8",
}
#: Threads that executed such an instruction; half instructions hold two numbers.
_VECTOR = {"f": ("fp32_vector", 1), "d": ("fp64_vector", 1), "h": ("fp16_vector", 2)}
_OPERATIONS = {"add": 1, "mul": 1, "fma": 2}
#: What to ask the profiler for.
METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    *(f"{name}.sum" for name in _TENSOR),
    *(
        f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum"
        for letter in _VECTOR
        for op in _OPERATIONS
    ),
)


def work_counted(row: Counted) -> Work:
    """What the launch did. Raises InputError where DRAM's bytes were not collected.

    The sections of `--set full` hold instructions as a rate a cycle; then the elapsed cycles
    turn them into counts.
    """
    read, write = row.get("dram__bytes_read.sum"), row.get("dram__bytes_write.sum")
    if read is None or write is None:
        raise InputError(
            f"no dram__bytes_read.sum and dram__bytes_write.sum of {row.kernel[:60]}; "
            "profile with --set full, or --metrics " + ",".join(METRICS)
        )
    flops: dict[str, float] = {}
    for name, kind in _TENSOR.items():
        _add(flops, kind, row.get(f"{name}.sum") or 0)
    for letter, (kind, width) in _VECTOR.items():
        for op, count in _OPERATIONS.items():
            name = f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum"
            _add(flops, kind, _instructions(row, name) * count * width)
    return Work(flops, read, write)


def _instructions(row: Counted, name: str) -> float:
    found = row.get(name)
    if found is not None:
        return found
    rate = row.get(f"{name}.per_cycle_elapsed")
    cycles = row.get("smsp__cycles_elapsed.max") or row.get("sm__cycles_elapsed.max")
    return rate * cycles if rate and cycles else 0.0


def _add(flops: dict[str, float], kind: str, count: float) -> None:
    if count:
        flops[kind] = flops.get(kind, 0.0) + count


def uncounted_flops(row: Counted) -> str:
    """Words on FLOPs for which no counter was collected; without them a kernel seems to have none.

    The range profiler counts those of the tensor cores alone.
    """
    stems = [f"smsp__sass_thread_inst_executed_op_{kind}fma_pred_on.sum" for kind in _VECTOR]
    if any(name in row.values for stem in stems for name in (stem, f"{stem}.per_cycle_elapsed")):
        return ""
    tensor = any(f"{name}.sum" in row.values for name in _TENSOR)
    return "(only the tensor cores' FLOPs were counted)" if tensor else "(FLOPs were not counted)"


def time_ns(row: Counted) -> float:
    """Under the profiler. Raises InputError where it was not collected."""
    found = row.get("gpu__time_duration.sum")
    if not found:
        raise InputError(f"no gpu__time_duration.sum of {row.kernel[:60]}")
    return found
