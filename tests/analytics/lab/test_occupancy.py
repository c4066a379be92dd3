import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spanlite.occupancy import SM_LIMITS, limits_of
from spanlite_analytics.lab import occupancy as lab
from spanlite_analytics.lab.occupancy import Launch
from spanlite_analytics.lab.toolchain import find_tool, has_tools

HOPPER = limits_of("9.0")
GEMM = ("--block", "384", "--registers", "168", "--shared", "219364", "--cc", "9.0")

launches = st.builds(
    Launch,
    threads=st.integers(1, 1024),
    registers=st.integers(1, 255),
    static_shared_bytes=st.integers(0, 48 * 1024),
    dynamic_shared_bytes=st.sampled_from([0, 1000, 20_000, 50_000, 110_000]),
    barriers=st.integers(0, 16),
)
sms = st.sampled_from(list(SM_LIMITS.values()))


@given(sms, launches, st.integers(1, 33))
def test_needs_are_exactly_what_fits(sm: Any, launch: Launch, blocks: int) -> None:
    most = lab.needs(sm, launch, blocks)
    if not most:
        assert blocks > sm.max_blocks or blocks * launch.warps > sm.max_warps
        return
    at_limit = {
        "registers_per_thread": most["registers"],
        "static_shared_bytes": 0,
        "dynamic_shared_bytes": max(most["shared_bytes"], 0),
        "barriers": most.get("barriers", 1),
    }
    assert int(lab.on(sm, launch, **at_limit).blocks) >= blocks
    # One more of each is too much, unless nothing can have more of it anyway.
    for name, more, ceiling in (
        ("registers_per_thread", most["registers"] + 1, 255),
        ("dynamic_shared_bytes", most["shared_bytes"] + 1, sm.shared_per_block_bytes),
    ):
        if more <= ceiling:
            assert int(lab.on(sm, launch, **(at_limit | {name: more})).blocks) < blocks


@settings(max_examples=30)
@given(sms, launches)
def test_steps_help_and_nothing_nearer_does(sm: Any, launch: Launch) -> None:
    now = int(lab.on(sm, launch).warps)
    for step in lab.steps(sm, launch):
        assert step.warps > now
        if step.what == "registers":
            between = np.arange(step.value + 1, launch.registers + 1)
            assert (lab.on(sm, launch, registers_per_thread=between).warps <= now).all()
    best = lab.best_block_size(sm, launch)
    assert best.warps >= now or launch.threads % 32


@given(sms, launches)
def test_spare_changes_nothing(sm: Any, launch: Launch) -> None:
    now = int(lab.on(sm, launch).blocks)
    room = lab.spare(sm, launch)
    if now and room["shared_bytes"] >= 0:
        more = Launch(
            launch.threads,
            launch.registers + room["registers"],
            launch.static_shared_bytes,
            launch.dynamic_shared_bytes + room["shared_bytes"],
            launch.barriers,
        )
        assert int(lab.on(sm, more).blocks) == now


def test_grid() -> None:
    grid = lab.grid_on(HOPPER, Launch(256, 32, grid_blocks=1584), 132)
    assert grid is not None
    assert (grid.capacity, grid.waves, grid.used_fraction) == (1056, 1.5, 0.75)
    assert grid.first_wave_fraction == 1.0
    assert lab.grid_on(HOPPER, Launch(256, 32), 132) is None
    assert lab.clusters_at_most(HOPPER, Launch(384, 168, cluster_blocks=4), 132) == 33


def test_by_hand(spanlite: Any) -> None:
    code, out, err = spanlite("lab", "occupancy", *GEMM, "--grid", "126", "--sms", "132")
    assert (code, err) == (0, "")
    assert "1 blocks, 12 of 64 warps: occupancy 18.8%, limited by registers, shared memory" in out
    assert "at most 80 registers a thread (now 168)" in out
    assert "at most 115,712 bytes of shared memory (now 219,364)" in out


def test_json(spanlite: Any) -> None:
    code, out, _ = spanlite("lab", "occupancy", *GEMM, "--json")
    (one,) = json.loads(out)
    assert code == 0
    assert one["occupancy"]["blocks"] == 1
    assert one["occupancy"]["limiters"] == "registers, shared memory"
    assert one["one_more_block_needs"]["registers"] == 80
    assert one["grid"] is None


def test_a_full_sm_needs_no_advice(spanlite: Any) -> None:
    code, out, _ = spanlite(
        "lab", "occupancy", "--block", "256", "--registers", "32", "--gpu", "A100"
    )
    assert code == 0
    assert "no change can add a warp" in out
    assert "compute capability 8.0" in out


