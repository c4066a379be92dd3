"""`spanlite counters` around a program on a stand-in driver and range profiler."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builds import Build
from spanlite_collectors.commands.counters import METRICS


def run(
    build: Build, output: Path, *words: str, kernel: str = "gemm", **more: str
) -> subprocess.CompletedProcess[str]:
    """The command, with the stand-in in the place of libcuda and libcupti."""
    standin = build.folder / "tests" / "ranges"
    command = [sys.executable, "-m", "spanlite.cli", "counters", "--kernel", kernel,
               "--output", str(output), "--cupti", str(standin / "libcuda.so.1"), *words,
               "--", str(build.program("ranges_host"))]  # fmt: skip
    environment = os.environ | {"LD_LIBRARY_PATH": str(standin)} | more
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def rows_of(path: Path) -> list[dict[str, str]]:
    """The launches, without the units."""
    return list(csv.DictReader(path.read_text().splitlines()))[1:]


def test_each_launch_of_a_kernel_is_counted_alone(plain: Build, tmp_path: Path) -> None:
    """At most three of each name, whatever its case; other kernels and threads are left out."""
    done = run(plain, tmp_path / "counters.csv")
    assert (done.returncode, done.stdout) == (0, "launched 7\n")
    assert "4 launches counted" in done.stderr
    rows = rows_of(tmp_path / "counters.csv")
    names = ["my_GEMM_kernel"] * 3 + ['gemm<int, "a">']
    assert [row["Kernel Name"] for row in rows] == names
    # The stand-in's first counter is the number of launches so far.
    assert [row["gpu__time_duration.sum"] for row in rows] == ["3", "4", "5", "7"]
    assert rows[0]["Block Size"] == "(256, 1, 1)" and rows[0]["Grid Size"] == "(264, 1, 1)"
    # One is refused, and none after it for that.
    missing = set(METRICS) - set(rows[0])
    assert missing == {"smsp__inst_executed_op_global_atom.sum"}
    assert f"{len(METRICS) - 1} of {len(METRICS)} metrics, in 3 passes" in done.stderr
    assert rows[0]["CC"] == "9.0" and rows[0]["launch__registers_per_thread"] == "40"


def test_all_kernels(plain: Build, tmp_path: Path) -> None:
    done = run(plain, tmp_path / "counters.csv", "--launches", "1", kernel="")
    assert done.returncode == 0, done.stderr
    assert len(rows_of(tmp_path / "counters.csv")) == 3


@pytest.mark.parametrize(
    ("kernel", "more", "said"),
    [
        ("conv", {}, "0 launches counted"),
        ("gemm", {"STANDIN_BUSY": "1"}, "another profiler or sampler"),
    ],
)
def test_nothing_was_counted(
    plain: Build, tmp_path: Path, kernel: str, more: dict[str, str], said: str
) -> None:
    """The program runs to its end all the same."""
    done = run(plain, tmp_path / "counters.csv", kernel=kernel, **more)
    assert (done.returncode, done.stdout) == (1, "launched 7\n")
    assert said in done.stderr and not (tmp_path / "counters.csv").exists()
