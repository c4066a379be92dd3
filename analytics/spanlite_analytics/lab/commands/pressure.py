"""`spanlite lab pressure`: what a kernel's registers cost, and what fewer would bring."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spanlite.errors import UsageError

from spanlite_analytics.lab.frame import Progress, add_json_argument, print_json, print_table
from spanlite_analytics.lab.launches import gpu_of
from spanlite_analytics.lab.toolchain import DEFAULT_ARCH, Compiler

if TYPE_CHECKING:
    from spanlite_analytics.lab.audit.inputs import Unit
    from spanlite_analytics.lab.pressure.analysis import Kernel, Row, Setting

_HELP = """Reads the machine code of a kernel: where most registers are alive, what its main loop
is made of, and what is spilled. A model of the SM's schedulers says how fast that loop runs with
the warps that fit; the table shows it for other register counts, really compiled where there is
source or PTX. No GPU is needed.

The model knows latencies, not addresses: accesses are taken as coalesced and free of bank
conflicts unless you say otherwise, global loads as found where --memory says. docs/pressure.md
says how far it is right.

examples:
  spanlite lab pressure kernel.cu --block 256
  spanlite lab pressure kernel.cubin --kernel gemm --block 384 --shared 98304 --memory l2
"""


class PressureCommand:
    """Registers, loop, table and advice for each kernel."""

    summary = "Registers, spills and instruction mix of a kernel, and the FLOP/s they allow"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.epilog = _HELP
        parser.add_argument("path", type=Path, help="a .cu, .ptx, .cubin, .fatbin or .so file")
        parser.add_argument("--kernel", default="", metavar="TEXT", help="part of the name")
        parser.add_argument(
            "--block", type=int, default=256, metavar="N", help="threads (default %(default)s)"
        )
        parser.add_argument(
            "--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory a block"
        )
        parser.add_argument(
            "--memory",
            default="l1",
            choices=("l1", "l2", "dram"),
            help="where global loads find their data (default %(default)s)",
        )
        parser.add_argument(
            "--conflicts",
            type=float,
            default=1.0,
            metavar="N",
            help="wavefronts of a shared access over those without conflicts (see lab banks)",
        )
        parser.add_argument(
            "--uncoalesced",
            type=float,
            default=1.0,
            metavar="N",
            help="lines of a global access over those of a coalesced one",
        )
        parser.add_argument(
            "--loop", metavar="OFFSET", help="the loop that starts there, such as 0x1a0"
        )
        parser.add_argument(
            "--caps", metavar="N,N,...", help="register caps to compile with; none: only as it is"
        )
        parser.add_argument(
            "--arch", default=DEFAULT_ARCH, help="for .cu files (default: %(default)s)"
        )
        parser.add_argument(
            "--flag", action="append", default=[], metavar="FLAG", help="a flag for nvcc"
        )
        parser.add_argument("--gpu", default="H200", metavar="NAME", help="(default %(default)s)")
        parser.add_argument("--cc", metavar="M.N", help="compute capability, if not the GPU's")
        parser.add_argument("--sms", type=int, metavar="N", help="SMs of the GPU")
        parser.add_argument("--clock", type=float, metavar="MHZ", help="SM clock")
        add_json_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0; a file without the kernel is an error."""
        from spanlite_analytics.lab.audit.inputs import units_of
        from spanlite_analytics.lab.pressure import analysis

        setting, caps = _setting(args), _caps(args.caps)
        units = units_of(args.path, Compiler(args.arch, tuple(args.flag)))
        with Progress("pressure") as progress:
            progress.told(0, 1, "reading machine code")
            kernels = [
                (unit, kernel)
                for unit in units
                if unit.cubin
                for kernel in analysis.kernels_of(unit, args.kernel)
            ]
            shown = [
                _studied(
                    args, one, setting, caps, _Steps(progress, len(caps), number, len(kernels))
                )
                for number, one in enumerate(kernels)
            ]
        if not shown:
            raise UsageError(f"{args.path} holds no machine code of a kernel named '{args.kernel}'")
        if args.json:
            print_json([_as_json(kernel, rows, setting) for kernel, rows, _ in shown])
            return 0
        for number, (kernel, rows, compiled) in enumerate(shown):
            if number:
                print()
            _show(kernel, rows, setting, compiled)
        return 0


@dataclass
class _Steps:
    """Tells how many of all compilations are done: `caps` a kernel."""

    progress: Progress
    caps: int
    number: int
    kernels: int
    done: int = 0

    def told(self, kernel: Kernel, cap: int) -> None:
        """This one comes next."""
        done, total = self.number * self.caps + self.done, self.kernels * self.caps
        self.progress.told(done, total, f"{kernel.routine.name} with {cap} registers at most")
        self.done += 1


def _studied(
    args: argparse.Namespace,
    one: tuple[Unit, Kernel],
    setting: Setting,
    caps: list[int],
    steps: _Steps,
) -> tuple[Kernel, list[Row], bool]:
    """A kernel, its rows, and whether all of them were compiled that were asked for."""
    from spanlite_analytics.lab.pressure import analysis

    unit, kernel = one
    if args.loop:
        kernel = analysis.at_loop(kernel, _offset(args.loop))
        return kernel, analysis.table(kernel, [], setting), True
    name = kernel.routine.name
    told = partial(steps.told, kernel)
    others = analysis.recompiled(unit, name, caps, args.arch, told)
    return kernel, analysis.table(kernel, others, setting), bool(others or not caps)


