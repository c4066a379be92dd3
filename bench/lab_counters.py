"""Our range profiler's counters beside Nsight Compute's, of the same kernels on an H200.

python -m bench.lab_counters [--quick] [--table]

Replays bench/h200/tables/lab_counters.csv.gz, which `spanlite counters` wrote, and
lab_beforeafter_ncu.csv.gz; `make lab-h200` measures both. Counts of instructions and requests must
be equal; times and shares of a unit's peak differ from run to run. Bytes of device memory are left
out: `ncu` empties the caches before each launch, ours does not. --table prints each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from statistics import median

from spanlite_analytics.lab.counters import Counted, of_kernel, read_ncu

from bench._replay import arguments, made_by, parser_of
from bench._report import emit
from bench.h200._device import TABLES

OURS, ABOUT = TABLES / "lab_counters.csv.gz", TABLES / "lab_counters.json"
PROFILERS = TABLES / "lab_beforeafter_ncu.csv.gz"
#: What the code alone decides.
EXACT = re.compile(r"launch__registers|inst_executed|_t_requests_")
#: What is no counter, or not of the kernel alone.
LEFT_OUT = re.compile(r"^(ID|CC)$|launch__(?!registers)|dram")
PEER = "Nsight Compute"
#: Shares of a peak below this are compared as they are, not relative to each other.
LEAST_PCT = 5.0


def pairs() -> Iterator[tuple[Counted, Counted]]:
    """Kernels that both have counted: ours, the profiler's."""
    ncu = read_ncu(PROFILERS)
    for row in read_ncu(OURS):
        other = of_kernel([r for r in ncu if r.kernel == row.kernel], row.kernel, row.launch())
        if other is not None:
            yield row, other


def gaps(ours: Counted, other: Counted) -> dict[str, float]:
    """By metric, in percent of the profiler's."""
    found = {}
    for name in sorted(ours.values.keys() & other.values.keys()):
        mine, theirs = ours.values[name], other.values[name]
        if LEFT_OUT.search(name) or ("pct" in name and theirs < LEAST_PCT):
            continue
        found[name] = 100 * abs(mine / theirs - 1) if theirs else (0.0 if not mine else 100.0)
    return found


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--table", action="store_true", help="print each kernel's gaps")
    args = arguments(parser, OURS)
    exact, others, kernels = [], {}, 0
    for ours, other in pairs():
        kernels += 1
        found = gaps(ours, other)
        if args.table:
            print(ours.kernel, json.dumps({name: round(gap, 3) for name, gap in found.items()}))
        exact += [gap for name, gap in found.items() if EXACT.search(name)]
        for name, gap in found.items():
            if not EXACT.search(name):
                others.setdefault(name, []).append(gap)
    emit("lab.counters_kernels", kernels, "kernels", **made_by(json.loads(ABOUT.read_text())))
    emit("lab.counters_differ", sum(gap > 0 for gap in exact), "counts", 0, PEER, n=len(exact))
    shares = [gap for name, each in others.items() if "pct" in name for gap in each]
    emit("lab.counters_share_gap_pct.median", median(shares), "%", peer=PEER, n=len(shares))
    emit("lab.counters_share_gap_pct.worst", max(shares), "%", peer=PEER)
    times = others["gpu__time_duration.sum"]
    emit("lab.counters_time_gap_pct.worst", max(times), "%", peer=PEER)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
