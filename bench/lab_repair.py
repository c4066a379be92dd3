"""What the lab's advice brought on a slow kernel: docs/lab.md's repair, as an H200 measured it.

python -m bench.lab_repair [--quick] [--markdown]

Reports bench/h200/tables/lab_beforeafter.json, which `make lab-h200` measures. `--markdown` prints
the table of docs/lab.md. Exit code 1 where that file is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from bench._replay import arguments, made_by, parser_of
from bench._report import emit
from bench.h200._device import TABLES

TABLE = TABLES / "lab_beforeafter.json"
_HEAD = (
    "step", "time", "under ncu", "FP32", "local accesses", "bytes used of a sector",
    "conflicts of loads", "conflicts of stores",
)  # fmt: skip


def markdown(steps: dict[str, Any]) -> list[str]:
    """The table of docs/lab.md, a line a step."""
    lines = [_line(_HEAD), _line("---" for _ in _HEAD)]
    for name, row in steps.items():
        counted = row.get("counters")
        if counted is None:
            shown = (f"`{name}`", _micro(row["median_us"]), "", f"{row['tflops']:.3g} TFLOP/s")
            lines.append(_line((*shown, *[""] * (len(_HEAD) - len(shown)))))
            continue
        cells = (
            f"`{name}`",
            _micro(row["median_us"]),
            _micro(counted["profiled_us"]),
            f"{row['tflops']:.3g} TFLOP/s",
            _big(counted["local_loads"] + counted["local_stores"]),
            f"{counted['bytes_a_sector_of_loads']:.0f} of 32",
            _big(counted["bank_conflicts_loads"]),
            _big(counted["bank_conflicts_stores"]),
        )
        lines.append(_line(cells))
    return lines


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _micro(value: float) -> str:
    return f"{value:,.0f} us" if value >= 100 else f"{value:.1f} us"


def _big(value: float) -> str:
    return f"{value / 1e6:,.1f} M" if value >= 1e5 else f"{value:,.0f}"


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--markdown", action="store_true", help="the table of docs/lab.md")
    args = arguments(parser, TABLE)
    table = json.loads(TABLE.read_text())
    steps, about = table["steps"], table["about"]
    if args.markdown:
        print("\n".join(markdown(steps)))
        return 0
    where = made_by(about)
    first, *_, last = steps.values()
    emit("lab.repair_us.before", first["median_us"], "us", **where)
    ratio = first["median_us"] / last["median_us"]
    emit("lab.repair_us.after", last["median_us"], "us", ratio=ratio, **where)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