def test_a_launch_that_fails(spanlite: Any) -> None:
    code, out, _ = spanlite("lab", "occupancy", "--block", "1024", "--registers", "100")
    assert code == 0
    assert "Such a launch fails" in out
    assert "1 blocks an SM need at most 64 registers a thread (now 100)" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--block", "32"), "--registers is missing"),
        (("--block", "0", "--registers", "1"), "not a number or XxYxZ"),
        (("--block", "4x", "--registers", "1"), "not a number or XxYxZ"),
        (("--block", "32", "--registers", "-3"), "registers_per_thread is -3"),
        (("--block", "32", "--registers", "3", "--cc", "6.1"), "no limits are known"),
        ((), "give --block and --registers"),
    ],
)
def test_bad_words(spanlite: Any, words: tuple[str, ...], message: str) -> None:
    code, out, err = spanlite("lab", "occupancy", *words)
    assert (code, out) == (2, "")
    assert message in err


def kernel(number: int, **launch: int) -> dict[str, Any]:
    common = {"grid_x": 64, "grid_y": 2, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
    return {
        "trace_id": f"{number:032x}",
        "span_id": number,
        "start_ns": 1_796_108_400_000_000_000 + number,
        "duration_ns": 1000 * number,
        "name": "flash_fwd" if number < 3 else "copy",
        "resource": '{"gpu.name": "NVIDIA A100-SXM4-80GB"}',
        **common,
        **launch,
    }


def test_from_an_archive(build: Any, spanlite: Any) -> None:
    build.spans(
        kernel(1, registers_per_thread=140, dynamic_shared_bytes=24_576, sampling_weight=3),
        kernel(2, registers_per_thread=140, dynamic_shared_bytes=24_576),
        kernel(3, registers_per_thread=20),
        kernel(4, grid_x=None),
    )
    where = ("--archive", build.root)
    code, out, _ = spanlite("lab", "occupancy", *where, "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["kernel"] for row in rows] == ["flash_fwd", "copy"]
    flash = rows[0]
    assert (flash["launches"], flash["total_ns"]) == (4, 5000)
    assert (flash["compute_capability"], flash["sms"]) == ("8.0", 108)
    assert flash["launch"]["grid_blocks"] == 128
    assert flash["occupancy"]["blocks"] == 3
    code, out, _ = spanlite("lab", "occupancy", *where)
    assert code == 0 and "flash_fwd" in out and "limited by" in out
    code, out, _ = spanlite("lab", "occupancy", *where, "--kernel", "FLASH", "--cc", "9.0")
    assert code == 0 and "compute capability 9.0" in out
    code, out, _ = spanlite("lab", "occupancy", *where, "--kernel", "%")
    assert code == 1 and "no kernel" in out and "the archive holds" not in out


@pytest.mark.parametrize("words", [("occupancy", "--kernel", "flash"), ("explain", "all", "flash")])
def test_a_window_without_kernels_says_where_they_are(
    build: Any, spanlite: Any, words: tuple[str, ...]
) -> None:
    build.spans(
        {"trace_id": "1", "span_id": 1, "name": "flash", "start_ns": 10**18, "duration_ns": 5}
    )
    window = ("--from", 10**18 + 10, "--to", 10**18 + 20)
    code, out, err = spanlite("lab", *words, "--archive", build.root, *window)
    assert code == 1
    assert "the archive holds spans from 2001-09-09T01:46:40" in out + err


def test_from_a_binary(spanlite: Any, tmp_path: Path) -> None:
    if not has_tools("nvcc", "cuobjdump"):
        pytest.skip("the CUDA compiler is not installed (the extra `lab`)")
    (tmp_path / "k.cu").write_text(
        'extern "C" __global__ void turn(float* x) { __shared__ float s[2048];'
        " s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[x[0] > 0]; }"
        'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
    )
    cubin = tmp_path / "k.cubin"
    words = [str(find_tool("nvcc")), "-arch=sm_90", "-cubin", "-o", str(cubin)]
    subprocess.run([*words, str(tmp_path / "k.cu")], check=True)
    where = ("--cubin", cubin, "--block", "256", "--cc", "9.0")
    code, out, _ = spanlite("lab", "occupancy", *where, "--kernel", "turn", "--json")
    (one,) = json.loads(out)
    assert code == 0
    assert (one["kernel"], one["launch"]["static_shared_bytes"]) == ("turn", 8192)
    assert 0 < one["launch"]["registers"] <= 32
    code, _, err = spanlite("lab", "occupancy", *where)
    assert code == 2 and "it names" in err and "twice" in err
