"""`spanlite lab predict`: achieved occupancy and time of a launch that nobody has made yet."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spanlite.errors import UsageError

from spanlite_analytics.lab.commands.occupancy import size_of
from spanlite_analytics.lab.frame import add_json_argument, print_json, print_table
from spanlite_analytics.lab.toolchain import DEFAULT_ARCH, Compiler
from spanlite_analytics.words import time_words

if TYPE_CHECKING:
    from spanlite_analytics.lab.predict.features import Known, Query
    from spanlite_analytics.lab.predict.model import Guess, Model, Prediction
    from spanlite_analytics.lab.pressure.analysis import Kernel

#: What a thread is launched with, though its code may name fewer.
LEAST_REGISTERS = 16

_HELP = """Predicts for an H200 what a launch of a grid-stride kernel reaches: the occupancy it
achieves (not the one that fits) and the time it takes, each with an interval. Registers, shared
memory and the loop come from its machine code; how far it is unrolled, how much it touches and how
it is launched come from you. Beside it: the published formulas. Where the launch is unlike those
that the model was fitted on, it says so. docs/predict.md has the errors.

examples:
  spanlite lab predict axpy.cu --block 256 --grid 1056 --elements 16777216 --footprint 134217728
  spanlite lab predict k.cubin --kernel gather --block 128 --grid 2112 --elements 4194304 \\
      --unroll 4 --footprint 536870912 --random loads
