import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spanlite.errors import UsageError
from spanlite.occupancy import KNOWN_GPUS, SM_LIMITS, Limiter, known_gpu, limits_of, occupancy


def test_by_hand_on_hopper() -> None:
    # 128 threads of 255 registers: 8,192 a warp, so two warps a sub-partition, two blocks.
    row = occupancy("9.0", 128, 255).row()
    assert (row["blocks"], row["warps"], row["limiters"]) == (2, 8, "registers")
    # 65,536 registers would do for 2.6 such blocks; sub-partitions leave room for 8 warps.
    row = occupancy("9.0", 96, 200).row()
    assert (row["blocks"], row["registers_per_block"]) == (2, 19_200)
    # 96 KiB and the driver's 1 KiB: two fit into 228 KiB.
    row = occupancy("9.0", 256, 32, 0, 96 * 1024).row()
    assert (row["blocks"], row["shared_per_block_bytes"]) == (2, 97 * 1024)
    assert row["limiters"] == "shared memory"


def test_ties_name_every_limiter() -> None:
    limiters = int(occupancy("9.0", 128, 32).limiters)
    assert Limiter(limiters) == Limiter.WARPS | Limiter.REGISTERS
    assert Limiter(limiters).words == "warps, registers"


def test_small_blocks_are_limited_in_number() -> None:
    for name, blocks in {"7.5": 16, "8.0": 32, "8.6": 16, "8.9": 24, "9.0": 32, "12.0": 24}.items():
        row = occupancy(name, 32, 16).row()
        assert row["blocks"] == blocks
        assert "blocks" in row["limiters"]


def test_barriers_count_from_hopper_on() -> None:
    assert occupancy("9.0", 32, 16, barriers=16).row()["blocks"] == 4
    assert occupancy("8.0", 32, 16, barriers=16).row()["blocks"] == 32


def test_a_launch_that_cannot_run_has_no_blocks() -> None:
    assert not occupancy("9.0", [1025, 1024, 64], [16, 65, 257]).blocks.any()
    assert occupancy("9.0", 64, 16, 0, 227 * 1024).blocks == 1
    assert occupancy("9.0", 64, 16, 0, 227 * 1024 + 1).blocks == 0
    assert occupancy("9.0", 64, 16, 0, 60 * 1024, max_dynamic_shared_bytes=0).blocks == 0


def test_48_kib_need_no_opt_in() -> None:
    dynamic = [40 * 1024, 40 * 1024 + 1]
    got = occupancy("9.0", 64, 16, 8 * 1024, dynamic, max_dynamic_shared_bytes=1024)
    assert got.blocks.tolist() == [4, 0]


def test_carveout_is_rounded_up_to_what_the_sm_offers() -> None:
    got = occupancy("9.0", 64, 16, 0, 15 * 1024, carveout_percent=[0, 10, 20, 50, 100, -1])
    assert (got.carveout_bytes // 1024).tolist() == [16, 32, 64, 132, 228, 228]
    assert got.blocks.tolist() == [1, 2, 4, 8, 14, 14]


def test_the_setting_a_profiler_saw() -> None:
    # `transpose_conflict` on an H200: 4 KiB static, the driver had set the SM to 16 KiB.
    got = occupancy("9.0", 1024, 16, 4096, shared_config_bytes=16 * 1024)
    assert (int(got.blocks_by_shared), int(got.carveout_bytes)) == (3, 16 * 1024)


def test_arguments_broadcast() -> None:
    got = occupancy("8.0", np.array([64, 128, 256])[:, None], np.array([32, 64]))
    assert got.blocks.shape == got.fraction.shape == (3, 2)
    assert got.row((2, 1))["blocks"] == 4


@pytest.mark.parametrize("name", ["9.0", "sm_90", "sm_90a", "SM90", "90", 90, (9, 0)])
def test_names_of_a_compute_capability(name: object) -> None:
    assert limits_of(name).max_warps == 64  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["6.1", "hopper", "", "9", (1, 2)])
def test_unknown_compute_capability(name: object) -> None:
    with pytest.raises(UsageError, match=r"known: 7\.0"):
        limits_of(name)  # type: ignore[arg-type]


def test_values_no_kernel_has() -> None:
    with pytest.raises(UsageError, match="threads_per_block is 0"):
        occupancy("9.0", [32, 0], 16)
    with pytest.raises(UsageError, match="carveout_percent is 101"):
        occupancy("9.0", 32, 16, carveout_percent=101)
    with pytest.raises(UsageError, match="dynamic_shared_bytes is -1"):
        occupancy("9.0", 32, 16, 0, -1)


def test_gpus_by_name() -> None:
    assert all(capability in SM_LIMITS for capability, _ in KNOWN_GPUS.values())
    for name, sms in {
        "NVIDIA A100-SXM4-80GB": 108,
        "NVIDIA L4": 58,
        "NVIDIA H100 PCIe": 114,
    }.items():
        found = known_gpu(name)
        assert found is not None and found[1] == sms
    assert known_gpu("AMD Instinct MI300X") is None


@given(
    capability=st.sampled_from(list(SM_LIMITS)),
    threads=st.integers(1, 1024),
    registers=st.integers(0, 255),
    dynamic=st.integers(0, 230_000),
)
def test_nothing_is_given_twice(
    capability: tuple[int, int], threads: int, registers: int, dynamic: int
) -> None:
    got = occupancy(capability, threads, registers, 0, dynamic)
    sm, blocks = got.sm, int(got.blocks)
    assert blocks * int(got.registers_per_block) <= sm.registers
    assert blocks * int(got.shared_per_block_bytes) <= int(got.carveout_bytes) <= sm.shared_bytes
    assert int(got.warps) <= sm.max_warps and blocks <= sm.max_blocks
    # More of anything never makes room for more blocks.
    more = occupancy(capability, min(threads + 1, 1024), registers + 1, 0, dynamic + 1)
    assert int(more.blocks) <= blocks
