import json
from pathlib import Path
from typing import Any

import pytest
from spanlite.occupancy import limits_of
from spanlite_analytics.lab.counters import Counted
from spanlite_analytics.lab.explain import Case, explain
from spanlite_analytics.lab.explain.case import parse_resources
from spanlite_analytics.lab.launches import Seen
from spanlite_analytics.lab.occupancy import Launch

DATA = Path(__file__).parents[5] / "shared" / "data"
NCU = DATA / "ncu" / "ncu_full_samples.csv.gz"
real = pytest.mark.skipif(not DATA.is_dir(), reason="the real traces are not in ../shared/data")


def case(launch: Launch, duration_ns: float = 50_000, **counters: float) -> Case:
    values = {name.replace("__dot__", "."): value for name, value in counters.items()}
    counted = Counted("k", launch.threads, launch.grid_blocks, "9.0", values) if values else None
    seen = Seen("k", "", launch, 100, 1e6, duration_ns, 1_000, int(duration_ns) + 9)
    return Case("k", limits_of("9.0"), 132, launch, seen, counted)


def titles(one: Case) -> list[str]:
    return [finding.what for finding in explain(one)]


FULL = Launch(256, 32, grid_blocks=132 * 8 * 10)


def test_nothing_stands_out() -> None:
    (finding,) = explain(case(FULL))
    assert finding.what == "Nothing stands out"
    assert "profile it" in finding.advice


def test_a_grid_smaller_than_the_gpu() -> None:
    first = explain(case(Launch(256, 32, grid_blocks=16)))[0]
    assert first.what == "The grid is smaller than the GPU"
    assert "16 blocks on 132 SMs: at least 116 SMs" in first.evidence


def test_a_tail() -> None:
    assert titles(case(Launch(256, 32, grid_blocks=1056 + 50))) == ["The last wave is mostly empty"]
    assert titles(case(Launch(256, 32, grid_blocks=2112))) == ["Nothing stands out"]


def test_a_short_kernel() -> None:
    assert titles(case(FULL, duration_ns=1_500)) == ["It is so short that starting it counts"]


def test_few_warps() -> None:
    finding = explain(case(Launch(128, 255, grid_blocks=132 * 2 * 10)))[0]
    assert finding.what == "Few warps hide its waits"
    assert "at most 168 registers a thread" in finding.advice


def test_few_warps_do_not_matter_to_a_busy_unit() -> None:
    launch = Launch(128, 255, grid_blocks=132 * 2 * 10)
    dram = {"gpu__dram_throughput__dot__avg__dot__pct_of_peak_sustained_elapsed": 91.0}
    assert titles(case(launch, **dram)) == ["Bound by device memory"]


def test_a_launch_that_cannot_run() -> None:
    assert titles(case(Launch(1024, 200, grid_blocks=1000)))[0].startswith("Such a launch cannot")


def test_times_that_vary() -> None:
    one = case(FULL)
    seen = Seen("k", "", FULL, 100, 1e7, 50_000, 40_000, 900_000)
    varied = Case("k", one.sm, 132, FULL, seen)
    assert titles(varied) == ["The same launch takes very different times"]


@real
@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("transpose_conflict", "Shared-memory bank conflicts"),
        ("spill_local", "Registers spill, or arrays live in local memory"),
        ("hist_atomic", "Atomics to few addresses wait for each other"),
        ("reduce_with_sync", "Bound by L1 and shared memory"),
    ],
)
def test_the_known_fault_of_real_kernels_comes_first(
    kernel: str, expected: str, spanlite: Any
) -> None:
    """Profiled on an H200; the faults are those that the kernels were written to have."""
    code, out, err = spanlite("lab", "explain", "none", kernel, "--ncu", NCU, "--json")
    page = json.loads(out)
    assert (code, err) == (0, "")
    assert page["findings"][0]["what"] == expected, page["findings"]
    assert page["sms"] == 132 and page["has_counters"]


