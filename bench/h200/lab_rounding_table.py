"""Compare the rounding emulator with the hardware, and keep the counts.

python3 -m bench.h200.lab_rounding_table [--pairs N] [--budget SECONDS] [--compile-only]

Every half, brain float and 8-bit pattern is converted; conversions from FP32 and all arithmetic
meet N random inputs (default 10 million) for each instruction and mode, in rounds, until the
budget (default 25 s) is spent. Then dot products of 256 terms in each order of summation. Needs
CuPy and nvcc. Writes bench/h200/tables/lab_rounding.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.h200._accumulation_cases import ACCUMULATIONS, LENGTH, Accumulation
from bench.h200._accumulation_cases import source as accumulation_source
from bench.h200._device import TABLES, compile_cubin, surroundings
from bench.h200._rounding_cases import CASES, Case, digest, inputs, source, wrong

CHUNK = 500_000
SHOWN = 5
#: Of the first inputs of each instruction and the first sums of each order the answers are kept as
#: a digest, so that any later emulator can be compared with them.
REPLAYED, REPLAYED_SUMS = 20_000, 256


class Tally:
    """Cases tried, mismatches, and the first of these, by instruction."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {
            case.name: {"cases": 0, "mismatches": 0, "examples": []} for case in CASES
        }

    def add(self, case: Case, given: tuple[np.ndarray, ...], got: np.ndarray) -> None:
        """Judge what the hardware gave for some inputs."""
        expected = case.emulate(*given)
        bad = np.flatnonzero(wrong(case, got, expected))
        row = self.rows[case.name]
        row["cases"] += len(got)
        row["mismatches"] += len(bad)
        for place in bad[: SHOWN - len(row["examples"])]:
            words = [*(x[place] for x in given), got[place], expected[place]]
            names = ("a", "b", "c", "hardware", "emulator")
            row["examples"].append(dict(zip(names, (hex(int(w)) for w in words), strict=True)))


def run_kernels(cubin: Path, pairs: int, budget_s: float) -> tuple[Tally, float]:
    """Rounds of CHUNK inputs for each instruction; the emulator runs on all cores."""
    import cupy

    module = cupy.RawModule(path=str(cubin))
    kernels = [module.get_function(f"k{number}") for number in range(len(CASES))]
    tally, began = Tally(), time.monotonic()

    def one(number: int, turn: int) -> None:
        case = CASES[number]
        given = inputs(case, min(CHUNK, pairs - turn * CHUNK), seed=turn * 1000 + number)
        size = len(given[0])
        device = [cupy.asarray(x) for x in given]
        out = cupy.empty(size, cupy.uint32)
        kernels[number]((-(-size // 256),), (256,), (*device, out, np.int32(size)))
        got = cupy.asnumpy(out)
        tally.add(case, given, got)
        if turn == 0:
            tally.rows[case.name]["digest"] = digest(case, got[:REPLAYED])

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for turn in range(-(-pairs // CHUNK)):
            numbers = [n for n, case in enumerate(CASES) if turn == 0 or not case.exhaustive]
            list(pool.map(lambda n, turn=turn: one(n, turn), numbers))
            if time.monotonic() - began > budget_s:
                break
    return tally, time.monotonic() - began


def run_accumulations(cubin: Path) -> dict[str, dict[str, Any]]:
    """Sums that the hardware makes in each order, against the emulator's: counts by name."""
    import cupy

    module = cupy.RawModule(path=str(cubin))

    def one(number: int) -> tuple[str, dict[str, Any]]:
        case = ACCUMULATIONS[number]
        a, b = case.given(seed=number)
        given = [cupy.asarray(x) for x in (a, b)]
        out = cupy.full(len(a), 0xFFFFFFFF, cupy.uint32)
        threads = len(a) * (32 if case.order == "warp" else 1)
        kernel = module.get_function(case.kernel)
        kernel((-(-threads // 256),), (256,), (*given, out, np.int32(len(a))))
        return case.name, judged_sums(case, a, b, cupy.asnumpy(out))

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        return dict(pool.map(one, range(len(ACCUMULATIONS))))


def judged_sums(
    case: Accumulation, a: np.ndarray, b: np.ndarray, got: np.ndarray
) -> dict[str, Any]:
    """Sums, terms and mismatches, with the first of these."""
    expected = case.emulate(a, b)
    bad = np.flatnonzero(got != expected)
    shown = [
        {"row": int(p), "hardware": hex(int(got[p])), "emulator": hex(int(expected[p]))}
        for p in bad[:SHOWN]
    ]
    row = {"sums": len(got), "terms": LENGTH, "mismatches": len(bad), "examples": shown}
    return row | {"digest": digest_of_sums(got)}


def digest_of_sums(got: np.ndarray) -> str:
    """Of the first sums; none is NaN."""
    return hashlib.sha256(got[:REPLAYED_SUMS].astype("<u4").tobytes()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--budget", type=float, default=25)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--compile-only", action="store_true", help="needs no GPU")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        compile_cubin(source(), Path(name), "rounding", args.nvcc)
        compile_cubin(accumulation_source(), Path(name), "sums", args.nvcc)
        if args.compile_only:
            print(f"compiled {len(CASES)} instructions, {len(ACCUMULATIONS)} orders of sums")
            return
        sums = run_accumulations(Path(name) / "sums.cubin")
        tally, took_s = run_kernels(Path(name) / "rounding.cubin", args.pairs, args.budget)
    TABLES.mkdir(exist_ok=True)
    about = surroundings() | {"seconds": round(took_s, 1)}
    path = TABLES / "lab_rounding.json"
    made = {"about": about, "instructions": tally.rows, "accumulation": sums}
    path.write_text(json.dumps(made, indent=1) + "\n")
    cases = sum(row["cases"] for row in tally.rows.values())
    bad = sum(row["mismatches"] for row in tally.rows.values())
    off = sum(row["mismatches"] for row in sums.values())
    print(
        f"{len(sums)} orders of sums, {sum(row['sums'] for row in sums.values()):,} sums, {off} off"
    )
    print(f"{len(CASES)} instructions, {cases:,} cases, {bad:,} mismatches, {took_s:.1f} s; {path}")


if __name__ == "__main__":
    main()
