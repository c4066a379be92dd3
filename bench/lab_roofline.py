"""Bytes and FLOPs from shapes against Nsight Compute's counters, and an H200's ceilings.

python -m bench.lab_roofline [--quick] [--table] [--export]

Replays bench/h200/tables/lab_roofline.json, which `make lab-h200` measures. --table prints each
operator; --export writes the measured ceilings into the lab's package. Exit code 1 where that
table is not there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from spanlite_analytics.lab import roofline
from spanlite_analytics.lab.counters import Counted
from spanlite_analytics.lab.roofline import Call, Work, attention_tile, work_counted, work_of

from bench._replay import arguments, made_by, parser_of
from bench._report import emit
from bench.h200._device import TABLES

TABLE = TABLES / "lab_roofline.json"
CEILINGS = Path(roofline.__file__).parent / "h200.json"
GOAL_PCT = 3
#: Far more than an H200's L2 (60 MB): what is written last stays there, and is no DRAM byte.
STREAMING_BYTES = 1_000_000_000


@dataclass
class Row:
    """One operator: what its sizes say and what the counters say of its kernels together."""

    name: str
    detail: str
    shapes: Work
    counters: Work
    time_ns: float
    profiled_ns: float
    kernels: int

    @property
    def bytes_gap_pct(self) -> float:
        """Of the counters, as seen from the shapes."""
        return 100 * (self.counters.bytes / self.shapes.bytes - 1)

    @property
    def product_flops(self) -> tuple[float, float]:
        """By shapes and by counters, of the tensor cores (or all, where they do none)."""
        found = []
        for work in (self.shapes, self.counters):
            tensor = sum(n for kind, n in work.flops.items() if not kind.endswith("_vector"))
            found.append(tensor or work.total_flops)
        return found[0], found[1]

    @property
    def flops_gap_pct(self) -> float:
        """Of the counters, as seen from the shapes."""
        shapes, counters = self.product_flops
        return 100 * (counters / shapes - 1) if shapes else 0.0

    @property
    def is_product(self) -> bool:
        """Matrix products and attention, whose FLOPs the sizes give exactly."""
        return any(word in self.name for word in ("mm", "attention"))

    @property
    def streams(self) -> bool:
        """Whether it moves far more than the L2 holds, each byte once."""
        return self.shapes.bytes >= STREAMING_BYTES


def call_of(row: dict[str, Any]) -> Call:
    """The operator as a trace would have recorded it, with its kernel's name."""
    name, _, causal = row["operator"].partition(" ")
    kernels = row.get("kernels", ())
    tile = attention_tile(kernels[0]["kernel"]) if kernels else None
    tf32 = row["type"] == "tf32"
    # A copy has two types: target, then source.
    kinds = ("float" if tf32 else row["type"]).split(" <- ")
    flags = [str(bool(causal))] * 10 if "attention" in name else []
    types = [kinds[min(i, len(kinds) - 1)] if size else "" for i, size in enumerate(row["sizes"])]
    return Call(name, row["sizes"], types, concrete=flags, tf32=tf32, tile=tile)


def rows_of(table: dict[str, Any]) -> list[Row]:
    """Operators that were counted. Raises KeyError where the table lacks them."""
    found = []
    for row in table["operators"]:
        shapes, counters, profiled = work_of(call_of(row)), Work({}, 0, 0), 0.0
        for kernel in row.get("kernels", ()):
            values = {name: value for name, value in kernel["metrics"].items() if value is not None}
            one = work_counted(Counted(kernel["kernel"], 0, 0, "9.0", values))
            flops = {
                kind: counters.flops.get(kind, 0.0) + one.flops.get(kind, 0.0)
                for kind in counters.flops | one.flops
            }
            read = counters.read_bytes + one.read_bytes
            counters = Work(flops, read, counters.write_bytes + one.write_bytes)
            profiled += values["gpu__time_duration.sum"]
        if shapes is None or not row.get("kernels"):
            continue
        sizes = " x ".join(str(tuple(s)).replace(" ", "") for s in row["sizes"] if s)
        detail, count = f"{sizes} {row['type']}", len(row["kernels"])
        time = row.get("time_ns", float("nan"))
        found.append(Row(row["operator"], detail, shapes, counters, time, profiled, count))
    return found


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--table", action="store_true", help="print each operator")
    parser.add_argument("--export", action="store_true", help="write the lab's h200.json")
    args = arguments(parser, TABLE)
    table = json.loads(TABLE.read_text())
    if args.export:
        names = ("about", "bytes_per_s", "flops_per_s")
        CEILINGS.write_text(json.dumps({name: table[name] for name in names}, indent=1) + "\n")
    rows = rows_of(table)
    if args.table:
        for row in rows:
            print(
                f"{row.name:44} {row.detail:60} flops {row.flops_gap_pct:+7.2f}%  read "
                f"{row.shapes.read_bytes / 1e6:9.1f} {row.counters.read_bytes / 1e6:9.1f} MB  "
                f"write {row.shapes.write_bytes / 1e6:9.1f} {row.counters.write_bytes / 1e6:9.1f}"
                f" MB  bytes {row.bytes_gap_pct:+7.2f}%  {row.kernels} kernels "
                f"{row.time_ns / 1e3:.1f} us"
            )
    where = made_by(table["about"])
    products = [abs(row.flops_gap_pct) for row in rows if row.is_product]
    causal = [abs(row.flops_gap_pct) for row in rows if " causal" in row.name]
    streams = [abs(row.bytes_gap_pct) for row in rows if row.streams]
    emit("lab.roofline_operators", len(rows), "operators", **where)
    peer = "Nsight Compute's counters"
    emit("lab.roofline_flops_gap_pct.worst", max(products), "%", GOAL_PCT, peer, n=len(products))
    if causal:
        name = "lab.roofline_flops_gap_pct.causal"
        emit(name, max(causal), "%", GOAL_PCT, peer, n=len(causal))
    emit("lab.roofline_bytes_gap_pct.worst", max(streams), "%", GOAL_PCT, peer, n=len(streams))
    emit("lab.roofline_bytes_gap_pct.median", median(streams), "%", GOAL_PCT, peer)
    sheet = roofline.ceilings_of("H200")
    assert sheet is not None
    for name, rate in table["bytes_per_s"].items():
        share = rate / sheet.bytes_per_s
        emit(f"lab.h200_{name}", rate / 1e12, "TB/s", peer="datasheet", ratio=share)
    for name, rate in table["flops_per_s"].items():
        share = rate / sheet.flops_per_s[name]
        emit(f"lab.h200_{name}", rate / 1e12, "TFLOP/s", peer="datasheet", ratio=share)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
