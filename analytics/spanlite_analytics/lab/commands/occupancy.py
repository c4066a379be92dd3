"""`spanlite lab occupancy`: how full an SM is with a kernel, and why not fuller."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from spanlite.archive.layout import Archive
from spanlite.errors import UsageError
from spanlite.occupancy import Limiter, SmLimits
from spanlite.settings import add_archive_argument, archive_of
from spanlite.timewindow import add_window_arguments, window_of

from spanlite_analytics.extent import window_words
from spanlite_analytics.lab import occupancy as lab
from spanlite_analytics.lab.frame import add_json_argument, print_json, print_table
from spanlite_analytics.lab.launches import gpu_of, launches
from spanlite_analytics.lab.occupancy import Launch
from spanlite_analytics.words import time_words

NOT_FOUND = 1
#: CUDA's largest grid.
MOST_BLOCKS = (2**31 - 1) * 65_535 * 65_535
_MOST_DIGITS = 10

_HELP = """Theoretical occupancy: the warps that an SM can hold of a kernel, by CUDA's own rules.
More is not always faster: a kernel whose waits are hidden already gains nothing by it.

A launch is given by hand (--block ..., registers and static shared memory also by --cubin), or
taken from an archive (--kernel or --archive): one row a configuration, the most time first.

Shared memory is asked in bytes a block; the 1 KiB that the driver takes of each block from
compute capability 8.0 on is added here. Without --carveout the SM is taken to have all the
shared memory it can have, as the CUDA occupancy API does.

Exit code 1: the archive has no such kernel.

examples:
  spanlite lab occupancy --block 384 --registers 168 --shared 219364 --cc 9.0 --grid 126
  spanlite lab occupancy --archive data/archive --kernel nvjet --last 1h
"""


@dataclass(frozen=True, slots=True)
class Named:
    """A launch, what it is called, and where it runs."""

    name: str
    launch: Launch
    sm: SmLimits
    sms: int
    assumed: bool
    launches: float = 0
    total_ns: float = 0


class OccupancyCommand:
    """Prints occupancy, limits and the nearest changes."""

    summary = "How full a kernel's launch makes an SM, what limits it, and the nearest better one"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.epilog = _HELP
        by_hand = parser.add_argument_group("launch")
        by_hand.add_argument("--block", metavar="N|XxYxZ", help="threads of a block")
        by_hand.add_argument("--registers", type=int, metavar="N", help="of a thread")
        by_hand.add_argument(
            "--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory"
        )
        by_hand.add_argument(
            "--static-shared", type=int, default=0, metavar="BYTES", help="static shared memory"
        )
        by_hand.add_argument("--cubin", metavar="FILE", help="binary that holds --kernel")
        by_hand.add_argument("--grid", metavar="N|XxYxZ", help="blocks of the grid")
        by_hand.add_argument("--cluster", type=int, default=1, metavar="N", help="blocks a cluster")
        by_hand.add_argument("--barriers", type=int, default=1, help="named barriers (default 1)")
        by_hand.add_argument(
            "--carveout", type=int, default=-1, metavar="PERCENT", help="preferred shared memory"
        )
        gpu = parser.add_argument_group("GPU")
        gpu.add_argument(
            "--cc", metavar="M.N", help="compute capability (default: the trace's GPU)"
        )
        gpu.add_argument("--gpu", default="", metavar="NAME", help="such as H100 or A100")
        gpu.add_argument("--sms", type=int, metavar="N", help="SMs of the GPU")
        parser.add_argument("--kernel", metavar="TEXT", help="part of the kernel's name")
        parser.add_argument("--limit", type=int, default=20, metavar="N", help="rows (default 20)")
        add_json_argument(parser)
        add_archive_argument(parser)
        add_window_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0, or 1 where the archive has no such kernel."""
        if args.block:
            found = [_by_hand(args)]
        elif args.archive or args.kernel:
            found = _from_archive(args)
        else:
            raise UsageError("give --block and --registers, or --kernel to look into an archive")
        if not found:
            where = window_words(Archive.open(archive_of(args)), window_of(args))
            what = f"no kernel with a launch configuration and '{args.kernel or ''}' in its name"
            print(what + where)
            return NOT_FOUND
        if args.json:
            print_json([as_json(one) for one in found])
        elif len(found) == 1:
            _print_one(found[0])
        else:
            _print_many(found)
        return 0