"""


class PredictCommand:
    """Prints the prediction beside the published formulas."""

    summary = "Achieved occupancy and time of a launch before it runs, with an interval"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the flags."""
        parser.epilog = _HELP
        parser.add_argument("path", type=Path, help="a .cu, .ptx, .cubin, .fatbin or .so file")
        parser.add_argument("--kernel", default="", metavar="TEXT", help="part of the name")
        launch = parser.add_argument_group("launch")
        launch.add_argument("--block", required=True, metavar="N|XxYxZ", help="threads of a block")
        launch.add_argument("--grid", required=True, metavar="N|XxYxZ", help="blocks of the grid")
        launch.add_argument(
            "--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory"
        )
        launch.add_argument(
            "--registers", type=int, metavar="N", help="of a thread, if not the machine code's"
        )
        work = parser.add_argument_group("work")
        work.add_argument(
            "--elements", type=int, required=True, metavar="N", help="that the loops go over"
        )
        work.add_argument(
            "--unroll", type=int, default=1, metavar="N", help="elements a turn (default 1)"
        )
        work.add_argument(
            "--footprint", type=float, required=True, metavar="BYTES", help="distinct bytes touched"
        )
        work.add_argument(
            "--element-bytes",
            type=float,
            default=0,
            metavar="BYTES",
            help="moved for an element, where loads of neighbours overlap",
        )
        work.add_argument(
            "--random",
            choices=("loads", "stores", "both"),
            help="whose places are drawn at random; atomics count as stores",
        )
        work.add_argument("--loop", metavar="OFFSET", help="the loop that starts there: 0x1a0")
        parser.add_argument(
            "--arch", default=DEFAULT_ARCH, help="for .cu files (default: %(default)s)"
        )
        parser.add_argument(
            "--flag", action="append", default=[], metavar="FLAG", help="a flag for nvcc"
        )
        add_json_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Returns 0. A launch that cannot run is an error."""
        from spanlite_analytics.lab.predict.features import H200, know
        from spanlite_analytics.lab.predict.model import fitted

        kernel = _kernel(args)
        query = _query(args, kernel)
        known = know(query, H200)
        if known is None:
            raise UsageError(
                f"no block of {query.launch.threads} threads, {query.launch.registers} registers "
                f"and {query.launch.shared_bytes:,} bytes of shared memory fits an SM"
            )
        model = fitted()
        got = model.predict(known)
        if args.json:
            print_json(_as_json(kernel, query, known, got, model))
        else:
            _show(kernel, query, known, got, model)
        return 0


def _kernel(args: argparse.Namespace) -> Kernel:
    """The one kernel that is meant, with the loop that goes over the elements."""
    from dataclasses import replace

    from spanlite_analytics.lab.audit.inputs import units_of
    from spanlite_analytics.lab.predict.work import grid_loop
    from spanlite_analytics.lab.pressure import analysis

    units = units_of(args.path, Compiler(args.arch, tuple(args.flag)))
    found = [
        kernel
        for unit in units
        if unit.cubin
        for kernel in analysis.kernels_of(unit, args.kernel, lines=False)
    ]
    if len(found) != 1:
        names = ", ".join(kernel.routine.name for kernel in found[:5]) or "none"
        raise UsageError(f"--kernel must name one kernel of {args.path}; it names {names}")
    if args.loop:
        try:
            offset = int(args.loop, 16)
        except ValueError:
            raise UsageError(f"--loop {args.loop}: must be an offset such as 0x1a0") from None
        return analysis.at_loop(found[0], offset)
    return replace(found[0], loop=grid_loop(found[0].routine))


def _query(args: argparse.Namespace, kernel: Kernel) -> Query:
    from spanlite_analytics.lab.occupancy import Launch
    from spanlite_analytics.lab.predict.features import Query
    from spanlite_analytics.lab.predict.work import work_of
    from spanlite_analytics.lab.pressure.pipes import chip_of

    least = {"elements": 1, "unroll": 1, "footprint": 1, "shared": 0, "element_bytes": 0}
    for name, low in least.items():
        if not low <= getattr(args, name) < inf:
            raise UsageError(f"--{name.replace('_', '-')} must be {low} or more")
    launch = Launch(
        size_of(args.block, "--block"),
        args.registers or max(kernel.resources.registers, LEAST_REGISTERS),
        kernel.resources.shared_bytes,
        args.shared,
        grid_blocks=size_of(args.grid, "--grid"),
    )
    if launch.threads > 1024:
        raise UsageError(f"--block {args.block}: a block has at most 1,024 threads")
    work = work_of(kernel.loop, chip_of("9.0"))
    loads, stores = args.random in ("loads", "both"), args.random in ("stores", "both")
    size = (args.unroll, args.elements, args.footprint)
    return Query(launch, work, *size, loads, stores, args.element_bytes)


def _as_json(
    kernel: Kernel, query: Query, known: Known, got: Prediction, model: Model
) -> dict[str, Any]:
    return {
        "kernel": kernel.routine.name,
        "launch": asdict(query.launch),
        "work": asdict(query.work),
        "occupancy": asdict(got.occupancy)
        | {
            "published": known.published_occupancy,
            "theoretical": known.theoretical_occupancy,
            "by_waves": known.wave_occupancy,
        },
        "seconds": asdict(got.seconds) | {"roofline": known.roofline_s, "bound": known.bound_s},
        "warnings": got.warnings,
        "features": known.features,
        "model": model.about,
    }


def _show(kernel: Kernel, query: Query, known: Known, got: Prediction, model: Model) -> None:
    loop, launch = kernel.loop, query.launch
    print(
        f"{kernel.routine.name}: {launch.grid_blocks:,} blocks of {launch.threads} threads, "
        f"{launch.registers} registers, {launch.shared_bytes:,} bytes of shared memory; loop "
        f"{loop.start:#x}-{loop.end:#x}"
    )
    print()
    occupancy, seconds = got.occupancy, got.seconds
    rows = [
        ("achieved occupancy", _share(occupancy), _between(occupancy, "{:.1%}".format)),
        ("  theoretical", f"{known.theoretical_occupancy:.1%}", None),
        ("  published formula", f"{known.published_occupancy:.1%}", None),
        ("time", _time(seconds.value), _between(seconds, _time)),
        ("  roofline", _time(known.roofline_s), None),
    ]
    print_table(("", "predicted", "9 of 10 within"), rows)
    print()
    print(f"fitted on {model.about['name']}, driver {model.about['driver_version']}")
    for warning in got.warnings:
        print(f"extrapolated: {warning}")


def _share(guess: Guess) -> str:
    return f"{guess.value:.1%}"


def _time(seconds: float) -> str:
    return time_words(seconds * 1e9)


def _between(guess: Guess, words: Any) -> str:
    return f"{words(guess.low)} to {words(guess.high)}"


command = PredictCommand()
