"""The lab's occupancy against the CUDA occupancy API's answers on an H200.

python -m bench.lab_occupancy [--quick]

Replays bench/h200/tables/lab_occupancy.npz, which `make lab-h200` measures. Exit code 1 where
that table is not there.
"""

from __future__ import annotations

import numpy as np
from spanlite.occupancy import occupancy

from bench._replay import arguments, made_by, parser_of
from bench._report import emit
from bench.h200._device import TABLES, load

TABLE = TABLES / "lab_occupancy.npz"
GOAL_CONFIGURATIONS = 10_000


def mismatches(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Places of the rows in which the API gave another number of blocks."""
    wide = {name: values.astype(np.int64) for name, values in columns.items()}
    ours = occupancy(
        "9.0",
        wide["threads"],
        wide["registers"],
        wide["static"],
        wide["dynamic"],
        carveout_percent=wide["carveout"],
        barriers=wide["barriers"],
        max_dynamic_shared_bytes=wide["max_dynamic"],
    )
    return np.flatnonzero(ours.blocks != wide["blocks"])


def main() -> int:
    arguments(parser_of(__doc__), TABLE)
    columns, about = load(TABLE)
    wrong = mismatches(columns)
    where = made_by(about)
    rows = len(columns["blocks"])
    emit("lab.occupancy_configs", rows, "configurations", GOAL_CONFIGURATIONS, **where)
    peer = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    emit("lab.occupancy_mismatches", len(wrong), "configurations", 0, peer)
    for place in wrong[:5]:
        print({name: int(v[place]) for name, v in columns.items() if len(v) == rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
