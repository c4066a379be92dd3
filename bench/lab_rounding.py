"""The lab's rounding emulator against an H200.

python -m bench.lab_rounding [--quick]

Reports bench/h200/tables/lab_rounding.json, which `make lab-h200` measures. Exit code 1 where
that file is not there.
"""

from __future__ import annotations

import argparse
import json
import sys

from bench._report import emit
from bench.h200._device import TABLES

TABLE = TABLES / "lab_rounding.json"


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
    emit("lab.rounding_mismatches", sum(row["mismatches"] for row in rows.values()), "cases", 0)
    for name, row in rows.items():
        if row["mismatches"]:
            print(f"{name}: {row['mismatches']:,}, as {row['examples'][0]}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
