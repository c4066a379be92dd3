"""The program that asks compute-sanitizer about the corpus, as far as it goes without a GPU."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4]))  # bench/ is no installed package
from bench.h200._race_harness import kernels_of, source
from bench.h200.lab_races_table import CORPUS, VERDICTS, Verdict, chosen, split

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
    assert (found["stuck"].errors, found["stuck"].ended) == (1, "not run")


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