@real
def test_the_degree_of_a_real_transpose(spanlite: Any) -> None:
    code, out, _ = spanlite("lab", "explain", "none", "transpose", "--ncu", NCU)
    assert code == 0
    assert "97% of the wavefronts of loads (degree 32.0)" in out


@real
def test_resources_of_real_kernels() -> None:
    text = (DATA / "sm90" / "samples_kernels.resusage.txt").read_text()
    (spill,) = parse_resources(text, "SPILL")
    assert (spill.name, spill.registers, spill.stack_bytes) == ("spill_local", 32, 256)
    assert len(parse_resources(text, "")) == 6
    assert parse_resources(text, "nosuch") == []


def kernel(number: int, **more: Any) -> dict[str, Any]:
    launch = {"grid_x": 24, "grid_y": 1, "grid_z": 1, "block_x": 384, "block_y": 1, "block_z": 1}
    return {
        "trace_id": f"{number:032x}",
        "span_id": number,
        "start_ns": 1_796_108_400_000_000_000 + number,
        "duration_ns": 6_000 * number,
        "name": "gemm",
        "registers_per_thread": 168,
        "dynamic_shared_bytes": 164_292,
        **launch,
        **more,
    }


def ncu_file(folder: Path) -> Path:
    path = folder / "counters.csv"
    lines = [
        "==PROF== Connected",
        '"ID","Kernel Name","Block Size","Grid Size","CC","gpu__time_duration.sum",'
        '"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"',
        '"","","","","","us","%"',
        '"0","gemm","(384, 1, 1)","(24, 1, 1)","9.0","6.5","80.5"',
        '"1","gemm","(384, 1, 1)","(24, 1, 1)","9.0","7.5","82.5"',
        '"2","gemm","(384, 1, 1)","(999, 1, 1)","9.0","1,000","1"',
    ]
    path.write_text("\n".join(lines))
    return path


def test_from_an_archive(build: Any, spanlite: Any, tmp_path: Path) -> None:
    build.spans(kernel(1), kernel(2))
    where = ("--archive", build.root, "--gpu", "H200")
    code, out, err = spanlite("lab", "explain", "all", "GEMM", *where)
    assert (code, err) == (0, "")
    assert "2 launches, 18.0 us in all; median 9.00 us, 6.00 us to 12.0 us" in out
    assert "1. The grid is smaller than the GPU" in out
    assert "No counters" in out
    trace = f"{2:032x}"
    code, out, _ = spanlite("lab", "explain", trace, "gemm", *where, "--ncu", ncu_file(tmp_path))
    assert code == 0
    assert "1 launches, 12.0 us in all" in out
    assert "Bound by device memory" in out and "82% of what it can do" in out
    assert "No counters" not in out


def test_what_is_not_there(build: Any, spanlite: Any, tmp_path: Path) -> None:
    build.spans(kernel(1))
    where = ("--archive", build.root)
    assert spanlite("lab", "explain", "all", "conv", *where)[0] == 1
    assert spanlite("lab", "explain", "ffff", "gemm", *where)[0] == 1
    code, _, err = spanlite("lab", "explain", "none", "gemm")
    assert code == 2 and "--ncu must say" in err
    code, _, err = spanlite("lab", "explain", "none", "gemm", "--ncu", tmp_path / "no.csv")
    assert code == 2 and "cannot be read" in err
    (tmp_path / "bad.csv").write_text("hello\n")
    code, _, err = spanlite("lab", "explain", "none", "gemm", "--ncu", tmp_path / "bad.csv")
    assert code == 2 and "no table of Nsight Compute" in err
    (tmp_path / "half.csv").write_text('"ID","x"\n"",""\n"0","1"\n')
    code, _, err = spanlite("lab", "explain", "none", "gemm", "--ncu", tmp_path / "half.csv")
    assert code == 2 and "has no launches" in err
