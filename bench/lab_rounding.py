"""The lab's rounding emulator against an H200.

python -m bench.lab_rounding [--quick]

Reports bench/h200/tables/lab_rounding.json, which `make lab-h200` measures: the cases, how many the
emulator of that day got wrong, and how many of the examples kept of these today's gets wrong.
Exit code 1 where that file is not there.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np

from bench._report import emit
from bench.h200._device import TABLES
from bench.h200._rounding_cases import CASES, wrong

TABLE = TABLES / "lab_rounding.json"


def still_wrong(rows: dict[str, Any]) -> list[dict[str, str]]:
    """The kept examples in which the emulator of today is not what the hardware gave."""
    found = []
    for case in CASES:
        examples = rows[case.name]["examples"]
        if not examples:
            continue
        words = [[int(e[key], 16) for e in examples] for key in ("a", "b", "c", "hardware")]
        *given, hardware = (np.array(column, np.uint32) for column in words)
        bad = np.flatnonzero(wrong(case, hardware, case.emulate(*given)))
        found += [{"instruction": case.name, **examples[place]} for place in bad]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same; it is quick")
    parser.parse_args()
    if not TABLE.exists():
        print(f"{TABLE.name} is absent: no GPU has measured it yet", file=sys.stderr)
        return 1
    table = json.loads(TABLE.read_text())
    rows, about = table["instructions"], table["about"]
    where = {key: about[key] for key in ("name", "driver_version", "date", "command")}
    emit("lab.rounding_instructions", len(rows), "instructions", **where)
    emit("lab.rounding_cases", sum(row["cases"] for row in rows.values()), "cases", **where)
    emit(
        "lab.rounding_mismatches_of_that_run", sum(r["mismatches"] for r in rows.values()), "cases"
    )
    emit("lab.rounding_examples_kept", sum(len(r["examples"]) for r in rows.values()), "cases")
    left = still_wrong(rows)
    emit("lab.rounding_examples_still_wrong", len(left), "cases", 0)
    for name, row in rows.items():
        if row["mismatches"]:
            count = f"{row['mismatches']:,} of {row['cases']:,}"
            print(f"{name}: {count} in that run, as {row['examples'][0]}", file=sys.stderr)
    for example in left:
        print(f"still: {example}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
