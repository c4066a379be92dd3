"""Errors of `lab predict` and `lab pressure` against launches timed on an H200.

Replays bench/h200/tables/lab_predict.npz: the model is fitted again, each launch is predicted by
a fit that has seen no launch of its kernel's family, and the errors stand beside those of the
published formulas. `--write` keeps the fit as the table that the package comes with.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from spanlite_analytics.lab.predict.features import H200
from spanlite_analytics.lab.predict.fit import FOLDS, SHORTEST_S, Measured, Score, fit
from spanlite_analytics.lab.predict.model import TABLE as FITTED
from spanlite_analytics.lab.predict.model import Model, fitted

from bench._predict_table import TABLE, read
from bench._replay import arguments, made_by, parser_of
from bench._report import emit

QUICK_FOLDS = 5


def main() -> int:
    parser = parser_of(__doc__, f"{QUICK_FOLDS} folds, not {FOLDS}")
    parser.add_argument("--write", action="store_true", help="keep the fit in the package")
    args = arguments(parser, TABLE)
    rows, columns, about = read()
    table, seconds, occupancy = fit(rows, QUICK_FOLDS if args.quick else FOLDS)
    where = made_by(about)
    table["about"] = where | {"clocks": about["clocks.sm"], "machine": _machine()}
    if args.write:
        FITTED.write_text(_pretty(table) + "\n")
        fitted.cache_clear()
    _emit_score("lab.predict_error_pct", occupancy, "published occupancy formula", where)
    _emit_score("lab.predict_time_error_pct", seconds, "roofline", where)
    emit("lab.predict_refit_difference_pct", _difference(rows, Model.read(table)), "%", 1)
    _emit_counter(columns)
    long = [row for row in rows if row.seconds >= SHORTEST_S]
    _print_families("occupancy", rows, occupancy)
    _print_families("time", long, seconds)
    return 0


def _print_families(what: str, rows: list[Measured], score: Score) -> None:
    """Median error of each family, to stderr."""
    families = np.array([row.family for row in rows])
    for name in np.unique(families):
        own = families == name
        median = (float(np.median(errors[own])) for errors in (score.error, score.baseline))
        print(
            "{} of {}: median error {:.0f} %, baseline {:.0f} %".format(what, name, *median),
            file=sys.stderr,
        )


def _machine() -> dict[str, Any]:
    named = {"sms": H200.sms, "clock_hz": H200.clock_hz, "l2_bytes": H200.l2_bytes}
    rates = {"l2_bytes_per_s": H200.l2_bytes_per_s, "dram_bytes_per_s": H200.dram_bytes_per_s}
    return named | rates | {"flops_per_s": H200.flops_per_s, "gap_s": H200.gap_s}


def _emit_score(metric: str, score: Score, peer: str, where: dict[str, Any]) -> None:
    found = score.summary()
    error, baseline = found["median_error_pct"], found["baseline_median_error_pct"]
    more = {
        "launches": found["launches"],
        "peer_value": baseline,
        "unfitted_value": found["unfitted_median_error_pct"],
        "p90": found["p90_error_pct"],
    }
    emit(f"{metric}.median", error, "%", None, peer, baseline / error, **more, **where)
    emit(f"{metric.replace('error', 'covered')}", found["covered_pct"], "%", 90)


def _difference(rows: list[Measured], again: Model) -> float:
    """Largest difference between the package's predictions and those of the new fit."""
    kept = fitted()
    worst = 0.0
    for row in rows[:: max(len(rows) // 300, 1)]:
        old, new = kept.predict(row.known), again.predict(row.known)
        worst = max(worst, abs(old.seconds.value / new.seconds.value - 1))
        worst = max(worst, abs(old.occupancy.value / new.occupancy.value - 1))
    return worst * 100


def _emit_counter(columns: dict[str, np.ndarray]) -> None:
    """The occupancy read in the kernel beside Nsight Compute's, of the same configurations."""
    counted = columns["ncu_warps_ppm"].astype(np.float64)
    both = counted > 0
    error = np.abs(columns["occupancy_ppm"][both] / counted[both] - 1) * 100
    peer = "ncu sm__warps_active"
    emit("lab.predict_counter_error_pct.median", float(np.median(error)), "%", None, peer)


def _pretty(table: dict[str, Any]) -> str:
    """JSON with a line for each list of numbers."""
    text = json.dumps(table, indent=1)
    lines: list[str] = []
    for line in text.splitlines():
        bare = line.strip().rstrip(",")
        inside = bool(lines) and lines[-1].count("[") > lines[-1].count("]")
        number = (
            bare.replace("e", "").replace("+", "").replace("-", "").replace(".", "").isdecimal()
        )
        if inside and (number or bare == "]"):
            lines[-1] += line.strip() + ("" if bare == "]" else " ")
        else:
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
