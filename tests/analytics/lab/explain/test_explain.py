import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spanlite.occupancy import limits_of
from spanlite_analytics.lab.counters import Counted
from spanlite_analytics.lab.explain import Case, Sampled, explain
from spanlite_analytics.lab.launches import Seen
from spanlite_analytics.lab.occupancy import Launch
from spanlite_analytics.lab.resources import parse_resources

sys.path.append(str(Path(__file__).parents[4]))  # bench/ is no installed package
from bench.lab_explain import RECORDING, archive_of

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
    assert "No counters of the profiler" in out
    trace = f"{2:032x}"
    code, out, _ = spanlite("lab", "explain", trace, "gemm", *where, "--ncu", ncu_file(tmp_path))
    assert code == 0
    assert "1 launches, 12.0 us in all" in out
    assert "Bound by device memory" in out and "82% of what it can do" in out
    assert "No counters" not in out


def sampled_as(**figures: float | str) -> str:
    names = ("active", "dram", "l2_hit", "warps_active", "tensor")
    said: dict[str, float | str] = {f"gpu.{n}_pct": figures[n] for n in names if n in figures}
    if "of" in figures:
        said["gpu.of"] = figures["of"]
    return json.dumps(said)


def page_of(spanlite: Any, root: Path, *more: str) -> Any:
    code, out, err = spanlite(
        "lab", "explain", "all", "gemm", "--archive", root, "--gpu", "H200", "--json", *more
    )
    assert (code, err) == (0, "")
    return json.loads(out)


BIG = {"grid_x": 1320}


def test_figures_of_the_kernel_itself(build: Any, spanlite: Any) -> None:
    """Means weighted by duration: 6 us and 12 us."""
    low = sampled_as(active=90.0, dram=61.0, l2_hit=10.0, warps_active=30.0, tensor=1.0)
    high = sampled_as(active=99.0, dram=91.0, l2_hit=40.0, warps_active=30.0, tensor=1.0)
    stage = sampled_as(active=1.0, dram=1.0, of="stage")
    build.spans(
        kernel(1, attributes=low, **BIG),
        kernel(2, attributes=high, **BIG),
        kernel(3, attributes=stage, **BIG),
        kernel(4, name="gemm_other", attributes=low),
    )
    page = page_of(spanlite, build.root)
    got = page["sampled"]
    assert (got["of"], got["spans"], got["share"]) == ("kernel", 2, None)
    assert got["dram_pct"] == pytest.approx((61 * 6 + 91 * 12) / 18)
    assert got["active_pct"] == pytest.approx(96) and got["tensor_pct"] == pytest.approx(1)
    assert page["findings"][0]["what"] == "Bound by device memory"
    assert "81% of what it can do while it ran (sampled)" in page["findings"][0]["evidence"]


def test_the_profiler_comes_before_samples(build: Any, spanlite: Any, tmp_path: Path) -> None:
    build.spans(kernel(1, attributes=sampled_as(active=90.0, dram=91.0, tensor=1.0), grid_x=24))
    page = page_of(spanlite, build.root, "--ncu", str(ncu_file(tmp_path)))
    bound = [f for f in page["findings"] if f["what"] == "Bound by device memory"]
    assert len(bound) == 1 and "sampled" not in bound[0]["evidence"]
    assert page["sampled"]["dram_pct"] == 91.0


def test_figures_of_its_stage(build: Any, spanlite: Any) -> None:
    said = sampled_as(active=40.0, dram=12.0, l2_hit=5.0, warps_active=9.0, tensor=3.0, of="stage")
    build.spans(kernel(1, attributes=said, **BIG))
    page = page_of(spanlite, build.root)
    assert page["sampled"]["of"] == "stage"
    assert page["findings"][0]["what"] == "The GPU idles between its launches"
    assert "active 40% of the time while its stage ran" in page["findings"][0]["evidence"]


def step(number: int, duration_ns: int, attributes: str) -> dict[str, Any]:
    return {
        "trace_id": f"{number:032x}",
        "span_id": 100 + number,
        "start_ns": 1_796_108_400_000_000_000,
        "duration_ns": duration_ns,
        "kind": "step",
        "name": "decode",
        "attributes": attributes,
    }


@pytest.mark.parametrize(("duration_ns", "speaks"), [(8_000, True), (60_000, False)])
def test_figures_of_its_steps(build: Any, spanlite: Any, duration_ns: int, speaks: bool) -> None:
    """A step of which the kernel is a tenth says nothing about it."""
    said = sampled_as(active=95.0, dram=2.0, l2_hit=5.0, warps_active=9.0, tensor=88.0)
    build.spans(kernel(1, **BIG), step(1, duration_ns, said), step(2, 9_000, said))
    page = page_of(spanlite, build.root)
    got = page["sampled"]
    assert (got["of"], got["spans"]) == ("step", 1)
    assert got["share"] == pytest.approx(6_000 / duration_ns)
    titles = [finding["what"] for finding in page["findings"]]
    assert ("Bound by the tensor pipe" in titles) == speaks
    _, out, _ = spanlite("lab", "explain", "all", "gemm", "--archive", build.root)
    assert f"in its steps, of which it is {6_000 / duration_ns:.0%} (1 spans)" in out


