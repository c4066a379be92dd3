"""`spanlite lab scan FILE.yaml`: which configuration of a kernel is fastest?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spanlite.errors import UsageError

from spanlite_analytics.lab.frame import Progress, add_json_argument, print_json, print_table
from spanlite_analytics.lab.scan.scan import Done, scan, table
from spanlite_analytics.lab.scan.spec import OPERATORS, Spec, load
from spanlite_analytics.lab.scan.store import TABLE, Journal, write_table

FAILED = 1
THEORY = "none (theory)"

_HELP = f"""FILE.yaml names an operator ({", ".join(OPERATORS)}) or a kernel of
yours (a .cu file, or a Triton function), its parameters, constraints and how to search: see
docs/scan.md. Results go to --out: journal.jsonl as they come, results.parquet and heatmaps (.png,
heatmap.html) at the end.
A scan that was stopped goes on where it was when the same command is given again.

With --theory nothing runs: each configuration is compiled, and its registers, spills, shared memory
and occupancy are told. That needs the extra `lab`, and no GPU.

Exit code 1: no configuration could be built or run. 2: among others, one broke the GPU's context or
did not end within the deadline; the same command goes on after it.

examples:
  spanlite lab scan matmul.yaml --out scans/matmul
  spanlite lab scan matmul.yaml --theory --top 20
"""


class ScanCommand:
    """Runs or resumes a scan and shows its best."""

    summary = "Which parameters make a kernel fastest: grid, random or Bayesian scan"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.epilog = _HELP
        parser.add_argument("file", type=Path, metavar="FILE.yaml", help="what to scan")
        parser.add_argument(
            "--out",
            type=Path,
            metavar="DIR",
            help="folder for results (default: FILE-scan, or -theory)",
        )
        parser.add_argument("--theory", action="store_true", help="compile alone; no GPU")
        parser.add_argument("--top", type=int, metavar="K", help="show so many (the file's)")
        parser.add_argument("--jobs", type=int, metavar="N", help="compilers at once (all cores)")
        add_json_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0, or 1 where no configuration worked."""
        if (args.top is not None and args.top < 1) or (args.jobs is not None and args.jobs < 1):
            raise UsageError("--top and --jobs must be 1 or more")
        spec = load(args.file)
        if args.theory and spec.kernel.is_triton:
            raise UsageError("--theory: Triton compiles on a GPU's machine alone; scan there")
        runner = None
        if not args.theory:
            from spanlite_analytics.lab.scan.runner import runner_for

            runner = runner_for(spec)
        gpu = runner.gpu if runner else THEORY
        out = args.out or Path(f"{args.file.stem}-{'scan' if runner else 'theory'}")
        journal = Journal(out, spec.fingerprint, gpu)
        try:
            with Progress("scan") as progress:
                told = progress.told
                done = scan(spec, journal, runner, lambda n, of, row: told(n, of), args.jobs)
        except KeyboardInterrupt:
            print(f"\nspanlite: stopped after {len(journal.rows)} configurations; the same command "
                  "goes on from there", file=sys.stderr)  # fmt: skip
            raise
        finally:
            journal.close()
        rows = table(spec, journal)
        about = {"name": spec.name, "gpu": gpu, "fingerprint": spec.fingerprint, "arch": spec.arch}
        _write(spec, rows, out, about)
        _show(args, spec, rows, done, gpu, out)
        return 0 if any(row["occupancy"] is not None for row in rows) else FAILED


def _write(spec: Spec, rows: list[dict[str, Any]], out: Path, about: dict[str, str]) -> None:
    from spanlite_analytics.lab.scan.plots import grids, write_html, write_png

    write_table(rows, out / TABLE, about)
    made = grids(spec, rows)
    for grid in made:
        write_png(grid, out / f"heatmap-{grid.measure.column}.png", spec.name)
    words = f"{len(rows)} configurations, GPU: {about['gpu']}, {spec.arch}"
    write_html(made, rows[: spec.top], out / "heatmap.html", f"Scan of {spec.name}", words)


def _show(
    args: argparse.Namespace,
    spec: Spec,
    rows: list[dict[str, Any]],
    done: Done,
    gpu: str,
    out: Path,
) -> None:
    top = rows[: args.top or spec.top]
    failed = [row for row in rows if row["error"]]
    if args.json:
        print_json(
            {
                "name": spec.name, "gpu": gpu, "configurations": len(rows), "failed": len(failed),
                "kept": done.kept, "new": done.new, "out": str(out), "top": top,
            }
        )  # fmt: skip
        return
    shown = [row for row in top if not row["error"]]
    print_table(
        *_columns(spec, shown), f"{spec.name} on {gpu}: the best {len(shown)} of {len(rows)}"
    )
    tied = sum(row["rank"] == 1 for row in rows)
    if tied > 1:
        print(f"{tied} configurations are within noise of the fastest: any of them will do")
    if failed:
        words = failed[0]["error"].splitlines()[0]
        print(f"{len(failed)} failed, as {_named(spec, failed[0])}: {words}")
    if done.kept:
        print(f"{done.kept} were known from an earlier run, {done.new} are new")
    print(f"all of them: {out / TABLE}, {out / 'heatmap.html'}")


def _named(spec: Spec, row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {row[name]}" for name in spec.parameters)


def _columns(spec: Spec, rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    varied = [name for name, values in spec.parameters.items() if len(values) > 1]
    heads = {
        "rank": "rank", **{name: name for name in varied},
        "time": "time us", "noise": "+- us", "tflops": "TFLOP/s", "gbytes_per_s": "GB/s",
        "occupancy": "occupancy %", "registers": "registers", "spill_bytes": "spill B",
        "shared_bytes": "shared B", "sm_mhz": "SM MHz", "throttled": "throttled",
    }  # fmt: skip
    lines = [
        row
        | {
            "time": row["median_ns"] / 1e3 if row["median_ns"] else None,
            "noise": row["noise_ns"] / 1e3 if row["noise_ns"] else None,
            "occupancy": 100 * row["occupancy"] if row["occupancy"] is not None else None,
        }
        for row in rows
    ]
    used = [key for key in heads if any(line[key] is not None for line in lines)]
    return [heads[key] for key in used], [[line[key] for key in used] for line in lines]


command = ScanCommand()