def size_of(text: str, what: str) -> int:
    """`256` or `32x8x1` as a number. Raises UsageError."""
    parts = text.lower().split("x")
    short = all(part.isdecimal() and len(part) <= _MOST_DIGITS for part in parts)
    product = math.prod(map(int, parts)) if short else 0
    if not 1 <= product <= MOST_BLOCKS:
        shown = text if len(text) < 60 else f"{text[:60]}..."
        raise UsageError(f"{what} '{shown}' is not a number or XxYxZ that CUDA can launch")
    return product


def _by_hand(args: argparse.Namespace) -> Named:
    name, registers, static = _compiled(args)
    launch = Launch(
        size_of(args.block, "--block"),
        registers,
        static,
        args.shared,
        args.barriers,
        args.carveout,
        size_of(args.grid, "--grid") if args.grid else 0,
        args.cluster,
    )
    return Named(name, launch, *gpu_of(args.gpu, args.cc, args.sms))


def _compiled(args: argparse.Namespace) -> tuple[str, int, int]:
    """The kernel's name, registers and static shared memory, from a binary or the flags."""
    if not args.cubin:
        if args.registers is None:
            raise UsageError("--registers is missing; `ptxas -v` or a launch record says how many")
        return "", args.registers, args.static_shared
    from spanlite_analytics.lab.explain import read_resources
    from spanlite_analytics.lab.toolchain import read_bytes

    found = read_resources(read_bytes(Path(args.cubin)), args.kernel or "")
    if len(found) != 1:
        names = ", ".join(one.name for one in found[:5]) or "none"
        raise UsageError(f"--kernel must name one kernel of {args.cubin}; it names {names}")
    registers = found[0].registers if args.registers is None else args.registers
    return found[0].name, registers, found[0].shared_bytes + args.static_shared


def _from_archive(args: argparse.Namespace) -> list[Named]:
    if args.limit < 1:
        raise UsageError("--limit must be 1 or more")
    archive = Archive.open(archive_of(args))
    return [
        Named(
            seen.name,
            replace(seen.launch, barriers=args.barriers, carveout_percent=args.carveout),
            *gpu_of(args.gpu or seen.gpu, args.cc, args.sms),
            seen.launches,
            seen.total_ns,
        )
        for seen in launches(archive, window_of(args), args.kernel or "", args.limit)
    ]


def as_json(one: Named) -> dict[str, Any]:
    """All that is known about a launch, in plain types."""
    got = lab.on(one.sm, one.launch)
    blocks = int(got.blocks)
    grid = lab.grid_on(one.sm, one.launch, one.sms)
    return {
        "kernel": one.name or None,
        "compute_capability": one.sm.name,
        "sms": one.sms,
        "gpu_assumed": one.assumed,
        "launches": one.launches or None,
        "total_ns": one.total_ns or None,
        "launch": asdict(one.launch),
        "occupancy": got.row(),
        "grid": asdict(grid) if grid else None,
        "one_more_block_needs": lab.needs(one.sm, one.launch, blocks + 1),
        "spare": lab.spare(one.sm, one.launch),
        "steps": [asdict(step) for step in lab.steps(one.sm, one.launch)],
        "best_block_size": asdict(lab.best_block_size(one.sm, one.launch)),
    }


def _print_many(found: list[Named]) -> None:
    rows = []
    for one in found:
        got, launch = lab.on(one.sm, one.launch), one.launch
        grid = lab.grid_on(one.sm, launch, one.sms)
        rows.append(
            (
                round(one.launches),
                time_words(one.total_ns),
                launch.grid_blocks,
                launch.threads,
                launch.registers,
                launch.shared_bytes,
                int(got.blocks),
                f"{float(got.fraction):.1%}",
                Limiter(int(got.limiters)).words,
                grid and grid.waves,
                one.name,
            )
        )
    heads = "launches time grid block registers shared blocks/SM occupancy limited_by waves kernel"
    print_table([head.replace("_", " ") for head in heads.split()], rows)
    _print_assumed(found)


def _print_assumed(found: list[Named]) -> None:
    if any(one.assumed for one in found):
        first = next(one for one in found if one.assumed)
        print(
            f"taken as compute capability {first.sm.name} with {first.sms} SMs; "
            "--cc, --gpu and --sms say otherwise"
        )


