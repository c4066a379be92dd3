"""docs/lab.md's repair: its table, and what `lab explain` says of each step's counters."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spanlite_analytics.lab.counters import of_kernel, read_ncu
from spanlite_analytics.lab.toolchain import find_tool, has_tools

sys.path.append(str(Path(__file__).parents[3]))  # bench/ is no installed package
from bench.h200.lab_beforeafter_table import KERNELS, STEPS, counters_of, narrowed
from bench.lab_repair import TABLE, markdown

ROOT = Path(__file__).parents[3]
COUNTERS = TABLE.with_name("lab_beforeafter_ncu.csv.gz")
LOCAL, PIECES = "Registers spill, or arrays live in local memory", "Global memory is used in pieces"
BANKS = "Shared-memory bank conflicts"
measured = pytest.mark.skipif(not TABLE.exists(), reason="the repair has not been measured yet")


@measured
def test_the_page_has_the_tables_figures() -> None:
    table = json.loads(TABLE.read_text())
    steps = table["steps"]
    assert list(steps) == list(STEPS) and "H200" in table["about"]["name"]
    assert all(row["relative_error"] < 1e-6 for row in steps.values())
    assert "\n".join(markdown(steps)) in (ROOT / "docs" / "lab.md").read_text()
    ratio = steps["scores_slow"]["median_us"] / steps["scores_tiled"]["median_us"]
    assert round(ratio) == 26
    for row in steps.values():
        if "counters" in row:
            assert row["counters"]["profiled_us"] == pytest.approx(row["median_us"], rel=0.03)


@measured
@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("scores_slow", {LOCAL, PIECES, BANKS}),
        ("scores_registers", {PIECES, BANKS}),
        ("scores_coalesced", {BANKS}),
        ("scores_tiled", set()),
    ],
)
def test_each_step_mends_what_was_told(step: str, told: set[str], spanlite: Any) -> None:
    code, out, _ = spanlite("lab", "explain", "none", step, "--ncu", COUNTERS, "--json")
    assert code == 0
    first, *rest = (finding["what"] for finding in json.loads(out)["findings"])
    assert first == "Bound by L1 and shared memory" and set(rest) == told


@measured
def test_the_profilers_table_has_the_block() -> None:
    row = of_kernel(read_ncu(COUNTERS), "scores_tiled")
    assert row is not None and row.block == (32, 8, 1) and row.threads == 256


def test_a_profile_is_narrowed() -> None:
    text = (
        '"ID","Process ID","Kernel Name","gpu__time_duration.sum","launch__registers_per_thread"\n'
        '"","","","ms","register/thread"\n"0","77","scores_slow","1,000.5","40"\n"a torn line\n'
    )
    small = narrowed(text)
    assert "Process ID" not in small and small.count("\n") == 3
    assert counters_of(small) == {"scores_slow": {"registers": 40.0, "profiled_us": 1_000_500.0}}


@measured
@pytest.mark.skipif(not has_tools("nvcc", "cuobjdump", "nvdisasm"), reason="needs nvcc")
def test_the_binary_has_the_lines(tmp_path: Path, spanlite: Any) -> None:
    """The audit's lines are on the page, judged with the block of the profiled launch."""
    source, cubin = KERNELS / "scores_slow.cu", tmp_path / "slow.cubin"
    words = ["-cubin", "-arch=sm_90a", "-lineinfo", "-Dscores=scores_slow", "-o", cubin, source]
    subprocess.run([find_tool("nvcc"), *words], check=True)
    code, out, _ = spanlite(
        "lab", "explain", "none", "scores_slow", "--ncu", COUNTERS, "--cubin", cubin, "--json"
    )
    assert code == 0
    page = json.loads(out)
    found = {(finding["rule"], finding["line"]) for finding in page["code"]}
    assert found == {("local-memory", 12), ("uncoalesced", 16), ("uncoalesced", 17)}
    assert page["resources"]["stack_bytes"] == 64
    code, out, _ = spanlite(
        "lab", "explain", "none", "scores_slow", "--ncu", COUNTERS, "--cubin", cubin
    )
    assert code == 0 and "scores_slow.cu:17: uncoalesced: 32 sectors a warp" in out
