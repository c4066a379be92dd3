"""The table of timed launches as what `lab predict` is fitted on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from spanlite_analytics.lab.occupancy import Launch
from spanlite_analytics.lab.predict.features import H200, SECTOR_BYTES, Query, know
from spanlite_analytics.lab.predict.fit import Measured
from spanlite_analytics.lab.predict.work import Work, grid_loop, work_of
from spanlite_analytics.lab.pressure.code import read_code
from spanlite_analytics.lab.pressure.pipes import chip_of

from bench.h200._device import load
from bench.h200.lab_pressure_table import unpacked

TABLE = Path(__file__).parent / "h200" / "tables" / "lab_predict.npz"
FLOAT_BYTES = 4


def works_of(columns: dict[str, np.ndarray], about: dict[str, Any]) -> dict[tuple[int, str], Work]:
    """What each kernel's loop does, by its register cap and name."""
    chip = chip_of("9.0")
    return {
        (cap, routine.name): work_of(grid_loop(routine), chip)
        for cap, cubin in unpacked(columns["cubins"], about["cubins"]).items()
        for routine in read_code(cubin, lines=False)
    }


def queries_of(columns: dict[str, np.ndarray], about: dict[str, Any]) -> list[Query]:
    """One for each row."""
    works = works_of(columns, about)
    return [_query(row, about, works) for row in _rows(columns)]


def _rows(columns: dict[str, np.ndarray]) -> list[dict[str, int]]:
    names = [name for name in columns if name != "cubins"]
    return [
        dict(zip(names, map(int, row), strict=True))
        for row in zip(*(columns[name] for name in names), strict=True)
    ]


def _query(row: dict[str, int], about: dict[str, Any], works: dict[tuple[int, str], Work]) -> Query:
    known = about["known"][row["family"]]
    work = works[row["cap"], f"{about['families'][row['family']]}_u{row['unroll']}"]
    arrays = 2 if work.stores else 1
    floats = min(row["elements"] * known["width"], row["footprint_floats"])
    return Query(
        Launch(
            row["block"],
            row["registers"],
            row["static_bytes"],
            row["dynamic_bytes"],
            grid_blocks=row["grid"],
        ),
        work,
        row["unroll"],
        row["elements"],
        floats * FLOAT_BYTES * arrays,
        bool(known["random"]) and known["bytes_read"] >= SECTOR_BYTES,
        bool(known["random"]) and known["bytes_written"] >= SECTOR_BYTES,
        known["bytes_read"] + known["bytes_written"],
    )


def measured(columns: dict[str, np.ndarray], about: dict[str, Any]) -> list[Measured]:
    """Rows with what was known before and measured after."""
    made = []
    for row, query in zip(_rows(columns), queries_of(columns, about), strict=True):
        known = know(query, H200)
        if known is None or known.blocks != row["blocks"]:
            raise RuntimeError(f"row {row['config']}: the SM held {row['blocks']} blocks")
        family = about["families"][row["family"]]
        made.append(Measured(family, known, row["time_ns"] * 1e-9, row["occupancy_ppm"] * 1e-6))
    return made


def read() -> tuple[list[Measured], dict[str, np.ndarray], dict[str, Any]]:
    """The committed table."""
    columns, about = load(TABLE)
    return measured(columns, about), columns, about
