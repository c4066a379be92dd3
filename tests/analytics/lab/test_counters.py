import sys
from pathlib import Path
from typing import Any

import pytest
from spanlite_analytics.lab.counters import of_kernel, read_ncu
from spanlite_analytics.lab.occupancy import Launch

sys.path.append(str(Path(__file__).parents[3]))  # bench/ is no installed package
from bench.lab_counters import OURS, gaps, pairs

NAMES = "ID,Kernel Name,Block Size,Grid Size,CC,t,b,p,n,launch__registers_per_thread"
HEAD = ",".join(f'"{name}"' for name in NAMES.split(","))


def write(folder: Path, *rows: str, units: str = '"ns","byte","%",""') -> Path:
    path = folder / "x.csv"
    path.write_text("\n".join(["==PROF== x", HEAD, f'"","","","","",{units},""', *rows]))
    return path


def test_units_become_base_units(tmp_path: Path) -> None:
    row = '"0","k<int>(float *)","(32, 4, 1)","(8, 2, 3)","9.0","1.5","2","12.5","n/a","40"'
    (plain,) = read_ncu(write(tmp_path, row))
    assert (plain.threads, plain.grid_blocks, plain.capability) == (128, 48, "9.0")
    assert (plain.get("t"), plain.get("b"), plain.get("p")) == (1.5, 2, 12.5)
    assert plain.get("n") is None
    assert plain.launch() == Launch(128, 40, grid_blocks=48)
    (scaled,) = read_ncu(write(tmp_path, row, units='"usecond","Mbyte","%",""'))
    assert (scaled.get("t"), scaled.get("b"), scaled.get("p")) == (1500, 2e6, 12.5)


def test_medians_of_the_same_launch(tmp_path: Path) -> None:
    rows = [
        f'"{i}","{name}","(32, 1, 1)","({grid}, 1, 1)","9.0","{time}","0","0","1","16"'
        for i, (name, grid, time) in enumerate(
            [
                ("a_gemm", 8, 10),
                ("a_gemm", 8, 30),
                ("a_gemm", 8, 20),
                ("a_gemm", 9, 99),
                ("b", 8, 1),
            ]
        )
    ]
    found = read_ncu(write(tmp_path, *rows))
    assert len(found) == 5

    def time_of(launch: Launch | None = None) -> float | None:
        one = of_kernel(found, "GEMM", launch)
        return one and one.get("t")

    assert time_of() == 20
    assert time_of(Launch(32, 16, grid_blocks=9)) == 99
    assert time_of(Launch(64, 16, grid_blocks=9)) == 20
    assert of_kernel(found, "conv") is None


def test_the_range_profiler_counts_what_nsight_compute_does() -> None:
    """On an H200, six kernels: every instruction; times and shares of peaks within 3 %."""
    if not OURS.exists():
        pytest.skip("bench/h200/tables/lab_counters.csv.gz has not been measured yet")
    found = [gaps(*pair) for pair in pairs()]
    assert len(found) == 6
    for each in found:
        assert each["smsp__inst_executed.sum"] == 0 == each["launch__registers_per_thread"]
        assert each["gpu__time_duration.sum"] < 1
        assert all(gap < 3 for name, gap in each.items() if "pct" in name)


def test_its_file_explains_a_kernel(spanlite: Any) -> None:
    if not OURS.exists():
        pytest.skip("bench/h200/tables/lab_counters.csv.gz has not been measured yet")
    code, out, _ = spanlite("lab", "explain", "none", "scores_slow", "--ncu", OURS)
    assert code == 0 and "1. Bound by L1 and shared memory\n   97% of what it can do" in out