def _print_one(one: Named) -> None:
    sm, launch = one.sm, one.launch
    got = lab.on(sm, launch)
    row = got.row()
    if one.name:
        print(one.name)
    print(
        f"{row['blocks']} blocks, {row['warps']} of {sm.max_warps} warps: occupancy "
        f"{row['fraction']:.1%}, limited by {row['limiters']} (compute capability {sm.name})"
    )
    if row["blocks"] == 0:
        print("Such a launch fails: one block alone is too large.")
    print()
    print_table(("resource", "a block takes", "the SM has", "blocks"), _resources(one, row))
    print()
    _print_grid(one)
    for line in advice(one):
        print(line)
    _print_assumed([one])


def _resources(one: Named, row: dict[str, Any]) -> list[tuple[str, Any, Any, Any]]:
    sm = one.sm
    rows: list[tuple[str, Any, Any, Any]] = [
        ("warps", row["warps_per_block"], sm.max_warps, row["blocks_by_warps"]),
        ("registers", row["registers_per_block"], sm.registers, row["blocks_by_registers"]),
        (
            "shared memory, bytes",
            row["shared_per_block_bytes"],
            row["carveout_bytes"],
            row["blocks_by_shared"],
        ),
        ("blocks", 1, sm.max_blocks, row["blocks_by_blocks"]),
    ]
    if sm.barriers:
        rows.append(("barriers", one.launch.barriers, sm.barriers, row["blocks_by_barriers"]))
    # A resource that a block takes nothing of sets no limit.
    return [r if r[1] else (*r[:3], None) for r in rows]


def _print_grid(one: Named) -> None:
    grid = lab.grid_on(one.sm, one.launch, one.sms)
    if grid:
        print(
            f"grid: {one.launch.grid_blocks:,} blocks on {grid.sms} SMs that hold "
            f"{grid.capacity:,}: {grid.waves:.2f} waves, {grid.used_fraction:.0%} of their slots "
            f"used; {grid.first_wave_fraction:.1%} of the GPU's warps in the first wave"
        )
    if one.launch.cluster_blocks > 1:
        most = lab.clusters_at_most(one.sm, one.launch, one.sms)
        print(
            f"clusters of {one.launch.cluster_blocks}: at most {most} at once; how many exactly "
            "depends on the SMs of each GPC of this chip"
        )


def advice(one: Named) -> list[str]:
    """What would change the occupancy, a line each; the nearest first."""
    sm, launch = one.sm, one.launch
    got = lab.on(sm, launch)
    if int(got.warps) >= sm.max_warps:
        return ["The SM is full: no change can add a warp."]
    lines = [_needs_line(sm, launch, int(got.blocks) + 1)]
    for step in lab.steps(sm, launch):
        now = _now(launch, step.what)
        lines.append(
            f"{step.what} {now:,} -> {step.value:,}: {step.blocks} blocks, {step.warps} warps, "
            f"{step.fraction:.1%}"
        )
    best = lab.best_block_size(sm, launch)
    if best.warps > int(got.warps):
        lines.append(f"best block size: {best.value}, {best.warps} warps, {best.fraction:.1%}")
    room = lab.spare(sm, launch)
    if room and int(got.blocks):
        lines.append(
            f"free at this occupancy: {room['registers']} registers a thread, "
            f"{room['shared_bytes']:,} bytes of shared memory a block"
        )
    return lines


def _now(launch: Launch, what: str) -> int:
    return {
        "block size": launch.threads,
        "registers": launch.registers,
        "dynamic shared memory": launch.dynamic_shared_bytes,
        "carve-out": launch.carveout_percent,
    }[what]


def _needs_line(sm: SmLimits, launch: Launch, blocks: int) -> str:
    most = lab.needs(sm, launch, blocks)
    if not most:
        return f"{blocks} blocks of {launch.threads} threads are more than an SM ever holds"
    now = {
        "threads": launch.threads,
        "registers": launch.registers,
        "shared_bytes": launch.shared_bytes,
        "barriers": launch.barriers,
    }
    words = {"shared_bytes": "bytes of shared memory", "registers": "registers a thread"}
    over = [
        f"at most {limit:,} {words.get(key, key)} (now {now[key]:,})"
        for key, limit in most.items()
        if now[key] > limit
    ]
    # Only a carve-out can be in the way of a launch that takes little enough of everything.
    return f"{blocks} blocks an SM need " + (" and ".join(over) or "a larger carve-out")


command = OccupancyCommand()