def test_nothing_was_sampled(build: Any, spanlite: Any) -> None:
    build.spans(kernel(1, attributes='{"op": "x"}'), step(1, 9_000, "{}"))
    assert page_of(spanlite, build.root)["sampled"] is None


def test_sampled_quiet_pipes_and_no_word_on_warps() -> None:
    """A sampled share of warps is far too low where SMs are full, so nothing hangs on it."""
    quiet = Sampled("kernel", 3, None, 98.0, 8.0, 50.0, 12.0, 2.0)
    assert titles(replace(case(FULL), sampled=quiet)) == [
        "Neither device memory nor the tensor pipe is busy"
    ]
    assert "warps" not in quiet.words and "tensor pipe 2%" in quiet.words


#: Kernels of the recording: what comes first, whose figures they are, and the counter that tells.
RECORDED = {
    "scores_slow": (
        "Neither device memory nor the tensor pipe is busy",
        "kernel",
        "dram_pct",
        1,
        4,
    ),
    "scores_tiled": (
        "Neither device memory nor the tensor pipe is busy",
        "stage",
        "dram_pct",
        5,
        25,
    ),
    "CUDAFunctorOnSelf_add": ("Bound by device memory", "kernel", "dram_pct", 60, 100),
    "nvjet": ("Bound by the tensor pipe", "kernel", "tensor_pct", 60, 100),
}


def test_figures_that_our_collector_sampled_on_an_h200(tmp_path: Path, spanlite: Any) -> None:
    """tests/recordings/scores.spans.zst: steps of an agent's process beside PM sampling."""
    root = tmp_path / "archive"
    archive_of(RECORDING, root)
    for name, (first, of, counter, least, most) in RECORDED.items():
        code, out, err = spanlite("lab", "explain", "all", name, "--archive", root, "--json")
        assert (code, err) == (0, "")
        page = json.loads(out)
        assert page["findings"][0]["what"] == first, (name, page["findings"])
        assert page["sampled"]["of"] == of and page["sampled"]["spans"] >= 12
        assert least < page["sampled"][counter] < most
        assert page["sms"] == 132 and page["compute_capability"] == "9.0"


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


def test_the_kernel_with_the_most_time_of_those_that_match(build: Any, spanlite: Any) -> None:
    """`gemm_wide` has the longest configuration, `gemm_deep` the most time, in two of them."""
    build.spans(
        kernel(1, name="gemm_wide", duration_ns=90_000),
        kernel(2, name="gemm_deep", duration_ns=70_000),
        kernel(3, name="gemm_deep", duration_ns=40_000, grid_x=48),
        kernel(4, name="gemm_small", duration_ns=1_000),
    )
    where = ("--archive", build.root, "--gpu", "H200")
    code, out, err = spanlite("lab", "explain", "all", "gemm", *where)
    assert (code, err) == (0, "")
    first, name, _ = out.split("\n", 2)
    assert first == (
        "1 of 3 kernels that match 'gemm', the one with most time (55%); of its 2 launch "
        "configurations the one with most time"
    )
    assert name == "gemm_deep" and "grid 24 x block 384" in out
    page = page_of(spanlite, build.root)
    assert page["kernel"] == "gemm_deep"
    assert page["picked"] == {
        "kernels": 3, "share": pytest.approx(110 / 201), "configurations": 2,
    }  # fmt: skip
    _, out, _ = spanlite("lab", "explain", "all", "gemm_small", *where)
    assert out.startswith("gemm_small\n")


def counters_file(folder: Path, rows: list[str]) -> Path:
    """As `spanlite counters` writes it."""
    names = [
        "gpu__time_duration.sum", "smsp__inst_executed.sum",
        *(f"l1tex__t_{what}_pipe_lsu_mem_{space}_op_ld.sum"
          for space in ("global", "local") for what in ("sectors", "requests")),
    ]  # fmt: skip
    head = '"ID","Kernel Name","Block Size","Grid Size","CC",'
    lines = [head + ",".join(f'"{name}"' for name in names), '"",' * 5 + '"ns",' + '"",' * 4 + '""']
    path = folder / "counters.csv"
    path.write_text("\n".join([*lines, *rows, ""]))
    return path


def test_counters_of_the_range_profiler(spanlite: Any, tmp_path: Path) -> None:
    """It has requests and sectors where Nsight Compute patches instructions."""
    where = '"(256, 1, 1)","(5280, 1, 1)","9.0"'
    rows = [
        f'"0","gather_a",{where},"50000","1000000","320000","10000","8000","2000"',
        f'"1","gather_a",{where},"52000","1000000","320000","10000","8000","2000"',
        f'"2","gather_b",{where},"60000","1000000","40000","10000","0","0"',
    ]
    path = counters_file(tmp_path, rows)
    code, out, err = spanlite("lab", "explain", "none", "gather", "--ncu", path)
    assert (code, err) == (0, "")
    assert out.startswith(
        "1 of 2 kernels that match 'gather'\ngather_a\n51.0 us under the profiler"
    )
    assert "bytes used of each sector: at most 16 of 32 in loads" in out
    assert "Registers spill, or arrays live in local memory\n   2,000 local accesses" in out
    _, out, _ = spanlite("lab", "explain", "none", "gather_b", "--ncu", path)
    assert "bytes used of each sector" not in out and "spill" not in out