def _setting(args: argparse.Namespace) -> Setting:
    from spanlite_analytics.lab.pressure.analysis import Setting
    from spanlite_analytics.lab.pressure.pipes import chip_of

    if not 1 <= args.block <= 1024:
        raise UsageError(f"--block {args.block}: a block has 1 to 1,024 threads")
    if args.shared < 0:
        raise UsageError("--shared must not be negative")
    if not (1 <= args.conflicts <= 32 and 1 <= args.uncoalesced <= 32):
        raise UsageError("--conflicts and --uncoalesced are numbers from 1 to 32")
    if args.clock is not None and not 0 < args.clock < 1e5:
        raise UsageError(f"--clock {args.clock:g}: must be a number of MHz")
    sm, sms, _ = gpu_of(args.gpu, args.cc, args.sms)
    clock = (args.clock or 0) * 1e6
    launch = (args.block, args.shared, args.memory, clock)
    return Setting(sm, chip_of(sm.name), sms, *launch, args.conflicts, args.uncoalesced)


def _caps(text: str | None) -> list[int]:
    from spanlite_analytics.lab.pressure.analysis import CAPS

    if text is None:
        return list(CAPS)
    if text == "none":
        return []
    try:
        caps = [int(word) for word in text.split(",")]
    except ValueError:
        caps = [0]
    if not all(16 <= cap <= 255 for cap in caps):
        raise UsageError(f"--caps {text}: must be numbers from 16 to 255, or none")
    return caps


def _offset(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise UsageError(f"--loop {text}: must be an offset such as 0x1a0") from None


def _as_json(kernel: Kernel, rows: list[Row], setting: Setting) -> dict[str, Any]:
    from spanlite_analytics.lab.pressure.analysis import advice

    peak, loop = kernel.peak, kernel.loop
    stores, loads = kernel.routine.spills()
    return {
        "kernel": kernel.routine.name,
        "resources": asdict(kernel.resources),
        "spill_stores": stores,
        "spill_loads": loads,
        "peak": {"registers": peak.live, "offset": peak.offset, "line": asdict(peak.place)},
        "loop": {
            "start": loop.start,
            "end": loop.end,
            "depth": loop.depth,
            "instructions": len(loop.code),
            "flops": loop.flops,
            "mix": loop.mix(),
            "lines": loop.lines,
            "branches_within": loop.unknown_branches(),
        },
        "table": [asdict(row) | {"bound": row.rate.bound} for row in rows],
        "advice": advice(kernel, rows, setting),
        "model": {"chip": setting.chip.name, "source": setting.chip.source},
    }


def _show(kernel: Kernel, rows: list[Row], setting: Setting, compiled: bool) -> None:
    from spanlite_analytics.lab.pressure.analysis import advice

    needs, peak, loop = kernel.resources, kernel.peak, kernel.loop
    stores, loads = kernel.routine.spills()
    print(kernel.routine.name)
    print(
        f"{needs.registers} registers a thread, {needs.stack_bytes} bytes of local memory, "
        f"{stores} spill stores and {loads} loads in its code, {needs.shared_bytes:,} bytes of "
        "static shared memory"
    )
    where = f" ({Path(peak.place.file).name}:{peak.place.line})" if peak.place.line else ""
    print(f"most registers alive: {peak.live} at {peak.offset:#x}{where}, `{peak}`")
    _show_loop(loop)
    print()
    print_table(_HEADS, [_cells(row) for row in rows])
    print()
    for line in advice(kernel, rows, setting):
        print(line)
    if not compiled:
        print("Other register counts need source or PTX, which this file does not have.")
    if not setting.chip.checked:
        print(f"The model's latencies for {setting.chip.name} are those of 9.0: not checked.")


def _show_loop(loop: Any) -> None:
    file, first, last = loop.lines
    where = f", {Path(file).name}:{first}-{last}" if file else ""
    mix = ", ".join(f"{count} {kind}" for kind, count in loop.mix().items())
    if loop.depth == 0:
        print(f"no loop; the straight way has {len(loop.code)} instructions: {mix}")
        return
    print(
        f"main loop {loop.start:#x}-{loop.end:#x}{where}: {len(loop.code)} instructions, "
        f"{loop.flops} FLOP a thread and turn: {mix}"
    )
    if loop.unknown_branches():
        print(f"{loop.unknown_branches()} branches within: the model runs all that lies between")


_HEADS = (
    "registers", "cap", "warps/SM", "blocks/SM", "spilled st/ld", "clocks/turn", "issue",
    "bound by", "GFLOP/s", "Gturns/s",
)  # fmt: skip


def _cells(row: Row) -> tuple[Any, ...]:
    return (
        row.registers,
        row.cap or None,
        row.warps,
        row.blocks,
        f"{row.spill_stores}/{row.spill_loads}",
        round(row.rate.clocks_per_turn),
        f"{row.rate.issue:.0%}",
        row.rate.bound,
        round(row.flops_per_s / 1e9) if row.flops_per_s else None,
        row.turns_per_s / 1e9,
    )


command = PressureCommand()
