"""The lab's bank model against Nsight Compute's counters on an H200.

python -m bench.lab_banks [--quick]

Replays bench/h200/tables/lab_banks.npz, which `make lab-h200` measures. Exit code 1 where that
table is not there.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
from spanlite_analytics.lab.banks import Access, ideal_wavefronts, wavefronts
from spanlite_analytics.lab.banks.model import DEFAULT_RULES, Rules

from bench._replay import arguments, made_by, parser_of
from bench._report import emit
from bench.h200._device import TABLES, load

TABLE = TABLES / "lab_banks.npz"
#: A warp of each kernel has one shared wavefront that is none of its instructions'.
LAUNCH_WAVEFRONTS = 1


def access_of(operation: str) -> Access:
    """`load 8 B` or `ldmatrix.x4`."""
    if "matrix" in operation:
        kind, _, count = operation.partition(".x")
        return Access(kind, 16, int(count))  # type: ignore[arg-type]
    kind, width, _ = operation.split()
    return Access(kind, int(width))  # type: ignore[arg-type]


def compare(
    columns: dict[str, np.ndarray], about: dict[str, Any], rules: Rules = DEFAULT_RULES
) -> dict[str, np.ndarray]:
    """Each pattern's wavefronts and conflicts: the model's and the counters', for one access."""
    lanes = columns["active"].astype(np.int64)[:, None] >> np.arange(32) & 1 == 1
    rows = len(lanes)
    model, ideal = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for number, operation in enumerate(about["operations"]):
        chosen = np.flatnonzero(columns["operation"] == number)
        if chosen.size:
            given = (access_of(operation), columns["address"][chosen], lanes[chosen])
            model[chosen] = wavefronts(*given, rules=rules)
            ideal[chosen] = ideal_wavefronts(*given, rules=rules)
    counted = {k: v.astype(np.int64) / about["repeats"] for k, v in columns.items() if _counts(k)}
    names = np.array(about["operations"])[columns["operation"]]
    kind = np.where(np.char.startswith(names, "load"), "load", "matrix")
    kind = np.where(np.char.startswith(names, "store"), "store", kind)
    total = counted["wavefronts"] - LAUNCH_WAVEFRONTS / about["repeats"]
    fronts = np.where(kind == "load", counted["wavefronts_load"], total)
    fronts = np.where(kind == "store", counted["wavefronts_store"], fronts)
    conflicts = np.where(kind == "load", counted["conflicts_load"], counted["conflicts"])
    conflicts = np.where(kind == "store", counted["conflicts_store"], conflicts)
    return {
        "model": model,
        "ideal": ideal,
        "wavefronts": fronts,
        "conflicts": conflicts,
        "operation": names,
        "wrong": (model != fronts) | (model - ideal != conflicts),
    }


def _counts(name: str) -> bool:
    return name.startswith(("wavefronts", "conflicts"))


def main() -> int:
    arguments(parser_of(__doc__), TABLE)
    columns, about = load(TABLE)
    got = compare(columns, about)
    wrong = np.flatnonzero(got["wrong"])
    where = made_by(about)
    emit("lab.bank_patterns", len(got["model"]), "patterns", **where)
    emit("lab.bank_mismatches", len(wrong), "patterns", 0, "ncu l1tex__data_bank_conflicts")
    families = Counter((str(columns["family"][i]), str(got["operation"][i])) for i in wrong)
    for (family, operation), count in families.most_common():
        place = next(i for i in wrong if columns["family"][i] == family)
        seen = {k: float(got[k][place]) for k in ("model", "ideal", "wavefronts", "conflicts")}
        print(f"{count} of {family}, {operation}: {seen}", file=sys.stderr)
    if len(wrong):
        _print_variants(columns, about)
    return 0


def _print_variants(columns: dict[str, np.ndarray], about: dict[str, Any]) -> None:
    """Which of the open rules would fit better."""
    for by_half, stores in product((False, True), repeat=2):
        rules = Rules(by_half, stores)
        got = compare(columns, about, rules)
        fronts = int((got["model"] != got["wavefronts"]).sum())
        print(f"{rules}: {got['wrong'].sum()} wrong, {fronts} in wavefronts", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
