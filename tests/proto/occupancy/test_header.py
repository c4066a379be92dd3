"""The rules against NVIDIA's own header, for every compute capability, limit by limit."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from spanlite.occupancy import SM_LIMITS, Limiter, SmLimits, occupancy

ROOT = Path(__file__).parents[3]
ROWS = 20_000


def newest_headers() -> tuple[int, Path] | None:
    """CUDA_VERSION and folder of the newest headers among our environments."""
    found = []
    for header in ROOT.glob(".venv*/lib/python3*/site-packages/nvidia/*/include/cuda.h"):
        version = re.search(r"#define CUDA_VERSION (\d+)", header.read_text())
        if version and header.with_name("cuda_occupancy.h").exists():
            found.append((int(version[1]), header.parent))
    return max(found, default=None)


@pytest.fixture(scope="module")
def header_program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    headers, compiler = newest_headers(), shutil.which("g++")
    if headers is None or compiler is None:
        pytest.skip("needs g++ and CUDA's headers (`make agent` brings them)")
    program = tmp_path_factory.mktemp("header") / "header"
    source = Path(__file__).with_name("header.cpp")
    subprocess.run(
        [compiler, "-O1", "-w", f"-I{headers[1]}", str(source), "-o", str(program)], check=True
    )
    return program, headers[0]


def configurations(sm: SmLimits, seed: int) -> np.ndarray:
    """Legal and illegal launches, many of them near an edge: columns as `occupancy` takes them."""
    draw = np.random.default_rng(seed)
    most = sm.shared_bytes
    edges = np.array([*sm.carveouts_bytes, 48 * 1024, sm.shared_per_block_bytes])

    def sizes(n: int) -> np.ndarray:
        near = draw.choice(edges, n) // draw.integers(1, 9, n) + draw.integers(-1200, 1200, n)
        return np.clip(np.where(draw.random(n) < 0.5, near, draw.integers(0, most, n)), 0, most)

    static = np.where(draw.random(ROWS) < 0.5, 0, draw.integers(0, 48 * 1024 + 1, ROWS))
    # Together no more than the SM has: beyond it NVIDIA's header answers with an error.
    dynamic = np.minimum(sizes(ROWS), most - static - sm.reserved_shared_bytes)
    dynamic = np.where(draw.random(ROWS) < 0.3, 0, np.maximum(dynamic, 0))
    opt_in = np.where(draw.random(ROWS) < 0.7, dynamic, sizes(ROWS))
    carveout = np.where(draw.random(ROWS) < 0.5, -1, draw.integers(0, 101, ROWS))
    return np.stack(
        [
            draw.integers(1, 1100, ROWS),
            draw.integers(0, 258, ROWS),
            static,
            dynamic,
            carveout,
            draw.integers(0, 17, ROWS),
            opt_in,
        ]
    )


def ask(program: Path, sm: SmLimits, rows: np.ndarray) -> np.ndarray:
    """The header's answers, a column for each of ours."""
    device = [*sm.compute_capability, sm.max_warps, sm.shared_bytes, sm.reserved_shared_bytes]
    devices = np.tile(np.array([device]).T, rows.shape[1])
    table = np.concatenate([devices, rows]).T.astype(np.int32)
    done = subprocess.run([str(program)], input=table.tobytes(), capture_output=True, check=True)
    header = np.frombuffer(done.stdout, np.int32).reshape(-1, 8).T
    assert not header[0].any()
    return header


@pytest.mark.parametrize("sm", SM_LIMITS.values(), ids=lambda sm: sm.name)
def test_same_as_the_header(sm: SmLimits, header_program: tuple[Path, int]) -> None:
    program, version = header_program
    rows = configurations(sm, seed=sum(sm.compute_capability))
    # The API takes no heed of an opt-in below 48 KiB, the header does; see the test below.
    rows[6] = np.where(rows[2] + rows[3] <= 48 * 1024, np.maximum(rows[6], rows[3]), rows[6])
    # The headers of 13.0 have another number of barriers for 10.3; 13.4 mended it.
    old_barriers = sm.compute_capability == (10, 3) and version < 13_040
    if old_barriers:
        rows[5] = np.minimum(rows[5], 1)
    threads, registers, static, dynamic, carveout, barriers, opt_in = rows
    header = ask(program, sm, rows)
    ours = occupancy(
        sm,
        threads,
        registers,
        static,
        dynamic,
        carveout_percent=carveout,
        barriers=barriers,
        max_dynamic_shared_bytes=opt_in,
    )
    columns = {
        "blocks": ours.blocks,
        "warps": ours.blocks_by_warps,
        "registers": ours.blocks_by_registers,
        "shared": ours.blocks_by_shared,
        "block limit": ours.blocks_by_blocks,
        "barriers": ours.blocks_by_barriers,
    }
    for (name, mine), theirs in zip(columns.items(), header[[1, 3, 4, 5, 6, 7]], strict=True):
        if name == "barriers" and old_barriers:
            continue
        wrong = np.flatnonzero(mine != theirs)
        assert not wrong.size, (name, rows[:, wrong[0]], mine[wrong[0]], theirs[wrong[0]])
    # Where barriers alone decide, the header also names what would decide without them.
    same = (ours.limiters == header[2]) | (ours.limiters == int(Limiter.BARRIERS))
    assert old_barriers or same.all()
    assert len(np.unique(ours.limiters)) > 5, "the configurations do not meet every limit"


def test_a_small_opt_in_forbids_nothing(header_program: tuple[Path, int]) -> None:
    """Where the header and the API differ. The second row is one of bench/h200/tables."""
    threads, registers, static, dynamic, opt_in = np.array(
        [[64, 32, 8000, 40_000, 39_999], [192, 55, 0, 22_117, 999], [64, 32, 8000, 50_000, 49_999]]
    ).T
    ours = occupancy(
        "9.0", threads, registers, static, dynamic, max_dynamic_shared_bytes=opt_in
    ).blocks
    # The table has 2 blocks for the second row: its carve-out is 15 %.
    assert ours.tolist() == [4, 6, 0]
    rows = np.stack([threads, registers, static, dynamic, [-1] * 3, [1] * 3, opt_in])
    assert ask(header_program[0], SM_LIMITS[9, 0], rows)[1].tolist() == [0, 0, 0]
