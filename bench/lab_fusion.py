"""Is the chosen split and tile the best measured one? The lab's model against an H200's times.

python -m bench.lab_fusion [--quick] [--table] [--export]

Replays bench/h200/tables/lab_fusion.npz, which `make lab-h200` measures. A shape's gap is the
measured time of the way that the model chose over the least measured time, less one. The
model's constants and corrections come from the table; the figures without `.fitted` are of
layers held out: two of sixteen at a time, with every token count and both chains, are predicted
from the other fourteen. --export fits anew and writes the lab's h200.json. Exit code 1 where the
table is not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from spanlite_analytics.lab import fusion
from spanlite_analytics.lab.fusion.model import Model, allowed, choose, fit
from spanlite_analytics.lab.fusion.table import Table, from_columns, to_json
from spanlite_analytics.lab.fusion.tiles import registers, shared_bytes

from bench._replay import arguments, made_by, parser_of
from bench._report import emit
from bench.h200._device import TABLES, load

TABLE = TABLES / "lab_fusion.npz"
PACKAGED = Path(fusion.__file__).parent / "h200.json"
GOAL_PCT = 3
FOLDS = 8


def read() -> Table:
    """The measured table."""
    return from_columns(*load(TABLE))


def ours(table: Table) -> np.ndarray:
    """(cases, ways): what may be chosen: measured, and not torch's own operators."""
    mine = np.array([way.split != "torch" for way in table.ways])
    return ~np.isnan(table.time_ns) & mine


def gaps(table: Table, chosen: np.ndarray) -> np.ndarray:
    """Per case, in percent: the chosen way's measured time over the best's."""
    best = np.where(ours(table), table.time_ns, np.inf).min(1)
    return 100 * (table.time_ns[np.arange(len(table)), chosen] / best - 1)


def split_gaps(table: Table, chosen: np.ndarray) -> np.ndarray:
    """As `gaps`, but each split with its best tile: of the choice of split alone."""
    times = np.where(ours(table), table.time_ns, np.inf)
    splits = np.array([way.split for way in table.ways])
    same = splits[chosen][:, None] == splits[None, :]
    return 100 * (np.where(same, times, np.inf).min(1) / times.min(1) - 1)


def predicted(model: Model, table: Table) -> np.ndarray:
    """(cases, ways) ns."""
    return model.predict(table.chain, table.shape)[0]


def folds(table: Table) -> Iterator[np.ndarray]:
    """The cases of each fold: all of some layers (hidden, out), two of sixteen at a time."""
    _, layer = np.unique(table.shape[:, 1:], axis=0, return_inverse=True)
    for number in range(FOLDS):
        yield layer.ravel() % FOLDS == number


def held_out(table: Table) -> np.ndarray:
    """(cases, ways) ns, each fold predicted from the others."""
    times = np.full(table.time_ns.shape, np.nan)
    for mine in folds(table):
        rest = table.rows(~mine)
        times[mine] = predicted(Model(fit(rest), rest), table.rows(mine))
    return times


def chosen_of(table: Table, times: np.ndarray) -> np.ndarray:
    """What the model chooses among what was measured."""
    return choose(times, table.ways, allowed(table.ways, table.shape) & ours(table))


def report(table: Table, full: np.ndarray, held: np.ndarray) -> None:
    """Figures, one a line."""
    peer = "best measured way"
    about = made_by(table.about)
    emit("lab.fusion_shapes", len(table), "shapes", **about)
    for label, times in (("", held), (".fitted", full)):
        chosen = chosen_of(table, times)
        gap, split = gaps(table, chosen), split_gaps(table, chosen)
        emit(f"lab.fusion_gap_pct{label}", float(np.median(gap)), "%", GOAL_PCT, peer)
        emit(f"lab.fusion_gap_pct{label}.worst", float(gap.max()), "%", GOAL_PCT, peer)
        emit(f"lab.fusion_gap_pct{label}.within_goal", float((gap <= GOAL_PCT).mean()), "share")
        emit(f"lab.fusion_split_gap_pct{label}.worst", float(split.max()), "%", GOAL_PCT, peer)
        within = float((split <= GOAL_PCT).mean())
        emit(f"lab.fusion_split_gap_pct{label}.within_goal", within, "share")
    chosen, rows = chosen_of(table, held), np.arange(len(table))
    took = table.time_ns[rows, chosen]
    for label, place in (
        ("unfused", table.place("unfused")),
        ("static", table.place("all", table.static)),
        ("torch", table.place("torch")),
    ):
        ratio = table.time_ns[:, place] / took
        mean = float(np.exp(np.nanmean(np.log(ratio))))
        worst = float(np.nanmin(ratio))
        emit(f"lab.fusion_speedup.{label}", mean, "x", peer=label, ratio=mean, worst=worst)
    there = ours(table)
    error = 100 * np.abs(held[there] / table.time_ns[there] - 1)
    emit("lab.fusion_time_error_pct.median", float(np.median(error)), "%")


def print_resources(table: Table) -> None:
    """Registers and shared memory: the model's against the compiler's."""
    gap_registers, gap_shared = [], []
    for way in table.ways:
        for chain in range(len(table.chains)):
            got = table.compiled.get((way.name, chain))
            if got is None or way.tile is None:
                continue
            norm = table.chains[chain].split(",")[0] if way.split in ("all", "prologue") else ""
            gap_registers.append(abs(registers(way.tile, norm) / got[0] - 1))
            gap_shared.append(abs(shared_bytes(way.tile) / got[1] - 1))
    peer = "the compiler"
    for name, found in (("registers", gap_registers), ("shared", gap_shared)):
        emit(f"lab.fusion_{name}_error_pct.median", 100 * float(np.median(found)), "%", peer=peer)


def print_table(table: Table, times: np.ndarray) -> None:
    """Each shape: what was chosen, what was best."""
    chosen = chosen_of(table, times)
    best = np.where(ours(table), table.time_ns, np.inf).argmin(1)
    gap, unfused = gaps(table, chosen), table.time_ns[:, table.place("unfused")]
    static = table.time_ns[:, table.place("all", table.static)]
    for row in range(len(table)):
        tokens, hidden, out = table.shape[row]
        print(
            f"{table.chains[table.chain[row]]:28} {tokens:5} {hidden:5} {out:6}  unfused "
            f"{unfused[row] / 1e3:8.2f}  static {static[row] / 1e3:8.2f}  chosen "
            f"{table.time_ns[row, chosen[row]] / 1e3:8.2f} us {table.ways[chosen[row]].name:30} "
            f"best {table.ways[best[row]].name:30} {gap[row]:5.1f}%"
        )


def export(table: Table) -> None:
    """Write what the package carries."""
    found = to_json(table)
    found["about"] = table.about | {"constants": np.round(fit(table), 6).tolist()}
    text = json.dumps(found, separators=(",", ":"))
    PACKAGED.write_text(text.replace('],"', '],\n"') + "\n")


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--table", action="store_true", help="print each shape, held out")
    parser.add_argument("--export", action="store_true", help="fit, and write the lab's h200.json")
    args = arguments(parser, TABLE)
    table = read()
    if args.export:
        export(table)
    held = held_out(table)
    if args.table:
        print_table(table, held)
    report(table, predicted(Model(fit(table), table), table), held)
    print_resources(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
