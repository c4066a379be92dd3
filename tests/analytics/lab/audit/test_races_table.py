"""The program that asks compute-sanitizer about the corpus, as far as it goes without a GPU."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[4]))  # bench/ is no installed package
from bench.h200._device import TABLES
from bench.h200._race_harness import kernels_of, source
from bench.h200.lab_races_table import (
    CORPUS,
    NEVER_ENDED,
    TOOLS,
    VERDICTS,
    Verdict,
    _output,
    _runs,
    chosen,
    merged,
    split,
    told,
)

TABLE = TABLES / "lab_races.json"

SAID = """========= COMPUTE-SANITIZER
BEGIN quiet
END quiet cudaSuccess
BEGIN racy
========= Error: Race reported between Write access at racy+0x1b0 in a.cu:14
=========     and Read access at racy+0x210 in a.cu:15 [64 hazards]
=========
========= Warning: Race reported between Read access at racy+0x1b0 in a.cu:14
END racy cudaSuccess
BEGIN stuck
========= Barrier error detected. Divergent thread(s) in block.
"""


def test_what_was_said_goes_to_its_kernel() -> None:
    found: dict[str, Verdict] = {}
    assert split(SAID, found) == ["quiet", "racy", "stuck"]
    assert (found["quiet"].errors, found["quiet"].ended) == (0, "cudaSuccess")
    assert (found["racy"].errors, found["racy"].warnings) == (1, 1)
    assert found["racy"].first.startswith("Race reported between Write access")
    assert (found["stuck"].errors, found["stuck"].ended) == (1, "cut off")


def test_kernels_and_their_blocks() -> None:
    found = {k.name: k for k in kernels_of(CORPUS / "held_back" / "race.cu")}
    assert len(found) == 14
    assert found["race_transpose_without_barrier"].block == (32, 8, 1)
    assert found["race_scan_in_place"].verdict == "shared-race"
    text = source(CORPUS / "held_back" / "race.cu", list(found.values()))
    assert text.count("cudaLaunchKernel") == 14
    assert "void* p1 = buffer(3);" in text and "int p2 = 8;" in text


def test_all_races_and_barriers_are_asked_about() -> None:
    asked = [k for kernels in chosen("").values() for k in kernels]
    every = [k for path in CORPUS.glob("*/*.cu") for k in kernels_of(path)]
    faulty = {k.name for k in every if k.verdict in VERDICTS[:2]}
    assert len(faulty) >= 15 and faulty <= {k.name for k in asked}
    assert sum(k.verdict == "clean" for k in asked) > 20


def test_nothing_of_a_run_is_left(tmp_path: Path) -> None:
    """Not even what was started in a session of its own, as the sanitizer does."""
    program = Path(shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / "kernels"))
    command = ["bash", "-c", f"setsid {program} 600 & echo BEGIN k; sleep 600"]
    text = _output(command, program, time.monotonic() + 0.5)
    assert "BEGIN k" in text
    assert not [p for p in Path("/proc").glob("[0-9]*") if _runs(p, program)]


def test_a_harness_ends_itself(tmp_path: Path) -> None:
    """Its deadline, around a kernel that never ends, without CUDA."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    path = CORPUS / "held_back" / "barrier.cu"
    text = source(path, kernels_of(path))
    late = text[text.index("static void late") : text.index("// Constant buffers")]
    head = "#include <csignal>\n#include <cstdio>\n#include <sys/prctl.h>\n#include <unistd.h>\n"
    start = text[text.index("  prctl(") : text.index("  // The context")]
    assert "alarm(" in text[text.index("BEGIN") : text.index("strcmp")]
    (tmp_path / "h.cpp").write_text(
        f'{head}{late}int main() {{\n{start}  puts("BEGIN stuck");\n  fflush(stdout);\n'
        "  alarm(1);\n  for (;;) pause();\n}\n"
    )
    subprocess.run([compiler, "-o", tmp_path / "h", tmp_path / "h.cpp"], check=True)
    done = subprocess.run([tmp_path / "h"], capture_output=True, text=True, timeout=30, check=False)
    found: dict[str, Verdict] = {}
    assert split(done.stdout, found) == ["stuck"]
    assert done.returncode == 6 and found["stuck"].ended == "deadline"


def test_the_sanitizer_agrees() -> None:
    """On an H200 it confirms each race, and is silent on the clean ones, which all end."""
    if not TABLE.exists():
        pytest.skip("bench/h200/tables/lab_races.json has not been measured yet")
    table = json.loads(TABLE.read_text())
    assert "H200" in table["about"]["name"] and table["about"]["date"]
    verdicts = {k.name: k.verdict for p in CORPUS.glob("*/*.cu") for k in kernels_of(p)}
    rows = {row["kernel"]: row for row in table["kernels"]}
    assert all(verdicts[name] == row["ours"] for name, row in rows.items())

    def said(row: dict[str, object], tool: str) -> bool:
        answer = row.get(tool)
        return isinstance(answer, dict) and answer["errors"] + answer["warnings"] > 0

    races = {n for n, row in rows.items() if row["ours"] == "shared-race"}
    confirmed = {n for n in races if said(rows[n], "racecheck")}
    assert races == confirmed and len(races) == 10
    clean = [row for row in rows.values() if row["ours"] == "clean"]
    assert all(row["racecheck"]["ended"] == "cudaSuccess" for row in clean)
    assert table["about"]["left_on_gpu"] == []
    assert len(clean) == 28 and not any(said(r, tool) for r in clean for tool in TOOLS)
    barriers = {n: row["synccheck"] for n, row in rows.items() if row["ours"] == VERDICTS[1]}
    said_of = {n: "errors" if row["errors"] else row["ended"] for n, row in barriers.items()}
    for name in ("barrier_in_strided_loop", "barrier_count_too_high"):
        # Without the sanitizer neither.
        assert said_of.pop(name) in NEVER_ENDED and rows[name]["alone"]["ended"] in NEVER_ENDED
    assert said_of == {
        "barrier_for_some_threads": "errors",
        "barrier_in_both_arms": "errors",
        "barrier_by_data": "cudaSuccess",
    }


def verdict(errors: int = 0, warnings: int = 0, ended: str = "cudaSuccess") -> dict[str, object]:
    return {"errors": errors, "warnings": warnings, "first": "", "ended": ended}


def test_of_two_runs_the_verdict_that_tells_more_stays() -> None:
    """An error found once is never lost to a later run that found none."""
    order = [None, verdict(ended="cut off"), verdict(ended="deadline"), verdict(), verdict(1)]
    assert [told(one) for one in order] == [0, 0, 1, 2, 3]
    for one in order:
        for other in order:
            old, new = ({"about": {"date": n}, "kernels": [{"kernel": "k", "racecheck": v}]}
                        for n, v in (("1", one), ("2", other)))  # fmt: skip
            got = merged(old, new)
            assert told(got["kernels"][0]["racecheck"]) == max(told(one), told(other))
            assert [run["date"] for run in got["about"]["runs"]] == ["1", "2"]
