"""Error of `lab pressure`'s model against loops timed on an H200.

Replays bench/h200/tables/lab_pressure.npz: each loop of the corpus, under each register cap that
changes it, with 1 to 16 warps on each scheduler. `micro` kernels, from which the costs of single
instructions come, are counted apart.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from spanlite_analytics.lab.pressure.code import Routine, read_code
from spanlite_analytics.lab.pressure.loops import main_loop
from spanlite_analytics.lab.pressure.model import rate
from spanlite_analytics.lab.pressure.pipes import Chip, chip_of

from bench._replay import arguments, made_by, parser_of
from bench._report import emit
from bench.h200._device import load
from bench.h200.lab_pressure_table import unpacked

TABLE = Path(__file__).parent / "h200" / "tables" / "lab_pressure.npz"
#: Their time is that of their addresses: random ones, in shared memory and in the L1.
SCATTERED = ("lut2", "lut8", "gather2", "gather8")


def compare(
    columns: dict[str, np.ndarray], about: dict[str, Any], micro: bool, every: int = 1
) -> dict[str, np.ndarray]:
    """Rows of the corpus (or of the micro kernels): clocks of a turn, measured and modelled."""
    chip = chip_of("9.0")
    code = _code(columns, about)
    chosen = [
        row
        for row in range(len(columns["kernel"]))
        if about["micro"][columns["kernel"][row]] == micro and columns["even"][row]
    ][::every]
    names = [about["kernels"][columns["kernel"][row]] for row in chosen]
    measured = columns["span_cycles"].astype(np.float64) / columns["turns"]
    return {
        "name": np.array(names),
        "registers": columns["registers"][chosen].astype(np.int64),
        "local_bytes": columns["local_bytes"][chosen].astype(np.int64),
        "blocks": columns["blocks"][chosen].astype(np.int64),
        "measured": measured[chosen],
        "modelled": np.array([_modelled(columns, about, row, code, chip) for row in chosen]),
    }


def _code(columns: dict[str, np.ndarray], about: dict[str, Any]) -> dict[tuple[int, str], Routine]:
    return {
        (cap, routine.name): routine
        for cap, cubin in unpacked(columns["cubins"], about["cubins"]).items()
        for routine in read_code(cubin, lines=False)
    }


def _modelled(
    columns: dict[str, np.ndarray],
    about: dict[str, Any],
    row: int,
    code: dict[tuple[int, str], Routine],
    chip: Chip,
) -> float:
    loop = main_loop(code[int(columns["cap"][row]), about["kernels"][columns["kernel"][row]]])
    assert loop is not None
    blocks = int(columns["blocks"][row])
    threads = about["block"] * blocks * about["sms"]
    spill = chip.spill_factor(int(columns["local_bytes"][row]) * threads)
    # A block of 128 threads has one warp on each of the four schedulers.
    return rate(loop, chip, blocks, group=1, dearer={"spill": spill}).clocks_per_turn


def error_of(got: dict[str, np.ndarray]) -> np.ndarray:
    """In percent, without sign."""
    return np.asarray(np.abs(got["modelled"] / got["measured"] - 1) * 100)


def advice_gaps(got: dict[str, np.ndarray]) -> dict[str, float]:
    """How much slower than the best register count the model's choice is, in percent, by kernel.

    Each count runs with as many blocks as were timed of it; kernels with one count are left out.
    """
    gaps = {}
    for name in np.unique(got["name"]):
        own = np.flatnonzero(got["name"] == name)
        rows = []
        for registers in np.unique(got["registers"][own]):
            alike = own[got["registers"][own] == registers]
            rows.append(alike[np.argmax(got["blocks"][alike])])
        if len(rows) > 1:
            measured = got["measured"][rows] / got["blocks"][rows]
            chosen = int(np.argmin(got["modelled"][rows] / got["blocks"][rows]))
            gaps[str(name)] = float(measured[chosen] / measured.min() - 1) * 100
    return gaps


def main() -> int:
    parser = parser_of(__doc__, "each third row")
    args = arguments(parser, TABLE)
    columns, about = load(TABLE)
    every = 3 if args.quick else 1
    where = made_by(about)
    got = compare(columns, about, micro=False, every=every)
    error = error_of(got)
    kernels = np.unique(got["name"])
    emit("lab.pressure_kernels", len(kernels), "kernels", 20, **where)
    emit("lab.pressure_error_pct.median", float(np.median(error)), "%", launches=len(error))
    emit("lab.pressure_error_pct.p90", float(np.percentile(error, 90)), "%")
    spilled = got["local_bytes"] > 0
    emit("lab.pressure_error_spilled_pct.median", float(np.median(error[spilled])), "%")
    known = ~np.isin(got["name"], SCATTERED)
    emit("lab.pressure_error_regular_pct.p90", float(np.percentile(error[known], 90)), "%")
    if not args.quick:
        gaps = np.array(list(advice_gaps(got).values()))
        found = {"kernels": len(gaps), "median": float(np.median(gaps))}
        emit("lab.pressure_advice_gap_pct.max", float(gaps.max()), "%", **found)
    micro = error_of(compare(columns, about, micro=True, every=every))
    emit("lab.pressure_error_micro_pct.median", float(np.median(micro)), "%")
    for name in kernels:
        own = got["name"] == name
        worst = got["modelled"][own] / got["measured"][own] - 1
        most = worst[np.argmax(np.abs(worst))] * 100
        print(f"{name}: median {np.median(error[own]):.1f} %, worst {most:+.1f} %", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
