"""The lab's rounding emulator against an H200.

python -m bench.lab_rounding [--quick]

Reports bench/h200/tables/lab_rounding.json, which `make lab-h200` measures: the cases, and how many
the emulator of that day got wrong. The table holds digests of what the hardware gave for the first
inputs of each instruction and the first sums in each order; today's emulator must give the same.
Exit code 1 where that file is not there.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from bench._replay import arguments, made_by, parser_of
from bench._report import emit
from bench.h200._accumulation_cases import ACCUMULATIONS
from bench.h200._device import TABLES
from bench.h200._rounding_cases import CASES, digest, inputs
from bench.h200.lab_rounding_table import CHUNK, REPLAYED, REPLAYED_SUMS, digest_of_sums

TABLE = TABLES / "lab_rounding.json"


def replayed(table: dict[str, Any]) -> tuple[int, list[str]]:
    """Results compared with the hardware's by today's emulator, and whose digest differs."""
    count, off = 0, []
    for number, case in enumerate(CASES):
        given = [x[:REPLAYED] for x in inputs(case, CHUNK, seed=number)]
        got = case.emulate(*given)
        count += len(got)
        if digest(case, got) != table["instructions"][case.name]["digest"]:
            off.append(case.name)
    for number, order in enumerate(ACCUMULATIONS):
        a, b = order.given(seed=number, count=REPLAYED_SUMS)
        count += REPLAYED_SUMS
        if digest_of_sums(order.emulate(a, b)) != table["accumulation"][order.name]["digest"]:
            off.append(order.name)
    return count, off


def main() -> int:
    arguments(parser_of(__doc__), TABLE)
    table = json.loads(TABLE.read_text())
    rows, sums, about = table["instructions"], table["accumulation"], table["about"]
    where = made_by(about)
    emit("lab.rounding_instructions", len(rows), "instructions", **where)
    emit("lab.rounding_cases", sum(row["cases"] for row in rows.values()), "cases", **where)
    emit("lab.rounding_sums", sum(row["sums"] for row in sums.values()), "sums", **where)
    wrong = sum(row["mismatches"] for row in (*rows.values(), *sums.values()))
    emit("lab.rounding_mismatches", wrong, "cases", 0, **where)
    count, off = replayed(table)
    emit("lab.rounding_replayed", count, "cases")
    emit("lab.rounding_replayed_off", len(off), "instructions and orders", 0)
    for name, row in (*rows.items(), *sums.items()):
        if row["mismatches"]:
            print(
                f"{name}: {row['mismatches']:,} in that run, as {row['examples'][0]}",
                file=sys.stderr,
            )
    for name in off:
        print(f"today's emulator differs: {name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
